"""Reinforcement learning for software in the field."""
