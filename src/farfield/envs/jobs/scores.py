"""Start times of a window's jobs in, what the schedule costs out; as one number, or as it grows while jobs wait."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from farfield.envs.jobs.cluster import Window
from farfield.errors import ConfigError, nearest
from farfield.types import Array

SHORT = 10.0  # seconds: a shorter job's slowdown is bounded as if it ran so long


class Line(NamedTuple):
    """A job's cost is `per_second` · wait + `begin`, and at least `floor`."""

    begin: Array
    per_second: Array
    floor: float

    def at(self, jobs: Array | slice, wait: Array) -> Array:
        """Give the costs of some jobs that have waited so long."""
        return np.maximum(wait * self.per_second[jobs] + self.begin[jobs], self.floor)


def bounded_slowdown(run: Array) -> Line:
    """Cost max(1, (wait + run) / max(run, 10 s))."""
    length = np.maximum(run, SHORT)
    return Line(run / length, 1 / length, 1.0)


def slowdown(run: Array) -> Line:
    """Cost (wait + run) / run."""
    return Line(np.ones_like(run), 1 / run, 0.0)


def wait(run: Array) -> Line:
    """Cost the seconds until the start."""
    return Line(np.zeros_like(run), np.ones_like(run), 0.0)


def turnaround(run: Array) -> Line:
    """Cost the seconds until the end."""
    return Line(run, np.ones_like(run), 0.0)


LINES = {"bounded_slowdown": bounded_slowdown, "wait": wait, "turnaround": turnaround, "slowdown": slowdown}
OBJECTIVES: Mapping[str, str] = {
    "bounded_slowdown": "mean of max(1, (wait + run) / max(run, 10 s))",
    "wait": "mean seconds until the start",
    "turnaround": "mean seconds until the end",
    "utilisation": "minus the share of processor time that was used, from the first arrival to the last end",
    "slowdown": "mean of (wait + run) / run",
}


def line(objective: str, jobs: Window) -> Line:
    """Give the cost of each job by how long it waits; utilisation has none, being about all jobs together."""
    if objective not in LINES:
        raise ConfigError(f"{objective!r} is not a cost of single jobs; {nearest(objective, LINES)}")
    return LINES[objective](jobs.run)


def cost(objective: str, jobs: Window, started: Array) -> float:
    """Give what a whole schedule costs: the lower, the better."""
    if objective not in OBJECTIVES:
        raise ConfigError(f"unknown objective {objective!r}; {nearest(objective, OBJECTIVES)}")
    if objective == "utilisation":
        used = float((jobs.run * jobs.need).sum())
        return -used / (jobs.trace.nodes * float((started + jobs.run).max() - jobs.submit[0]))
    return float(line(objective, jobs).at(slice(None), started - jobs.submit).mean())
