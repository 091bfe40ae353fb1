"""Environments and live apps in, fragments out."""
