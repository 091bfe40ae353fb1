"""Running means and variances: a batch's valid rows in, statistics of all that was ever seen out; in JAX."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from farfield.types import Columns, Network

TINY = 1e-8
FARTHEST = 10.0  # of a scaled reward: the first one after long silence would be as large as anything
Tensors = Mapping[str, Any]


def merge(mean: Any, var: Any, count: Any, rows: Any, weight: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Add rows [R, …] that weigh 0 or 1 each to a mean and variance of `count` earlier ones."""
    weight = weight.reshape(-1, *([1] * (rows.ndim - 1)))
    added = weight.sum()
    own = (rows * weight).sum(0) / jnp.maximum(added, 1.0)
    own_var = (((rows - own) ** 2) * weight).sum(0) / jnp.maximum(added, 1.0)
    total = jnp.maximum(count + added, 1.0)
    apart = own - mean
    both = (var * count + own_var * added + apart**2 * (count * added / total)) / total
    seen = added > 0
    return jnp.where(seen, mean + apart * (added / total), mean), jnp.where(seen, both, var), count + added


def observe(network: Network, tensors: Tensors, columns: Tensors, valid: Any) -> dict[str, Any]:
    """Add a batch's valid observations to the statistics of the network's normalise nodes."""
    nodes = {node.name: node for node in network.nodes}
    weight = jnp.asarray(valid, jnp.float32).reshape(-1)
    after = dict(tensors)
    for node in network.nodes:
        if node.op != "normalise":
            continue
        mean, var, count = (node.tensors[role] for role in ("mean", "var", "count"))
        column = columns[nodes[node.inputs[0]].inputs[0]][: len(valid)]
        rows = column.reshape(-1, *network.tensors[mean].shape).astype(jnp.float32)
        after[mean], after[var], after[count] = merge(tensors[mean], tensors[var], tensors[count], rows, weight)
    return after


def begin_scale(lanes: int) -> Columns:
    """Give the statistics of discounted returns before the first reward, in NumPy."""
    zero = np.zeros((), np.float32)
    return {"mean": zero, "var": np.ones((), np.float32), "count": zero, "running": np.zeros(lanes, np.float32)}


def scale(state: Tensors, batch: Tensors, gamma: Any) -> tuple[dict[str, Any], jax.Array]:
    """Divide rewards by the running deviation of the discounted returns up to each step.

    The sum that a slot's last row had goes on in its next batch. Where streams change slots in between, that is
    another stream's; a statistic over many steps bears it.
    """

    def step(before: jax.Array, row: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        reward, valid, first = row
        now = jnp.where(valid, reward + gamma * jnp.where(first, 0.0, before), 0.0)
        return now, now

    rows = (batch["reward"], batch["valid"], batch["first"])
    running, sums = lax.scan(step, state["running"], rows)
    weight = batch["valid"].astype(jnp.float32).reshape(-1)
    mean, var, count = merge(state["mean"], state["var"], state["count"], sums.reshape(-1), weight)
    after = {"mean": mean, "var": var, "count": count, "running": running}
    return after, jnp.clip(batch["reward"] / jnp.sqrt(var + TINY), -FARTHEST, FARTHEST)
