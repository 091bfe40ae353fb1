"""Versions in, actions out, without any machine-learning framework."""
