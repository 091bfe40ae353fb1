"""Head outputs and noise into actions, and actions into log-probabilities; in NumPy, over all lanes at once."""

import math
from collections.abc import Callable
from functools import partial
from itertools import accumulate

import numpy as np

from farfield.errors import ConfigError
from farfield.types import Array, Columns, Field, Network, Spec, noise_blocks

Decide = Callable[[list[Array], Array | None], Array]

FORBIDDEN = np.float32(-5e8)  # below this a masked choice is meant: masks put -1e9
HALF_LOG_TWO_PI = np.float32(0.5 * math.log(2 * math.pi))


def deciders(spec: Spec, network: Network) -> list[tuple[str, Decide, tuple[str, ...], slice]]:
    """Give for each head: its action, how it decides, the nodes that it reads, and its columns of the noise."""
    fields = {field.name: field for field in spec.actions}
    blocks = iter(noise_blocks(spec, network))
    start = 0
    found: list[tuple[str, Decide, tuple[str, ...], slice]] = []
    for head in network.heads:
        width = next(blocks)[1] + (next(blocks)[1] if head.kind == "epsilon" else 0)
        decide = partial(DECIDE[head.kind], fields[head.action])
        found.append((head.action, decide, head.inputs, slice(start, start + width)))
        start += width
    return found


def _categorical(field: Field, inputs: list[Array], noise: Array | None) -> Array:
    """Choose by Gumbel's trick: the largest of logits + noise is a draw from their softmax."""
    scores = inputs[0] if noise is None else inputs[0] + noise
    if not field.shape:
        return scores.argmax(1)
    return np.stack([block.argmax(1) for block in _blocks(field, scores)], axis=1)


def _bernoulli(field: Field, inputs: list[Array], noise: Array | None) -> Array:
    """Switch on where logit + logistic noise is positive."""
    scores = inputs[0] if noise is None else inputs[0] + noise
    return (scores > 0).astype(field.dtype).reshape(len(scores), *field.shape)


def _gaussian(field: Field, inputs: list[Array], noise: Array | None) -> Array:
    """Scatter normally around the mean; what the bounds of the field cut off is the environment's business."""
    mean, log_std = inputs
    action = mean.copy() if noise is None else mean + np.exp(log_std) * noise
    return action.astype(field.dtype, copy=False).reshape(len(mean), *field.shape)


def _epsilon(field: Field, inputs: list[Array], noise: Array | None) -> Array:
    """Take the best action, or with probability epsilon any allowed one; noise is [N, gumbel…, uniform]."""
    q, epsilon = inputs
    best = q.argmax(1)
    if noise is None:
        return best
    anything = np.where(_allowed(q), noise[:, :-1], -np.inf).argmax(1)
    return np.where(noise[:, -1] < epsilon, anything, best)


DECIDE: dict[str, Callable[[Field, list[Array], Array | None], Array]] = {
    "categorical": _categorical,
    "bernoulli": _bernoulli,
    "gaussian": _gaussian,
    "epsilon": _epsilon,
}


def log_prob(spec: Spec, network: Network, logits: Columns, action: Columns) -> Array:
    """Score whole actions under head outputs: the sum over heads, [..] float32."""
    fields = {field.name: field for field in spec.actions}
    total: Array | None = None
    for head in network.heads:
        inputs = [logits[name] for name in head.inputs]
        score = SCORE[head.kind](fields[head.action], inputs, action[head.action])
        total = score if total is None else total + score
    if total is None:
        raise ConfigError("the network has no heads, so it decides nothing; build it with a policy or q style")
    return total


def _score_categorical(field: Field, inputs: list[Array], action: Array) -> Array:
    chosen = action.reshape(*inputs[0].shape[:-1], len(field.sizes))
    scores = [_log_softmax_at(block, chosen[..., i]) for i, block in enumerate(_blocks(field, inputs[0]))]
    return scores[0] if len(scores) == 1 else np.asarray(np.sum(scores, axis=0, dtype=np.float32))


def _score_bernoulli(field: Field, inputs: list[Array], action: Array) -> Array:
    signed = np.where(action.reshape(inputs[0].shape) > 0, inputs[0], -inputs[0])
    return -np.logaddexp(np.float32(0), -signed).sum(-1)


def _score_gaussian(field: Field, inputs: list[Array], action: Array) -> Array:
    mean, log_std = inputs
    distance = (action.reshape(mean.shape) - mean) * np.exp(-log_std)
    return (np.float32(-0.5) * distance * distance - log_std - HALF_LOG_TWO_PI).sum(-1)


def _score_epsilon(field: Field, inputs: list[Array], action: Array) -> Array:
    q, epsilon = inputs
    allowed = _allowed(q)
    chance = epsilon * np.take_along_axis(allowed, action[..., None], -1)[..., 0] / allowed.sum(-1)
    chance = chance + (1 - epsilon) * (action == q.argmax(-1))
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(chance), np.float32(-1e9)).astype(np.float32)


SCORE: dict[str, Callable[[Field, list[Array], Array], Array]] = {
    "categorical": _score_categorical,
    "bernoulli": _score_bernoulli,
    "gaussian": _score_gaussian,
    "epsilon": _score_epsilon,
}


def _allowed(q: Array) -> Array:
    """Say which choices are not masked; where all are, as in rows that do not count, all are allowed."""
    allowed = q > FORBIDDEN
    return allowed | ~allowed.any(-1, keepdims=True)


def _blocks(field: Field, logits: Array) -> list[Array]:
    """Cut logits [.., sum of sizes] into one block for each choice."""
    if len(field.sizes) == 1:
        return [logits]
    return np.split(logits, list(accumulate(field.sizes))[:-1], axis=-1)


def _log_softmax_at(logits: Array, chosen: Array) -> Array:
    # Choices first: reducing over a first axis is many times faster than over a short last one.
    columns = logits.reshape(-1, logits.shape[-1]).T.copy()
    columns -= columns.max(0)
    at = columns[chosen.reshape(-1), np.arange(columns.shape[1])]
    return (at - np.log(np.exp(columns).sum(0))).reshape(chosen.shape)
