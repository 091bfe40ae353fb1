"""Weights in, numbered versions and checkpoints out, and back."""
