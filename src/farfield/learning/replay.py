"""Fragments in, the same steps again and again out: an index over a fragment log that says which steps make a batch."""

from collections import deque
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta, Struct

from farfield.errors import ConfigError, CorruptError
from farfield.learning.feeds import Batch
from farfield.learning.fragmentlog import FragmentLog
from farfield.learning.ring import Ring
from farfield.learning.sumtree import SumTree
from farfield.types import Array, Columns, Fragment, Kind, Name, Spec

SMALLEST = 1e-6  # added to priorities, so that every step can come again


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much is kept, and how often it is learned from."""

    capacity: Annotated[int, Meta(ge=1, description="rows that are kept: steps, resets and last observations")] = (
        100_000
    )
    warmup: Annotated[int, Meta(ge=0, description="steps to collect before the first batch")] = 1_000
    ratio: Annotated[float, Meta(gt=0, description="how many steps to sample for each new one")] = 8.0
    prioritised: Annotated[bool, Meta(description="sample in proportion to the last error instead of evenly")] = False
    alpha: Annotated[float, Meta(ge=0, le=1, description="how much priorities count: 0 not at all, 1 in full")] = 0.6
    beta: Annotated[
        float, Meta(ge=0, le=1, description="how much of that bias weights undo at first; 1 at the end")
    ] = 0.4
    beta_steps: Annotated[int, Meta(ge=1, description="new steps after which beta is 1")] = 100_000
    segment_bytes: Annotated[int, Meta(ge=1, description="size of one file of the log")] = 64 << 20
    checkpoints: Annotated[int, Meta(ge=1, description="how many checkpoints back the log reaches")] = 3


class Entry(NamedTuple):
    """A fragment whose rows are in the ring, or that no batch has named yet."""

    position: int  # in the log
    base: int  # number of its first row
    stop: int  # and of the one after its last step
    name: Name
    steps: int


class Counters(Struct):
    """What the feed counts."""

    put: int = 0  # valid steps, all
    new: int = 0  # valid steps of fresh fragments
    eligible: int = 0  # rows at which a window can begin
    batches: int = 0
    owed: float = 0.0  # steps that may be sampled
    top: float = 1.0  # the highest priority so far, which new rows get


class ReplayFeed:
    """Keeps steps and samples windows of them; what it gives depends on nothing but the seed and the order of calls."""

    def __init__(self, config: Config, *, spec: Spec, steps: int, lanes: int, folder: Path, seed: int) -> None:
        if config.warmup > config.capacity:
            raise ConfigError(
                f"feed.warmup = {config.warmup} steps never fit into feed.capacity = {config.capacity}; lower the first"
            )
        self.config, self.steps, self.lanes = config, steps, lanes
        self.dropped = self.off_policy = 0  # nothing is ever too old, and whoever decided can be learned from
        self.settled: list[Name] = []  # nothing is owed for them, so an actor need not wait
        self._spec, self._seed = spec, seed
        self._summed = [field for field in spec.observations if field.kind is Kind.BOX and not field.image]
        self._log = FragmentLog(folder, segment_bytes=config.segment_bytes)
        self._kept: deque[int] = deque(maxlen=config.checkpoints)  # where the log began at the last checkpoints
        self._begin()

    def put(self, fragment: Fragment, fresh: bool = True) -> None:
        """Keep a fragment; what is not fresh is learned from, but neither counted nor named nor summed."""
        entry = self._insert(fragment, self._log.append(fragment))
        self._evict()
        counters = self._counters
        counters.put += entry.steps
        if not fresh:
            return
        counters.new += entry.steps
        counters.owed += self.config.ratio * min(entry.steps, max(0, counters.put - self.config.warmup))
        self._pending.append(entry)
        self._sum(fragment.columns)

    def take(self, newest: int) -> Batch | None:
        """Give a batch once there is enough to sample from and enough that is new."""
        counters = self._counters
        worth = self.lanes * (self.steps if self._ring.recurrent else 1)
        if counters.put < self.config.warmup or counters.owed < worth or not counters.eligible:
            self.settled += [entry.name for entry in self._pending]  # nobody waits for what is not learned from yet
            return None
        slots = self._draw()
        counters.owed -= worth
        counters.batches += 1
        self._last = self._ring.numbers(slots)
        # New steps enter use with the batch that pays the last of what is owed for them.
        entering = self._pending if counters.owed < worth else []
        new = sum(entry.steps for entry in entering)
        columns = self._ring.windows(slots, self.steps)
        columns |= {"weight": self._weight(slots), "index": self._last.copy(), "new_steps": np.asarray([new], np.int64)}
        columns |= {f"fresh/{name}": value for name, value in (self._sums if entering else self._zeros()).items()}
        lag = np.maximum(0, newest - self._ring.versions(slots))
        batch = Batch(columns, tuple(entry.name for entry in entering), new, float(lag.mean()), int(lag.max()))
        if entering:
            self._pending, self._sums = [], self._zeros()
        return batch

    def learned(self, priorities: Array | None) -> None:
        """Remember how wrong the learner was about each lane of the last batch."""
        if priorities is None or not self.config.prioritised or not len(self._last):
            return
        top = self._counters.top
        values = (np.abs(np.asarray(priorities, np.float64)) + SMALLEST) ** self.config.alpha
        values = np.where(np.isfinite(values), values, top)
        there = self._last >= self._ring.oldest  # others were overwritten meanwhile
        self._tree.put(self._last[there] % self.config.capacity, values[there])
        self._counters.top = max(top, float(values.max()))

    def sync(self) -> None:
        """Make durable what `state` refers to, and delete what no checkpoint that is kept can need."""
        self._log.sync()
        if len(self._kept) == self.config.checkpoints:
            self._log.drop(self._kept[0])
        self._kept.append(self._start())

    def state(self) -> Columns:
        """Give ranges, priorities and counters; the steps themselves are in the log."""
        ring, counters = self._ring, self._counters
        rows = np.arange(ring.oldest, ring.head)
        return (
            {
                "config": np.asarray([self.config.capacity, self.config.prioritised], np.int64),
                "log": np.asarray([self._start(), self._log.end], np.int64),
                "kept": np.asarray(self._kept, np.int64),
                "rows": np.asarray([self._entries[0].base if self._entries else ring.head, ring.head], np.int64),
                "entries": np.asarray([self._entries[0].position if self._entries else self._log.end], np.int64),
                "priorities": self._tree.values(rows % self.config.capacity)
                if self.config.prioritised
                else np.zeros(0),
                "pending": np.asarray([entry.position for entry in self._pending], np.int64),
                "last": self._last.copy(),
                "counts": np.asarray([counters.put, counters.new, counters.eligible, counters.batches], np.int64),
                "numbers": np.asarray([counters.owed, counters.top], np.float64),
            }
            | {f"fresh/{name}": value.copy() for name, value in self._sums.items()}
            | self._ring.memory
        )

    def restore(self, state: Columns) -> None:
        """Continue from `state`: read the steps back from the log, cut off what came later."""
        self._check(state["config"])
        self._begin()
        start, end = (int(value) for value in state["log"])
        self._log.restore(start, end)
        self._kept.extend(state["kept"].tolist())
        pending = set(state["pending"].tolist())
        self._ring.head = int(state["rows"][0])
        if memory := {name: value for name, value in state.items() if name.startswith("memory/")}:
            self._ring.remember(memory)
        for position, fragment in self._log.read(start):
            inside = position >= state["entries"][0]
            entry = self._insert(fragment, position) if inside else _entry(fragment, position, 0, 0)
            if position in pending:
                self._pending.append(entry)
        self._evict()
        rows = np.arange(self._ring.oldest, self._ring.head)
        if self._ring.head != state["rows"][1]:
            raise CorruptError(
                f"the fragment log in {self._log.folder} gave rows up to {self._ring.head}, its checkpoint says "
                f"{state['rows'][1]}: files of several runs were mixed; start a new run"
            )
        if self.config.prioritised:
            self._tree.put(rows % self.config.capacity, state["priorities"])
        self.settled = [entry.name for entry in self._pending]
        self._last = state["last"].copy()
        self._sums = {
            name.removeprefix("fresh/"): value.copy() for name, value in state.items() if name.startswith("fresh/")
        }
        put, new, eligible, batches = (int(value) for value in state["counts"])
        owed, top = (float(value) for value in state["numbers"])
        self._counters = Counters(put, new, eligible, batches, owed, top)

    def close(self) -> None:
        """Close the log's file."""
        self._log.close()

    def _check(self, kept: Array) -> None:
        """Refuse to continue with settings that the kept ranges and priorities do not fit."""
        for name, before in zip(("capacity", "prioritised"), kept.tolist(), strict=True):
            now = getattr(self.config, name)
            if now != before:
                raise ConfigError(
                    f"feed.{name} was {before} when the checkpoint was written and is now {now}; set it back, or start "
                    "a new run"
                )

    def _begin(self) -> None:
        """Hold nothing."""
        self._ring = Ring(self._spec, self.config.capacity)
        self._tree = SumTree(self.config.capacity)
        self._entries: deque[Entry] = deque()  # oldest first
        self._pending: list[Entry] = []  # not yet named in a batch
        self._sums = self._zeros()
        self._last = np.zeros(0, np.int64)  # rows that the last batch began at
        self._counters = Counters()
        self._kept.clear()

    def _insert(self, fragment: Fragment, position: int) -> Entry:
        """Put a fragment's rows into the ring, each to be sampled as eagerly as any so far."""
        lanes = fragment.columns["reward"].shape[1]
        knew = self._ring.recurrent
        block = self._ring.put(fragment)
        if self._ring.recurrent and not knew:
            self._begin_episodes(block.base)
        slots = (block.base + np.arange(block.rows)) % self.config.capacity
        before = np.count_nonzero(self._tree.values(slots))
        self._tree.put(slots, np.where(block.starts, self._counters.top if self.config.prioritised else 1.0, 0.0))
        self._counters.eligible += int(np.count_nonzero(block.starts) - before)
        entry = _entry(fragment, position, block.base, block.base + max(0, block.rows - lanes))
        self._entries.append(entry)
        return entry

    def _begin_episodes(self, before: int) -> None:
        """Let windows of what others decided before the first memory came begin where there is none: at first rows."""
        slots = np.arange(self._ring.oldest, before) % self.config.capacity
        slots = slots[self._ring.inside(slots) & (self._tree.values(slots) > 0)]
        self._tree.put(slots, np.zeros(len(slots)))
        self._counters.eligible -= len(slots)

    def _evict(self) -> None:
        """Let go of fragments whose rows are all overwritten."""
        while self._entries and self._entries[0].stop <= self._ring.oldest:
            self._ring.forget(self._entries.popleft().name[1])

    def _start(self) -> int:
        """Say from where on the log is needed."""
        held = [entries[0].position for entries in (self._entries, self._pending) if entries]
        return min(held, default=self._log.end)

    def _draw(self) -> Array:
        """Draw the slots at which windows begin; the counter of batches is all the state that this has."""
        key = np.random.SeedSequence((self._seed, self._counters.batches))
        targets = np.random.Generator(np.random.Philox(key)).random(self.lanes)
        return self._tree.find(targets * self._tree.total)

    def _weight(self, slots: Array) -> Array:
        """Give the importance weights that undo the bias of priorities, at most 1."""
        config, counters = self.config, self._counters
        if not config.prioritised:
            return np.ones(self.lanes, np.float32)
        beta = config.beta + (1 - config.beta) * min(1.0, counters.new / config.beta_steps)
        weight = (self._tree.values(slots) / self._tree.total * counters.eligible) ** -beta
        return (weight / weight.max()).astype(np.float32)

    def _zeros(self) -> Columns:
        return {f"{field.name}/{what}": np.zeros(field.shape) for field in self._summed for what in ("sum", "square")}

    def _sum(self, columns: Columns) -> None:
        """Add up new observations, so that normalisation sees each of them once."""
        valid = columns["valid"]
        for field in self._summed:
            seen = columns[field.name][:-1][valid].astype(np.float64)
            self._sums[f"{field.name}/sum"] += seen.sum(axis=0)
            self._sums[f"{field.name}/square"] += np.square(seen).sum(axis=0)


def make(config: Config, *, spec: Spec, steps: int, lanes: int, folder: Path, seed: int) -> ReplayFeed:
    """Make a feed of batches of `lanes` windows with `steps` rows each; its log lives in `folder`."""
    return ReplayFeed(config, spec=spec, steps=steps, lanes=lanes, folder=folder, seed=seed)


def _entry(fragment: Fragment, position: int, base: int, stop: int) -> Entry:
    return Entry(position, base, stop, fragment.name, int(np.count_nonzero(fragment.columns["valid"])))
