"""A window of jobs in; a machine on which time passes until the job that was chosen can start, and start times, out."""

import heapq
import math
from dataclasses import dataclass

import numpy as np

from farfield.envs.jobs.trace import WINDOW, Trace
from farfield.types import Array

PAUSE = 360.0  # seconds that passing over all jobs lasts at most


@dataclass(frozen=True, eq=False)
class Window:
    """Consecutive jobs of a trace, numbered from 0 in the order of their arrival."""

    trace: Trace
    first: int
    submit: Array
    run: Array
    requested: Array
    need: Array  # whole nodes

    def __len__(self) -> int:
        return len(self.submit)

    @property
    def part(self) -> slice:
        """Say where its jobs are in the trace."""
        return slice(self.first, self.first + len(self))


def window(trace: Trace, first: int, jobs: int = WINDOW) -> Window:
    """Cut a window out of a trace."""
    part = slice(first, first + jobs)
    submit, run, requested = (
        np.asarray(column[part], np.float64) for column in (trace.submit, trace.run, trace.requested)
    )
    return Window(trace, first, submit, run, requested, trace.need[part])


class Cluster:
    """An empty machine and the first job of a window; `start` is told which job is next.

    Events come one at a time: a job arrives or a job ends, whichever is earlier, and at the same moment the arrival.
    """

    def __init__(self, jobs: Window, *, backfill: bool = False) -> None:
        self.jobs, self._backfill = jobs, backfill
        self._submit, self._run, self._need = jobs.submit.tolist(), jobs.run.tolist(), jobs.need.tolist()
        self.now: float = self._submit[0]
        self.free = self.nodes = jobs.trace.nodes
        self.started: list[float] = [-1.0] * len(jobs)
        self.left = len(jobs)  # jobs that have not started
        self.order: list[int] = []  # in which jobs started
        self.running: list[tuple[float, int]] = []  # a heap of (end, job)
        self._queue = np.empty(len(jobs), np.int64)
        self._waiting, self._arrived = 0, 0
        self._arrive()

    @property
    def waiting(self) -> Array:
        """Give the jobs that wait, in the order of arrival; it is good until time passes."""
        return self._queue[: self._waiting]

    @property
    def stuck(self) -> bool:
        """Say whether nothing would happen by itself: nobody runs and nobody will come."""
        return not self.running and self._arrived == len(self.jobs)

    def start(self, job: int) -> None:
        """Start a waiting job as soon as it fits, then wait for somebody to wait."""
        need = self._need[job]
        if need > self.free:
            reserved = self.earliest(need) if self._backfill else 0.0
            while need > self.free:
                if self._backfill:
                    self._fill(job, reserved)
                self._happen()
        self._begin(job)
        while not self._waiting and self._arrived < len(self.jobs):
            self._happen()

    def skip(self) -> None:
        """Start nothing: go to the next event, or on by `PAUSE` when that is sooner."""
        if self._next() > self.now + PAUSE:
            self.now += PAUSE
        else:
            self._happen()

    def earliest(self, need: int) -> float:
        """Estimate, from the run times that were requested, when so many nodes are free."""
        free, requested = self.free, self.jobs.requested
        for end, job in sorted((self.started[job] + float(requested[job]), job) for _, job in self.running):
            free += self._need[job]
            if free >= need:
                return end
        return self.now

    def _fill(self, chosen: int, until: float) -> None:
        """Start, in the order of arrival, jobs that fit now and should be over before the chosen job's turn."""
        jobs, queue = self.jobs, self.waiting
        fitting = (jobs.need[queue] <= self.free) & (self.now + jobs.requested[queue] < until) & (queue != chosen)
        for job in queue[fitting].tolist():
            if self._need[job] <= self.free:
                self._begin(job)

    def _begin(self, job: int) -> None:
        count = self._waiting
        place = int(self._queue[:count].searchsorted(job))  # jobs wait in the order of their numbers
        self._queue[place : count - 1] = self._queue[place + 1 : count]
        self._waiting = count - 1
        self.left -= 1
        self.order.append(job)
        self.started[job] = self.now
        self.free -= self._need[job]
        heapq.heappush(self.running, (self.now + self._run[job], job))

    def _next(self) -> float:
        """Give the time of the next event; never, if there is none."""
        arrival = self._submit[self._arrived] if self._arrived < len(self._submit) else math.inf
        return min(arrival, self.running[0][0]) if self.running else arrival

    def _happen(self) -> None:
        """Let the next event happen."""
        arrived = self._arrived
        if arrived < len(self._submit) and (not self.running or self._submit[arrived] <= self.running[0][0]):
            self.now = self._submit[arrived]
            self._arrive()
        else:
            self.now, job = heapq.heappop(self.running)
            self.free += self._need[job]

    def _arrive(self) -> None:
        self._queue[self._waiting] = self._arrived
        self._waiting += 1
        self._arrived += 1
