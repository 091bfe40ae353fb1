"""The environment: a slot's number in, the next scene of waiting jobs and what the schedule cost out."""

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import gymnasium
import msgspec
import numpy as np
from gymnasium import spaces
from msgspec import Meta, Struct

from farfield.envs.jobs import lublin, rules, scores, swf
from farfield.envs.jobs import trace as traces
from farfield.envs.jobs.cluster import Cluster, Window, window
from farfield.envs.jobs.trace import Trace
from farfield.envs.jobs.views import EMPTY, FEATURES, SKIP, SLOTS, VIEWS, Crowd
from farfield.errors import ConfigError, nearest
from farfield.types import Array

Obs = dict[str, Array]


class Task(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked of a schedule, and what a policy sees of it."""

    part: Literal["all", "train", "held_out"] = "all"  # of the trace, from which windows are taken
    share: Annotated[float, Meta(gt=0, lt=1)] = 0.5  # of the trace that is for training
    objective: Literal["bounded_slowdown", "wait", "turnaround", "utilisation", "slowdown"] = "bounded_slowdown"
    paid: Literal["end", "start", "wait"] = "end"
    view: Literal["plain", "scaled"] = "plain"
    backfill: bool = False
    skip: bool = False  # the last slot is a choice: to start nothing
    jobs: Annotated[int, Meta(ge=1)] = traces.WINDOW  # of one episode
    crowd: tuple[Literal["shortest", "smallest", "oldest"], ...] = ("shortest", "smallest")
    trace_seed: Annotated[int, Meta(ge=0)] = 1  # of a trace that is drawn
    trace_jobs: Annotated[int, Meta(ge=1)] = 10_000


class Jobs(gymnasium.Env[Any, Any]):
    """Schedule the jobs of one window of a trace: each step starts the job in a slot as soon as it fits.

    An episode's rewards add up to minus the objective, whatever `paid` is: all of it at the `end`; each job's share
    when it is known, at its `start`; or while it grows, as jobs `wait`. See docs/jobs.md.
    """

    def __init__(self, trace: str | Trace = "lublin", **options: Any) -> None:
        try:
            task = msgspec.convert(options, Task)
        except msgspec.ValidationError as error:
            raise ConfigError(f"farfield/Jobs-v0: {error}; docs/jobs.md lists its options") from error
        if task.paid != "end" and task.objective not in scores.LINES:
            raise ConfigError(f"farfield/Jobs-v0: {task.objective} is known at the end only; use paid = 'end'")
        self.task, self.trace = task, open_trace(trace, seed=task.trace_seed, jobs=task.trace_jobs)
        self.starts = traces.starts(self.trace, task.part, share=task.share, jobs=task.jobs)
        self.observation_space = spaces.Dict(
            {"jobs": spaces.Box(0.0, 1.0, (SLOTS, FEATURES), np.float32), "action_mask": spaces.MultiBinary(SLOTS)}
        )
        self.action_space = spaces.Discrete(SLOTS)
        self._blank = np.tile(EMPTY, (SLOTS, 1))
        self._compared: tuple[str, ...] = ()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Begin a window: a random one, or that of `options["start"]`.

        `options["compare"]` names rules that are then played on the same window for the last step's info.
        """
        super().reset(seed=seed)
        asked = options or {}
        start = int(asked.get("start", self.starts[int(self.np_random.integers(len(self.starts)))]))
        self._compared = tuple(asked.get("compare", ()))
        self.begin(window(self.trace, start, self.task.jobs))
        return self._show(), {"start": start}

    def begin(self, jobs: Window) -> None:
        """Empty the machine and take this window."""
        self.jobs, self.cluster = jobs, Cluster(jobs, backfill=self.task.backfill)
        self._scene, self._crowd = VIEWS[self.task.view](jobs), Crowd(jobs, self.task.crowd)
        self._line = scores.line(self.task.objective, jobs) if self.task.objective in scores.LINES else None
        self._begun_cost = self._paid_cost = 0.0  # of the jobs that have started; of what was paid for

    def step(self, action: np.int64) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Start the job in a slot, however long it takes; an empty slot passes over all of them for a while."""
        slot, cluster = int(action), self.cluster
        begun = len(cluster.order)
        if slot < len(self._seen):
            cluster.start(int(self._seen[slot]))
        else:
            cluster.skip()
        over = cluster.left == 0
        return self._show(), self._pay(begun), over, False, self._sum_up() if over else {}

    def compare(self, *names: str) -> dict[str, float]:
        """Give what rules make of this window; they are played when asked for, never before."""
        for name in names:
            if name not in rules.RULES:
                raise ConfigError(f"unknown rule {name!r}; {nearest(name, rules.RULES)}")
        backfill = self.task.backfill
        schedules = {name: rules.play(self.jobs, rules.RULES[name], backfill=backfill) for name in names}
        return {name: scores.cost(self.task.objective, self.jobs, started) for name, started in schedules.items()}

    def _show(self) -> Obs:
        """Draw the scene: features of every slot, and the mask of those that hold a job."""
        cluster, features = self.cluster, self._blank.copy()
        queue, room = cluster.waiting, SLOTS - self.task.skip
        seen = queue if len(queue) <= room else self._crowd.choose(queue, room)
        if len(seen):
            self._scene.show(cluster, seen, features)
        mask = np.zeros(SLOTS, np.int8)
        mask[: len(seen)] = 1
        if self.task.skip:
            may = not cluster.stuck and cluster.left > 0
            features[-1], mask[-1] = (SKIP, 1) if may else (1.0, 0)
        self._seen = seen
        return {"jobs": features, "action_mask": mask}

    def _pay(self, begun: int) -> float:
        """Give what the jobs have cost since the last step; the order has `begun` jobs from before it."""
        cluster, line = self.cluster, self._line
        if self.task.paid == "end" or line is None:
            return 0.0 if cluster.left else -self.cost
        submit = self.jobs.submit
        new = np.array(cluster.order[begun:], np.int64)
        if len(new):
            started = np.array([cluster.started[job] for job in new.tolist()])
            self._begun_cost += float(line.at(new, started - submit[new]).sum())
        total = self._begun_cost
        if self.task.paid == "wait":
            queue = cluster.waiting
            total += float(line.at(queue, cluster.now - submit[queue]).sum())
        paid, self._paid_cost = self._paid_cost, total
        return (paid - total) / len(self.jobs)

    @property
    def cost(self) -> float:
        """Give the objective of a window that is over."""
        return scores.cost(self.task.objective, self.jobs, np.array(self.cluster.started))

    def _sum_up(self) -> dict[str, Any]:
        info: dict[str, Any] = {"start": self.jobs.first, "cost": self.cost}
        return info | {"compare": self.compare(*self._compared)} if self._compared else info


def open_trace(trace: str | Trace, *, seed: int = 1, jobs: int = 10_000) -> Trace:
    """Give a trace by its name: `lublin` is drawn, anything else is a file in the Standard Workload Format."""
    if isinstance(trace, Trace):
        return trace
    if trace == "lublin":
        return _drawn(seed, jobs)
    path = Path(trace).resolve()
    return _read(path, path.stat().st_mtime_ns if path.is_file() else 0)


@lru_cache(maxsize=8)  # lanes of one process share their trace
def _drawn(seed: int, jobs: int) -> Trace:
    return lublin.generate(jobs, seed=seed)


@lru_cache(maxsize=4)
def _read(path: Path, changed: int) -> Trace:
    return swf.read(path)
