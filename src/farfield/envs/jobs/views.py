"""A cluster in; the jobs that a policy may choose from, one slot each, and their 8 features out.

`plain` has the features that RLScheduler and RL4Sys define. `scaled` tells the same story in logarithms, and what a
slot's job would do to the machine, instead of columns that are constant on most traces (docs/jobs.md).
"""

from collections.abc import Callable, Sequence

import numpy as np

from farfield.envs.jobs.cluster import Cluster, Window
from farfield.envs.jobs.trace import Trace
from farfield.types import Array

SLOTS, FEATURES = 128, 8
LONG_WAIT = 43_200.0  # seconds that count as the longest wait
MOST, LEAST = 1 - 1e-5, 1e-5
EMPTY = np.array([0, 1, 1, 1, 1, 1, 1, 0], np.float32)
SKIP = np.array([1, 1, 1, 1, 1, 1, 1, 0], np.float32)
WEEK = 604_800.0

Order = Callable[[Window], Array]
ORDERS: dict[str, Order] = {  # of the jobs from which a crowded view takes in turn
    "shortest": lambda jobs: jobs.requested,
    "smallest": lambda jobs: jobs.trace.procs[jobs.part],
    "oldest": lambda jobs: jobs.submit,
}


class Crowd:
    """Chooses who is seen when more jobs wait than there are slots: the first of each order in turn, nobody twice."""

    def __init__(self, jobs: Window, orders: Sequence[str]) -> None:
        # The rank of every job in every order; equal ones are in the order of their arrival.
        found = [np.argsort(ORDERS[name](jobs), kind="stable") for name in orders]
        self._ranks = np.empty((len(found), len(jobs)), np.int16)
        for ranks, order in zip(self._ranks, found, strict=True):
            ranks[order] = np.arange(len(jobs))

    def choose(self, queue: Array, room: int) -> Array:
        """Give the jobs that are seen, in the order in which they were taken."""
        turns = np.empty((len(self._ranks), len(queue)), np.int16)
        lists = len(turns)
        for number, ranks in enumerate(self._ranks):
            turns[number, ranks[queue].argsort(kind="stable")] = np.arange(number, lists * len(queue), lists)
        return queue[turns.min(axis=0).argsort(kind="stable")[:room]]


class Plain:
    """The features of the original: wait, run time, processors, memory, user, group, executable, fits now."""

    def __init__(self, jobs: Window) -> None:
        trace = jobs.trace
        table = np.zeros((len(jobs), FEATURES), np.float32)
        table[:, 1] = jobs.requested / longest(trace)
        table[:, 2] = trace.procs[jobs.part] / trace.processors
        np.minimum(table, MOST, out=table)
        for place, column in enumerate((trace.memory, trace.user, trace.group, trace.executable), start=3):
            table[:, place] = _shares(column, jobs.part)
        self._table, self._submit, self._need = table, jobs.submit, jobs.need

    def show(self, cluster: Cluster, seen: Array, features: Array) -> None:
        """Write the features of the jobs that are seen into the first rows."""
        count = len(seen)
        rows = features[:count]
        self._table.take(seen, 0, rows)
        rows[:, 0] = np.minimum((cluster.now - self._submit[seen]) * (1 / LONG_WAIT), MOST)
        rows[:, 7] = np.where(self._need[seen] <= cluster.free, MOST, LEAST)


class Scaled:
    """Wait, run time, processors, slowdown so far, time until it fits, what is free then, queue, fits now."""

    def __init__(self, jobs: Window) -> None:
        table = np.zeros((len(jobs), FEATURES), np.float32)
        table[:, 1] = np.log(jobs.requested) / np.log(longest(jobs.trace))
        table[:, 2] = np.log2(jobs.need) / max(1.0, np.log2(jobs.trace.nodes))
        np.clip(table, 0.0, MOST, out=table)
        self._table, self._submit, self._need, self._requested = table, jobs.submit, jobs.need, jobs.requested
        self._shortest = np.maximum(jobs.requested, 10.0)
        self._needs = jobs.need.tolist()

    def show(self, cluster: Cluster, seen: Array, features: Array) -> None:
        """Write the features of the jobs that are seen into the first rows."""
        rows, need, nodes = features[: len(seen)], self._need[seen], cluster.nodes
        self._table.take(seen, 0, rows)
        wait = cluster.now - self._submit[seen]
        started, requested, needs = cluster.started, self._requested, self._needs
        ends = sorted((started[job] + float(requested[job]), needs[job]) for _, job in cluster.running)
        free = np.cumsum([cluster.free, *(end[1] for end in ends)])
        place = free.searchsorted(need)  # the end after which the job fits; 0: now
        delays = np.log1p(np.maximum(np.array([cluster.now, *(end[0] for end in ends)]) - cluster.now, 0.0)) / np.log(
            WEEK
        )
        rows[:, 0] = np.log1p(wait) / np.log(WEEK)
        rows[:, 3] = np.log1p(wait / self._shortest[seen]) / np.log(WEEK)
        rows[:, 4] = delays[place]
        rows[:, 5] = (free[place] - need) / nodes
        rows[:, 6] = len(cluster.waiting) / SLOTS
        rows[:, 7] = np.where(place == 0, MOST, LEAST)
        np.minimum(rows, MOST, out=rows)


VIEWS = {"plain": Plain, "scaled": Scaled}


def longest(trace: Trace) -> float:
    """Give the longest run time of the whole trace."""
    return float(trace.run.max())


def _shares(column: Array, part: slice) -> Array:
    """Scale numbers by the largest one of the trace; 1 where a number is not known."""
    most = float(column.max())
    values = column[part]
    return np.where((values < 0) | (most <= 0), 1.0, np.minimum(values / max(most, 1.0), MOST))
