"""Desired replicas in, processes out."""
