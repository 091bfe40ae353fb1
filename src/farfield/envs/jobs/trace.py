"""What jobs want and when in; a Trace, the machine that ran it, and windows of consecutive jobs out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from farfield.errors import ConfigError
from farfield.types import Array

WINDOW = 256  # jobs of one episode
PARTS = ("all", "train", "held_out")


@dataclass(frozen=True, eq=False)
class Trace:
    """Jobs in the order in which they were submitted; one row each, -1 where something is not known.

    A job takes whole nodes of `per_node` processors. `requested` is the run time that its owner asked for, `run` the
    one that it had.
    """

    name: str
    number: Array  # the job's id in its file
    submit: Array  # seconds
    run: Array  # seconds
    procs: Array
    requested: Array  # seconds
    memory: Array
    user: Array
    group: Array
    executable: Array
    nodes: int
    per_node: int = 1
    header: Mapping[str, str] = field(default_factory=dict)
    left_out: int = 0  # jobs of the file that never ran or that the machine cannot hold

    def __len__(self) -> int:
        return len(self.submit)

    @property
    def processors(self) -> int:
        """Count those of the whole machine."""
        return self.nodes * self.per_node

    @property
    def need(self) -> Array:
        """Give the whole nodes that each job takes."""
        return -(-self.procs // self.per_node)

    @property
    def load(self) -> float:
        """Give the work that arrives, relative to what the machine can do until the last arrival."""
        return float((self.run * self.procs).sum() / (self.processors * (self.submit[-1] - self.submit[0])))


def ordered(columns: Mapping[str, Array], *, name: str, nodes: int, per_node: int = 1, **more: Any) -> Trace:
    """Sort columns by submit time (then id), fill in what a schedule needs, and leave out what cannot run."""
    run = np.where(columns["run"] < 0, 10, columns["run"])
    requested = np.where(columns["requested"] <= 0, run, columns["requested"])
    usable = (run > 0) & (columns["procs"] > 0) & (columns["procs"] <= nodes * per_node)
    order = np.lexsort((columns["number"], columns["submit"]))
    order = order[usable[order]]
    if not len(order):
        raise ConfigError(f"trace {name!r} has no job that a machine of {nodes} × {per_node} processors can run")
    kept = {key: values[order] for key, values in (dict(columns) | {"run": run, "requested": requested}).items()}
    return Trace(name, **kept, nodes=nodes, per_node=per_node, left_out=int((~usable).sum()), **more)


def starts(trace: Trace, part: str = "all", *, share: float = 0.5, jobs: int = WINDOW) -> range:
    """Give the jobs at which a window may begin; windows of `train` share no job with those of `held_out`.

    Training has the first `share` of the trace. As in the original, nothing begins in the first 256 jobs.
    """
    if part not in PARTS:
        raise ConfigError(f"part = {part!r} of a trace; expected one of {', '.join(PARTS)}")
    cut = int(len(trace) * share)
    first = cut if part == "held_out" else max(0, min(WINDOW, len(trace) - jobs))
    end = cut if part == "train" else len(trace)
    if end - jobs < first:
        raise ConfigError(
            f"part = {part!r} of trace {trace.name!r} has {end - first} jobs, but a window has {jobs}; "
            "use a longer trace, another share or fewer jobs"
        )
    return range(first, end - jobs + 1)


def apart(found: range, count: int, *, jobs: int = WINDOW) -> list[int]:
    """Choose `count` windows that are evenly spread; those that share no job come first if there is room for them."""
    room = 1 + (len(found) - 1) // jobs
    if count <= room:
        return [found[0] + k * ((len(found) - 1) // max(1, count - 1)) for k in range(count)]
    return [found[round(k * (len(found) - 1) / (count - 1))] for k in range(count)]
