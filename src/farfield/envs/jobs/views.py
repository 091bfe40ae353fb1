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
HOUR, PER_WEEK = 3600.0, 1 / np.log(604_800.0)

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
    """Wait, run time, processors, slowdown so far, time until it fits, what is free then, pressure, fits now."""

    def __init__(self, jobs: Window) -> None:
        table = np.zeros((len(jobs), FEATURES), np.float32)
        table[:, 1] = np.log(jobs.requested) / max(1.0, np.log(longest(jobs.trace)))
        table[:, 2] = np.log2(jobs.need) / max(1.0, np.log2(jobs.trace.nodes))
        np.clip(table, 0.0, MOST, out=table)
        self._table, self._submit, self._need = table, jobs.submit, jobs.need
        self._requested, self._needs = jobs.requested.tolist(), jobs.need.tolist()
        self._pressure = HOUR / np.maximum(jobs.requested, 10.0)  # slowdown that an hour adds

    def show(self, cluster: Cluster, seen: Array, features: Array) -> None:
        """Write the features of the jobs that are seen into the first rows."""
        rows, need, now = features[: len(seen)], self._need[seen], cluster.now
        self._table.take(seen, 0, rows)
        free, delays = self._forecast(cluster)
        place = free.searchsorted(need)  # the end after which a job fits; 0: now
        wait = now - self._submit[seen]
        rows[:, 0] = np.log1p(wait) * PER_WEEK
        rows[:, 3] = np.log1p(wait * self._pressure[seen] / HOUR) * PER_WEEK
        rows[:, 4] = delays[place]
        rows[:, 5] = (free[place] - need) / cluster.nodes
        rows[:, 6] = np.log1p(self._pressure[cluster.waiting].sum()) * PER_WEEK
        rows[:, 7] = np.where(place == 0, MOST, LEAST)
        np.minimum(rows, MOST, out=rows)

    def _forecast(self, cluster: Cluster) -> tuple[Array, Array]:
        """Give the nodes that are free now and after each end, if jobs run as long as requested, and when that is."""
        started, requested, needs, now = cluster.started, self._requested, self._needs, cluster.now
        ends = sorted((started[job] + requested[job], needs[job]) for _, job in cluster.running)
        free = np.cumsum([cluster.free, *(need for _, need in ends)])
        return free, np.log1p([0.0, *(max(0.0, end - now) for end, _ in ends)]) * PER_WEEK


VIEWS = {"plain": Plain, "scaled": Scaled}


def longest(trace: Trace) -> float:
    """Give the longest run time of the whole trace."""
    return float(trace.run.max())


def _shares(column: Array, part: slice) -> Array:
    """Scale numbers by the largest one of the trace; 1 where a number is not known."""
    most = float(column.max())
    values = column[part]
    return np.where((values < 0) | (most <= 0), 1.0, np.minimum(values / max(most, 1.0), MOST))
