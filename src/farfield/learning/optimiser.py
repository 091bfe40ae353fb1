"""Adam with clipping by the global norm, as pure functions: tensors and gradients in, tensors and moments out.

Optax would bring what is here and hundreds of other things for 0.09 s of every start (`-X importtime`, after JAX) and a
chain of transformations to compile. Moments are one vector each: compiled code then has one loop over all of them
instead of one per tensor, which compiles in two thirds of the time.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from farfield.types import Columns

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-5
Tensors = Mapping[str, Any]
Shapes = Mapping[str, tuple[int, ...]]


def begin(params: Tensors) -> Columns:
    """Give the moments before the first step, in NumPy."""
    size = sum(int(np.prod(np.shape(value))) for value in params.values())
    return {"m": np.zeros(size, np.float32), "v": np.zeros(size, np.float32), "count": np.zeros((), np.int32)}


def step(
    params: Tensors, grads: Tensors, state: Tensors, *, rate: Any, max_norm: Any
) -> tuple[dict[str, jax.Array], dict[str, jax.Array], jax.Array]:
    """Go one step: tensors, moments, and the norm that the gradient had before clipping."""
    gradient = join({name: grads[name] for name in params})
    norm = jnp.sqrt((gradient * gradient).sum())
    shrink = jnp.minimum(1.0, max_norm / (norm + 1e-6))
    count = state["count"] + 1
    m = BETA1 * state["m"] + ((1 - BETA1) * shrink) * gradient
    v = BETA2 * state["v"] + ((1 - BETA2) * shrink * shrink) * (gradient * gradient)
    # Both corrections of the first moments' bias towards zero are scalars: nothing is divided element by element.
    grown1, grown2 = 1.0 - BETA1**count, 1.0 - BETA2**count
    change = m * (-rate / grown1) / (jnp.sqrt(v * (1.0 / grown2)) + EPSILON)
    changes = split(change, {name: tuple(np.shape(value)) for name, value in params.items()})
    after = {name: value + changes[name] for name, value in params.items()}
    return after, {"m": m, "v": v, "count": count}, norm


def annealed(rate: float, steps: int, over: int) -> float:
    """Give the rate after `steps` of `over`, falling linearly to 0; `over` = 0 keeps it."""
    return rate * max(0.0, 1.0 - steps / over) if over else rate


def join(tensors: Tensors) -> Any:
    """Give all elements as one vector, in the order of the mapping; NumPy in, NumPy out."""
    values = list(tensors.values())
    if all(isinstance(value, np.ndarray) for value in values):
        return np.concatenate([value.ravel() for value in values]).astype(np.float32)
    return values[0].reshape(-1) if len(values) == 1 else jnp.concatenate([value.reshape(-1) for value in values])


def split(vector: Any, shapes: Shapes) -> dict[str, Any]:
    """Give back what `join` joined; of a NumPy vector, views."""
    found: dict[str, Any] = {}
    start = 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        found[name] = vector[start : start + size].reshape(shape)
        start += size
    return found
