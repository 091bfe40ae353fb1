"""Fragments in, versions out: the loop of the process that learns, and what it needs to continue exactly."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from math import isfinite
from typing import Any, NamedTuple, Protocol

import numpy as np
from msgspec import Struct, structs

from farfield.errors import FarfieldError
from farfield.learning.feeds import Batch, Marks
from farfield.protocols import Algorithm
from farfield.types import Array, Columns, Fragment, Metrics, Weights

RETURNS = 100  # episodes that "the return" is a mean of


class Feed(Protocol):
    """How a learner reads: feeds.FreshFeed and replay.ReplayFeed have this shape."""

    dropped: int
    off_policy: int
    settled: list[tuple[str, str, int]]

    def put(self, fragment: Fragment) -> None:
        """Take a fragment that was never seen."""
        ...

    def take(self, newest: int) -> Batch | None:
        """Give the next batch, or nothing yet."""
        ...

    def learned(self, priorities: Array | None) -> None:
        """Hear what the last batch was worth."""
        ...

    def sync(self) -> None:
        """Make durable what `state` refers to."""
        ...

    def state(self) -> Columns:
        """Give everything that an exact resume needs."""
        ...

    def restore(self, state: Columns) -> None:
        """Continue from it."""
        ...


class Source(Protocol):
    """Where fragments come from: lanes in this process, or a topic that actors write to."""

    def arrive(self, wait: bool) -> list[Fragment]:
        """Give what has come; with `wait`, let some time pass for it (or step the lanes)."""
        ...

    def state(self) -> Columns:
        """Give everything that an exact resume needs."""
        ...

    def restore(self, state: Columns) -> None:
        """Continue from it."""
        ...


class Update(NamedTuple):
    """One finished update: what it made, of what."""

    number: int
    version: int
    weights: Weights
    row: dict[str, Any]  # for people: metrics, returns, rates
    names: tuple[tuple[str, str, int], ...]
    settled: dict[str, int]


class Counters(Struct):
    """What a learner counts over all its attempts."""

    updates: int = 0
    version: int = 0
    steps: int = 0
    episodes: int = 0
    duplicates: int = 0
    best: float | None = None  # the best mean return, and after how many steps it came
    best_at: int = 0
    seconds: float = 0.0  # of learning, for people: never compared


def _check_finite(update: int, row: dict[str, Any]) -> None:
    """Refuse to go on from numbers that nothing good can follow, before they reach a version or a checkpoint."""
    lost = [name for name, value in row.items() if name.startswith(("loss", "grad_norm")) and not isfinite(value)]
    if lost:
        raise FarfieldError(
            f"update {update}: {lost[0]} is {row[lost[0]]}: learning diverged, and the update was thrown away; resume "
            "from the last checkpoint with --set algorithm.learning_rate lower, or with smaller rewards"
        )


class Learner:
    """Turns fragments into versions; the caller takes `updates()` one by one and may stop between any two."""

    def __init__(
        self, algorithm: Algorithm, feed: Feed, source: Source, *, attempt: int,
        enough: Callable[[dict[str, Any]], Any] = lambda row: False, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.algorithm, self.feed, self.source, self.attempt = algorithm, feed, source, attempt
        self.counters = Counters()
        self.marks = Marks()  # fragments that came
        self.used = Marks()  # fragments that were used or counted as not used
        self.returns: deque[float] = deque(maxlen=RETURNS)
        self.hold, self.quiet, self.enough = False, True, enough
        self._numbered: list[tuple[int, int]] = []  # (version, updates) where each attempt began
        self._fresh: tuple[list[float], list[int]] = ([], [])  # episodes finished since the last update
        self._clock = clock
        self._first: tuple[float, int] | None = None  # when the first update was done: all before it is start-up

    def updates(self) -> Iterator[Update | None]:
        """Learn for ever. What an update made is given while the next one runs, if its batch is there already.

        Gives None when there was nothing to do for a moment. While `hold` is set no update is begun
        before the last one was given, so that `quiet` becomes true and `state` can be taken; a row that is
        `enough` sets it.
        """
        begun = self._clock() - self.counters.seconds
        done: Update | None = None
        while True:
            if done is not None and not self.hold:
                self._admit(wait=False)
            batch = None if done is not None and self.hold else self._take()
            if batch is None:
                self.quiet = True
                if done is None:
                    self._admit(wait=True)
                yield done
                done = None
                continue
            self.quiet = False
            metrics = self.algorithm.learn(batch.columns)
            if done is not None:
                yield done
            done = self._finish(batch, metrics, begun)
            self.hold = self.hold or self.enough(done.row)

    def _take(self) -> Batch | None:
        batch = self.feed.take(self.counters.updates)
        names = self.feed.settled if batch is None else (*batch.names, *self.feed.settled)
        for _, stream, seq in names:
            self.used.add(stream, seq)
        self.feed.settled.clear()
        return batch

    def _admit(self, *, wait: bool) -> None:
        for fragment in self.source.arrive(wait):
            if not self.marks.add(fragment.stream, fragment.seq):
                self.counters.duplicates += 1
                continue
            returns = fragment.columns.get("episode/return")
            if returns is not None and len(returns) and not fragment.source:  # of the policy's own episodes
                self.returns.extend(returns.tolist())
                self._fresh[0].extend(returns.tolist())
                self._fresh[1].extend(fragment.columns["episode/length"].tolist())
            self.feed.put(self._aged(fragment))

    def _finish(self, batch: Batch, metrics: Metrics, begun: float) -> Update:
        """Wait for the arithmetic, and account for it."""
        weights = self.algorithm.weights()
        priorities = getattr(self.algorithm, "priorities", None)
        self.feed.learned(priorities() if priorities else None)
        counters = self.counters
        counters.updates += 1
        counters.version += 1
        counters.steps += batch.steps
        counters.episodes += len(self._fresh[0])
        now = self._clock()
        counters.seconds = now - begun
        if self._first is None:
            self._first = (now, counters.steps)
        mean = self.mean()
        if mean is not None and (counters.best is None or mean > counters.best):
            counters.best, counters.best_at = mean, counters.steps
        row = self._row(batch, metrics)
        _check_finite(counters.updates, row)
        self._fresh = ([], [])
        return Update(counters.updates, counters.version, weights, row, batch.names, dict(self.used.below))

    def begin(self, version: int) -> None:
        """Number versions from here on, which may leave out numbers that an earlier attempt gave away."""
        self.counters.version = version
        self._numbered.append((version, self.counters.updates))

    def _aged(self, fragment: Fragment) -> Fragment:
        """Give a fragment whose versions are the updates that they had seen."""
        columns = fragment.columns
        if "version" in columns:
            columns = columns | {"version": np.array([self._age(int(version)) for version in columns["version"]])}
        return structs.replace(fragment, version=self._age(fragment.version), columns=columns)

    def _age(self, version: int) -> int:
        """Give the updates that a version had seen: numbers that were left out do not count as lag."""
        last = None
        for first, updates in reversed(self._numbered):
            if version >= first:
                return updates + version - first if last is None else min(updates + version - first, last)
            last = updates
        return 0

    def _row(self, batch: Batch, metrics: Metrics) -> dict[str, Any]:
        counters = self.counters
        row: dict[str, Any] = {
            "update": counters.updates,
            "attempt": self.attempt,
            "version": counters.version,
            "steps": counters.steps,
            "seconds": counters.seconds,
            "steps_per_second": self._rate(),
            "episodes": counters.episodes,
            "returns": self._fresh[0],
            "lengths": self._fresh[1],
            "return_mean": self.mean(),
            "lag": batch.lag,
            "lag_max": batch.lag_max,
            "dropped": self.feed.dropped,
            "off_policy": self.feed.off_policy,
        }
        numbers = getattr(self.source, "numbers", None)  # of late rewards, where they can come
        if numbers:
            row |= numbers()
        return row | {name: float(value) for name, value in metrics.items()} | row  # the learner's own names win

    def _rate(self) -> float:
        """Give the steps per second since this attempt's first update; of one alone, compiling included."""
        began, steps = self._first or (0.0, 0)
        took = self._clock() - began
        if self.counters.steps == steps:
            return steps / self.counters.seconds if self.counters.seconds else 0.0
        return (self.counters.steps - steps) / took if took > 0 else 0.0

    def mean(self) -> float | None:
        """Give the mean return of the last episodes, once there are enough of them."""
        return float(np.mean(self.returns)) if len(self.returns) == RETURNS else None

    def state(self) -> tuple[Columns, dict[str, Any]]:
        """Give all that an exact resume needs, between two updates: arrays, and facts as JSON."""
        parts = {"algorithm": self.algorithm.state(), "feed": self.feed.state(), "source": self.source.state()}
        columns = {f"{part}/{name}": value for part, state in parts.items() for name, value in state.items()}
        columns["returns"] = np.asarray(self.returns, np.float64)
        columns["fresh/returns"] = np.asarray(self._fresh[0], np.float64)
        columns["fresh/lengths"] = np.asarray(self._fresh[1], np.int64)
        counters = self.counters
        facts = {
            "counters": {name: getattr(counters, name) for name in counters.__struct_fields__},
            "marks": self.marks.facts(),
            "used": self.used.facts(),
            "numbered": self._numbered,
        }
        return columns, facts

    def restore(self, columns: Columns, facts: dict[str, Any]) -> None:
        """Continue from `state` of an equal learner."""
        for part, target in (("algorithm", self.algorithm), ("feed", self.feed), ("source", self.source)):
            prefix = f"{part}/"
            names = [name for name in columns if name.startswith(prefix)]
            target.restore({name.removeprefix(prefix): columns[name] for name in names})
        self.returns = deque(columns["returns"].tolist(), maxlen=RETURNS)
        self._fresh = (columns["fresh/returns"].tolist(), columns["fresh/lengths"].tolist())
        self.counters = Counters(**facts["counters"])
        self.marks, self.used = Marks(**facts["marks"]), Marks(**facts["used"])
        self._numbered = [(int(first), int(updates)) for first, updates in facts["numbered"]]
