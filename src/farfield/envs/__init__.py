"""Environments that we ship."""
