"""Fragments in, weights out; the only folder that knows JAX."""
