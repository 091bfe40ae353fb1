"""A seed and a number of jobs in, a Trace drawn from the workload model of Lublin and Feitelson (2003) out.

"The workload on parallel supercomputers: modeling the characteristics of rigid jobs", J. Parallel Distrib. Comput. 63.
Sizes: some jobs are serial; log2 of the others is uniform in one of two stages, and often rounded, to powers of two.
Run times: their logarithm comes from one of two gamma distributions; large jobs more often from the longer one.
Arrivals: the logarithm of a gap is gamma distributed, and gaps shrink and grow with the time of day.
"""

import math
from typing import NamedTuple

import numpy as np

from farfield.envs.jobs.trace import Trace, ordered
from farfield.types import Array

HALF_HOUR, HALF_HOURS = 1800.0, 48
GRAIN = 200  # points of each half hour at which the daily cycle is integrated


class Model(NamedTuple):
    """The model's numbers for all jobs alike, as published; gamma distributions are (shape, scale).

    Two depend on the machine: `sizes` ends at log2 of its nodes, and its middle is 2.5 below. One is ours: published
    gaps go up to e^13 s (5 days), which gives a machine of 256 nodes a load of 0.88 ± 0.06; up to e^11.5 s (27 hours)
    gives 0.99 ± 0.04, and the gaps of the trace that others train on (docs/jobs.md).
    """

    serial: float = 0.244
    powers: float = 0.576  # of all jobs
    smallest: float = 0.8  # log2 of nodes
    middle: float = 2.5  # below log2 of all nodes
    small: float = 0.86  # of parallel jobs are below the middle
    short: tuple[float, float] = (4.2, 0.94)  # of the logarithm of seconds
    long: tuple[float, float] = (312.0, 0.03)
    short_share: tuple[float, float] = (0.78, -0.0054)  # of jobs that are short: at 0 nodes, and for each node
    longest: float = 12.0  # logarithm of seconds
    gap: tuple[float, float] = (10.2303 * 1.0225, 0.4871)  # of the logarithm of seconds, over the whole day
    longest_gap: float = 11.5
    day: tuple[float, float] = (8.1737, 3.9631)  # of half hours; what is beyond 24 hours is the next morning
    dawn: int = 11  # half hours after midnight at which a day's arrivals begin


PUBLISHED = Model()


def generate(jobs: int = 10_000, *, seed: int, nodes: int = 256, model: Model = PUBLISHED) -> Trace:
    """Draw a trace; equal arguments give equal traces."""
    rng = np.random.default_rng(seed)
    submit = np.floor(_arrivals(rng, jobs, model))
    procs = _sizes(rng, jobs, math.log2(nodes), model)
    run = np.maximum(1.0, np.floor(_run_times(rng, procs, model)))
    unknown = np.full(jobs, -1.0)
    columns = {"number": np.arange(1.0, jobs + 1), "submit": submit, "run": run, "procs": procs, "requested": unknown}
    columns |= dict.fromkeys(("memory", "user", "group", "executable"), unknown)
    note = {"Note": f"drawn from the Lublin-Feitelson model, seed {seed}", "MaxNodes": str(nodes)}
    return ordered(columns, name=f"lublin-{nodes}-{seed}", nodes=nodes, header=note)


def _sizes(rng: np.random.Generator, jobs: int, largest: float, model: Model) -> Array:
    kind = rng.random(jobs)
    small = rng.random(jobs) < model.small
    low = np.where(small, model.smallest, largest - model.middle)
    high = np.where(small, largest - model.middle, largest)
    size = rng.uniform(low, high)
    size = np.where(kind < model.serial + model.powers, np.rint(size), size)
    return np.where(kind < model.serial, 1, np.rint(np.exp2(size))).astype(np.int64)


def _run_times(rng: np.random.Generator, procs: Array, model: Model) -> Array:
    base, slope = model.short_share
    short = rng.random(len(procs)) < np.clip(base + slope * procs, 0.0, 1.0)
    (shape, scale), (long_shape, long_scale) = model.short, model.long
    return np.exp(_below(rng, np.where(short, shape, long_shape), np.where(short, scale, long_scale), model.longest))


def _arrivals(rng: np.random.Generator, jobs: int, model: Model) -> Array:
    """Add up gaps in a time that runs evenly, then give each moment its hour of the day."""
    shape, scale = model.gap
    even = np.cumsum(np.exp(_below(rng, np.full(jobs, shape), np.full(jobs, scale), model.longest_gap))) / HALF_HOUR
    passed = np.concatenate([[0.0], np.cumsum(_cycle(model))])  # until each half hour of a day; 48 at its end
    clock = np.interp(even % HALF_HOURS, passed, np.arange(HALF_HOURS + 1.0))
    return (even // HALF_HOURS * HALF_HOURS + clock) * HALF_HOUR


def _cycle(model: Model) -> Array:
    """Give the share of arrivals in each half hour from midnight, 1 on average: areas under a gamma density."""
    shape, scale = model.day
    edges = np.linspace(model.dawn - 0.5, model.dawn - 0.5 + HALF_HOURS, HALF_HOURS * GRAIN + 1)
    middle = (edges[:-1] + edges[1:]) / 2
    density = np.exp((shape - 1) * np.log(middle) - middle / scale)
    share = density.reshape(HALF_HOURS, GRAIN).sum(axis=1)
    return np.roll(share / share.mean(), model.dawn - 1)  # the first half hour of the day is number 1


def _below(rng: np.random.Generator, shape: Array, scale: Array, limit: float) -> Array:
    """Draw from gamma distributions, again where a value is above the limit."""
    drawn = rng.gamma(shape, scale)
    while (above := drawn > limit).any():
        drawn[above] = rng.gamma(shape[above], scale[above])
    return drawn
