"""Rewards, values and ends into returns and advantages, in JAX; rows are [T, B], values [T + 1, B].

All follow one rule about ends. A row t with valid[t] has its true next observation in row t + 1. `terminated`: nothing
comes after it. `truncated`: the value of row t + 1 stands for what would have come, and no trace goes on. From a row
that is not valid nothing is learned, and no trace passes it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

UNROLL = 8  # rows of a backward scan that are compiled as one piece: less overhead for each row


class Ends(NamedTuple):
    """How each row ends; booleans [T, B]."""

    terminated: Any
    truncated: Any
    valid: Any


def gae(reward: Any, value: Any, ends: Ends, *, gamma: Any, lam: Any) -> tuple[jax.Array, jax.Array]:
    """Give generalised advantage estimates and the value targets that they mean."""
    surprise, decay = _surprise(reward, value, ends, gamma), _decay(ends, gamma * lam)
    advantage = _backward(surprise, decay)
    return advantage, value[:-1] + advantage


def vtrace(
    reward: Any, value: Any, ratio: Any, ends: Ends, *, gamma: Any, lam: Any, rho_clip: Any = 1.0, trace_clip: Any = 1.0
) -> tuple[jax.Array, jax.Array]:
    """Give advantages and value targets corrected by `ratio` = now / when acting; where it is 1, those of `gae`."""
    surprise = _surprise(reward, value, ends, gamma)
    rho, trace = jnp.minimum(rho_clip, ratio), jnp.minimum(trace_clip, ratio)
    decay = _decay(ends, gamma * lam)
    correction = _backward(rho * surprise, trace * decay)  # how far the target is from the value
    after = jnp.concatenate([correction[1:], jnp.zeros_like(correction[:1])])
    return surprise + decay * after, value[:-1] + correction


def n_step(reward: Any, value: Any, ends: Ends, *, gamma: Any, n: int) -> jax.Array:
    """Give sums of up to `n` discounted rewards and the discounted value of where they stop."""
    stop = (_decay(ends, 1.0) == 0) | ~_next_valid(ends.valid)
    alive = gamma * (1.0 - jnp.asarray(ends.terminated, jnp.float32))
    future = value[1:]
    for _ in range(n - 1):
        longer = reward + alive * future
        future = jnp.where(stop, value[1:], jnp.concatenate([longer[1:], value[-1:]]))
    return jnp.where(ends.valid, reward + alive * future, 0.0)


def discounted(reward: Any, ends: Ends, *, gamma: Any, value: Any = None) -> tuple[jax.Array, jax.Array]:
    """Give returns to the episode's end, and which rows have one.

    With `value`, cut episodes go on with it and every valid row has a return. Without, an episode's return needs its
    end among the rows; rows of unfinished episodes have none. Truncation then counts as an end.
    """
    cut = (_decay(ends, 1.0) == 0) | ~_next_valid(ends.valid)
    if value is not None:
        alive = 1.0 - jnp.asarray(ends.terminated, jnp.float32)
        tail = jnp.where(cut, gamma * alive * value[1:], 0.0)
        start = jnp.where(ends.valid, reward + tail, 0.0)
        return _backward(start, jnp.where(cut, 0.0, gamma)), jnp.asarray(ends.valid)
    ended = jnp.asarray(ends.valid) & (jnp.asarray(ends.terminated) | jnp.asarray(ends.truncated))
    returns = _backward(jnp.where(ends.valid, reward, 0.0), jnp.where(cut, 0.0, gamma))
    complete = _backward(ended.astype(jnp.float32), jnp.where(cut, 0.0, 1.0)) > 0
    return jnp.where(complete, returns, 0.0), complete


def _surprise(reward: Any, value: Any, ends: Ends, gamma: Any) -> jax.Array:
    alive = 1.0 - jnp.asarray(ends.terminated, jnp.float32)
    return jnp.where(ends.valid, reward + gamma * alive * value[1:] - value[:-1], 0.0)


def _decay(ends: Ends, factor: Any) -> jax.Array:
    """Give the factor by which row t + 1 counts in the trace of row t: 0 across ends and gaps."""
    passes = jnp.asarray(ends.valid) & ~(jnp.asarray(ends.terminated) | jnp.asarray(ends.truncated))
    return jnp.where(passes, factor, 0.0)


def _next_valid(valid: Any) -> jax.Array:
    """Say whether row t + 1 exists among the rows and is valid."""
    valid = jnp.asarray(valid)
    return jnp.concatenate([valid[1:], jnp.zeros_like(valid[:1])])


def _backward(add: jax.Array, decay: jax.Array) -> jax.Array:
    """Compute y[t] = add[t] + decay[t] * y[t + 1] with nothing after the last row."""

    def step(after: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        now = row[0] + row[1] * after
        return now, now

    return lax.scan(step, jnp.zeros_like(add[0]), (add, decay), reverse=True, unroll=UNROLL)[1]
