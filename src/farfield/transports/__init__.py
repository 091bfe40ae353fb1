"""Partitioned logs: one file per technology."""
