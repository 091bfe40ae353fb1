"""A version, its weights and one observation in; the best actions with probability and value out."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from farfield.serving.decisions import FORBIDDEN
from farfield.serving.interpreter import evaluate
from farfield.types import Array, Columns, Field, Head, Kind, Memory, Version, Weights

Option = tuple[float, Any, float | None]  # log-probability, value of the field, what it is worth


def advise(
    version: Version, weights: Weights, columns: Columns, memory: Memory, best: int
) -> list[tuple[Any, float, float | None]]:
    """Give the best whole actions for columns [1, …], best first. Continuous ones: the mean, with probability 1."""
    network, fields = version.network, {field.name: field for field in version.spec.actions}
    wanted = tuple(dict.fromkeys(name for head in network.heads for name in head.inputs))
    values, _ = evaluate(network, weights, columns, wanted, memory=memory or None)
    found: list[tuple[float, dict[str, Any], float | None]] = [(0.0, {}, None)]
    for head in network.heads:
        options = sorted(_options(fields[head.action], head, values, best), key=_rank)[:best]
        joined = [
            (score + more, whole | {head.action: part}, worth)
            for score, whole, _ in found
            for more, part, worth in options
        ]
        found = sorted(joined, key=_rank)[:best]
    single = len(network.heads) == 1
    return [
        (
            next(iter(whole.values())) if single else {k.removeprefix("action/"): v for k, v in whole.items()},
            float(np.exp(score)),
            worth if single else None,
        )
        for score, whole, worth in found
    ]


def _rank(option: tuple[float, Any, float | None]) -> tuple[float, float]:
    score, _, worth = option
    return (-score, 0.0) if worth is None else (-worth, -score)


def _options(field: Field, head: Head, values: Columns, best: int) -> Iterator[Option]:
    first = values[head.inputs[0]][0]
    match head.kind:
        case "epsilon":
            yield from _valued(first, float(values[head.inputs[1]].reshape(-1)[0]))
        case "categorical":
            blocks = np.split(first, np.cumsum(field.sizes)[:-1])
            scores = [block - np.logaddexp.reduce(block) for block in blocks]
            for score, choice in _joint(scores, best):
                yield score, choice[0] if field.kind is Kind.DISCRETE else np.array(choice, field.dtype), None
        case "bernoulli":
            scores = [np.array([-np.logaddexp(0, logit), -np.logaddexp(0, -logit)]) for logit in first]
            for score, choice in _joint(scores, best):
                yield score, np.array(choice, field.dtype).reshape(field.shape), None
        case "gaussian":
            yield 0.0, first.astype(field.dtype).reshape(field.shape), None


def _valued(q: Array, epsilon: float) -> Iterator[Option]:
    """Give what each allowed choice is worth, and how likely exploring makes it."""
    allowed = np.flatnonzero(q > FORBIDDEN)
    for choice in allowed:
        chance = epsilon / len(allowed) + (1 - epsilon) * (choice == q.argmax())
        yield float(np.log(max(chance, 1e-38))), int(choice), float(q[choice])


def _joint(scores: list[Array], best: int) -> list[tuple[float, tuple[int, ...]]]:
    """Find the likeliest combinations of independent choices; what a mask forbids is none."""
    found: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for block in scores:
        top = [int(i) for i in np.argsort(-block, kind="stable")[:best] if block[i] > FORBIDDEN]
        joined = [(score + float(block[i]), (*choice, i)) for score, choice in found for i in top]
        found = sorted(joined, key=lambda one: -one[0])[:best]
    return found
