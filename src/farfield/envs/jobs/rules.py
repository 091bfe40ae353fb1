"""Waiting jobs in, the order in which well-known rules would start them out; and whole windows played by a rule.

Of several jobs with the lowest score the one that came first is started. All rules know only what a scheduler knows:
run times are those requested.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from farfield.envs.jobs.cluster import Cluster, Window
from farfield.types import Array

Score = Callable[[float, Array, Array, Array], Array]  # now, submit, requested, processors -> lowest is next


class Rule(NamedTuple):
    """How jobs are scored; `steady` when a score does not change while a job waits."""

    score: Score
    steady: bool


def fcfs(now: float, submit: Array, requested: Array, procs: Array) -> Array:
    """First come, first served."""
    return submit


def sjf(now: float, submit: Array, requested: Array, procs: Array) -> Array:
    """Shortest job first."""
    return requested


def f1(now: float, submit: Array, requested: Array, procs: Array) -> Array:
    """The best function that Carastan-Santos and de Camargo (2017) found by regression over simulated schedules."""
    return np.log10(np.maximum(requested, 0.1)) * procs + 870.0 * np.log10(np.maximum(submit, 0.1))


def wfp3(now: float, submit: Array, requested: Array, procs: Array) -> Array:
    """Jobs that have waited long for what they ask, large ones before small ones (Tang et al., 2009)."""
    return -(((now - submit) / requested) ** 3) * procs


def unicep(now: float, submit: Array, requested: Array, procs: Array) -> Array:
    """Jobs that have waited long and are small and short (Tang et al., 2009); serial ones, of log2 0, before all."""
    return -(now - submit) / (np.maximum(np.log2(procs), 1e-15) * requested)


RULES: Mapping[str, Rule] = {
    "fcfs": Rule(fcfs, True),
    "sjf": Rule(sjf, True),
    "f1": Rule(f1, True),
    "wfp3": Rule(wfp3, False),
    "unicep": Rule(unicep, False),
}


def play(jobs: Window, rule: Rule, *, backfill: bool = False) -> Array:
    """Give the start times of a window's jobs under a rule that sees the whole queue."""
    cluster = Cluster(jobs, backfill=backfill)
    submit, requested, procs = jobs.submit, jobs.requested, jobs.trace.procs[jobs.part]
    steady = rule.score(cluster.now, submit, requested, procs) if rule.steady else None
    while cluster.left:
        queue = cluster.waiting
        if steady is not None:
            scores = steady[queue]
        else:
            scores = rule.score(cluster.now, submit[queue], requested[queue], procs[queue])
        cluster.start(int(queue[scores.argmin()]))
    return np.array(cluster.started)
