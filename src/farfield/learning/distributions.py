"""Head outputs into log-probabilities and entropies of whole actions, in JAX, over any leading dimensions."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from farfield.types import Field, Network, Spec

FORBIDDEN = -5e8  # below this a masked choice is meant: masks put -1e9
HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


def log_prob(network: Network, spec: Spec, outputs: Mapping[str, Any], actions: Mapping[str, Any]) -> jax.Array:
    """Score whole actions under head outputs: the sum over heads, [..]."""
    fields = {field.name: field for field in spec.actions}
    total: Any = 0.0
    for head in network.heads:
        field, action = fields[head.action], jnp.asarray(actions[head.action])
        inputs = [jnp.asarray(outputs[name]) for name in head.inputs]
        match head.kind:
            case "categorical":
                total += _choices(field, inputs[0], action)
            case "bernoulli":
                total += bernoulli(inputs[0], action.reshape(inputs[0].shape))
            case "gaussian":
                total += gaussian(inputs[0], inputs[1], action.reshape(inputs[0].shape))
            case "epsilon":
                total += categorical(_greedy(inputs[0], inputs[1]), action)
    return total


def entropy(network: Network, spec: Spec, outputs: Mapping[str, Any]) -> jax.Array:
    """Say how undecided the heads are: the sum over heads, [..], in nats."""
    fields = {field.name: field for field in spec.actions}
    total: Any = 0.0
    for head in network.heads:
        inputs = [jnp.asarray(outputs[name]) for name in head.inputs]
        match head.kind:
            case "categorical":
                for block in _blocks(fields[head.action], inputs[0]):
                    total += categorical_entropy(block)
            case "bernoulli":
                total += bernoulli_entropy(inputs[0])
            case "gaussian":
                total += gaussian_entropy(inputs[1])
            case "epsilon":
                total += categorical_entropy(_greedy(inputs[0], inputs[1]))
    return total


def categorical(logits: jax.Array, action: jax.Array) -> jax.Array:
    """Score one choice [..] under logits [.., n]."""
    # A comparison instead of a gather: its gradient is no scatter, which is slow on CPUs.
    chosen = jnp.arange(logits.shape[-1]) == action[..., None]
    return jnp.where(chosen, jax.nn.log_softmax(logits), 0.0).sum(-1)


def categorical_entropy(logits: jax.Array) -> jax.Array:
    """Give the entropy of one choice under logits [.., n]."""
    logs = jax.nn.log_softmax(logits)
    return -(jnp.exp(logs) * logs).sum(-1)


def bernoulli(logits: jax.Array, action: jax.Array) -> jax.Array:
    """Score switches [.., n], each on or off, under logits [.., n]."""
    return jax.nn.log_sigmoid(jnp.where(action > 0, logits, -logits)).sum(-1)


def bernoulli_entropy(logits: jax.Array) -> jax.Array:
    """Give the entropy of switches under logits [.., n]."""
    on = jax.nn.sigmoid(logits)
    return (on * jax.nn.softplus(-logits) + (1 - on) * jax.nn.softplus(logits)).sum(-1)


def gaussian(mean: jax.Array, log_std: jax.Array, action: jax.Array) -> jax.Array:
    """Score numbers [.., n] under independent normal distributions."""
    distance = (action - mean) * jnp.exp(-log_std)
    return (-0.5 * distance**2 - log_std - HALF_LOG_TWO_PI).sum(-1)


def gaussian_entropy(log_std: jax.Array) -> jax.Array:
    """Give the entropy of independent normal distributions [.., n]."""
    return (log_std + 0.5 + HALF_LOG_TWO_PI).sum(-1)


def _blocks(field: Field, logits: jax.Array) -> list[jax.Array]:
    if len(field.sizes) == 1:
        return [logits]
    ends = [sum(field.sizes[: i + 1]) for i in range(len(field.sizes) - 1)]
    return jnp.split(logits, ends, axis=-1)


def _choices(field: Field, logits: jax.Array, action: jax.Array) -> jax.Array:
    action = action.reshape(*logits.shape[:-1], len(field.sizes))
    blocks = _blocks(field, logits)
    return sum((categorical(block, action[..., i]) for i, block in enumerate(blocks)), jnp.zeros(()))


def _greedy(q: jax.Array, epsilon: jax.Array) -> jax.Array:
    """Give the logits of the best choice, or with probability epsilon any allowed one."""
    allowed = q > FORBIDDEN
    allowed = allowed | ~allowed.any(-1, keepdims=True)
    best = jnp.arange(q.shape[-1]) == q.argmax(-1)[..., None]
    chance = epsilon[..., None] * allowed / allowed.sum(-1, keepdims=True) + (1 - epsilon[..., None]) * best
    return jnp.where(chance > 0, jnp.log(jnp.where(chance > 0, chance, 1.0)), -1e9)
