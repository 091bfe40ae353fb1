"""A dense layer whose gradient is fast on CPUs: rows, kernel and bias in, rows out."""

import jax
from jax import lax


@jax.custom_vjp
def dense(rows: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """Give rows [N, I] @ kernel [I, O] + bias [O]."""
    return rows @ kernel + bias


def _forward(rows: jax.Array, kernel: jax.Array, bias: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return rows @ kernel + bias, (rows, kernel)


def _backward(kept: tuple[jax.Array, jax.Array], change: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    rows, kernel = kept
    # XLA folds the transposition into the product, and its CPU backend has no fast product over the first dimension of
    # both sides: 40 µs instead of 28 for 256 x 64 by 256 x 64, 31 instead of 13 for a head. The barrier keeps it apart.
    turned = lax.optimization_barrier(rows.T)
    return change @ kernel.T, turned @ change, change.sum(0)


dense.defvjp(_forward, _backward)
