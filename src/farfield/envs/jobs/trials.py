"""A policy and rules in; what each makes of the same windows out, to be compared window by window."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from farfield.envs.jobs.env import Jobs, Obs
from farfield.envs.jobs.rules import RULES
from farfield.types import Array

Decide = Callable[[Obs], int]


def play(env: Jobs, decide: Decide, starts: Iterable[int]) -> Array:
    """Give the cost of each window, begun at these jobs of the trace, when `decide` chooses the slots."""
    costs: list[float] = []
    for start in starts:
        obs, _ = env.reset(options={"start": start})
        over = False
        while not over:
            obs, _, over, _, _ = env.step(np.int64(decide(obs)))
        costs.append(env.cost)
    return np.array(costs)


def compare(env: Jobs, starts: Sequence[int], names: Iterable[str] = tuple(RULES)) -> Mapping[str, Array]:
    """Give the costs of the same windows under rules."""
    found: list[dict[str, float]] = []
    for start in starts:
        env.reset(options={"start": start})
        found.append(env.compare(*names))
    return {name: np.array([costs[name] for costs in found]) for name in names}


def at_random(seed: int) -> Decide:
    """Make what chooses any waiting job: where learning begins."""
    rng = np.random.default_rng(seed)
    return lambda obs: int(rng.integers(int(obs["action_mask"].sum())))
