"""Fragments in, batches of one static shape out: what has come, what is too old, and what made which update."""

from collections import deque
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta, Struct, structs

from farfield.codec import decode_fragment, encode_fragment
from farfield.errors import SpecError
from farfield.types import Array, Columns, Field, Fragment, Name, Spec


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a learner reads; options of the replay feed are in replay.py."""

    fragments: Annotated[int, Meta(ge=1, description="fragments of `lanes.count` lanes in one batch")] = 1
    max_lag: Annotated[int, Meta(ge=0, description="versions; older fragments are counted as dropped")] = 16


class Batch(NamedTuple):
    """What one update uses, and what it is accounted for."""

    columns: Columns
    names: tuple[Name, ...]  # fragments that entered use with it; each is named once, ever
    steps: int  # environment steps in these
    lag: float  # mean of versions between acting and learning
    lag_max: int


class Marks:
    """Which fragments of each stream were seen: all below a watermark, and a set above it."""

    def __init__(self, below: dict[str, int] | None = None, above: dict[str, list[int]] | None = None) -> None:
        self.below = dict(below or {})
        self.above = {stream: set(seqs) for stream, seqs in (above or {}).items()}

    def facts(self) -> dict[str, Any]:
        """Give it as JSON, for a checkpoint."""
        return {"below": dict(self.below), "above": {stream: sorted(seqs) for stream, seqs in self.above.items()}}

    def add(self, stream: str, seq: int) -> bool:
        """Remember a fragment; false when it was known already."""
        mark, above = self.below.get(stream, 0), self.above.setdefault(stream, set())
        if seq < mark or seq in above:
            return False
        above.add(seq)
        while mark in above:
            above.remove(mark)
            mark += 1
        self.below[stream] = mark
        return True


class FreshFeed:
    """Uses every fragment once, in the order in which it came; what lags too far is dropped and counted."""

    def __init__(self, spec: Spec, *, steps: int, lanes: int, max_lag: int) -> None:
        self.steps, self.lanes, self.max_lag = steps, lanes, max_lag
        self.dropped = 0
        self.settled: list[Name] = []  # counted as not used since the last batch
        self._fields = spec.observations
        self._waiting: deque[Fragment] = deque()

    def put(self, fragment: Fragment) -> None:
        """Queue a fragment that is not a duplicate."""
        if "final/index" in fragment.columns:
            fragment = structs.replace(fragment, columns=in_line(fragment.columns, self._fields))
        T, N = fragment.columns["reward"].shape
        plain = self.steps >= T and self.lanes >= N  # each lane has a slot: nothing to try
        if not plain and Slots(self.steps, self.lanes).place(needs(fragment, self.steps)) is None:
            raise SpecError(
                f"fragment {fragment.name}: {fragment.columns['reward'].shape} steps × lanes do not fit into a batch "
                f"of {self.steps} × {self.lanes}; send shorter fragments or raise feed.fragments"
            )
        self._waiting.append(fragment)

    def take(self, newest: int) -> Batch | None:
        """Give a full batch for weights that have seen `newest` updates, or nothing yet."""
        self._drop_old(newest)
        packed = whole(self._waiting, self.steps, self.lanes) or self._pack()
        if packed is None:
            return None
        columns, count = packed
        used = [self._waiting.popleft() for _ in range(count)]
        lags = [np.maximum(0, newest - fragment.columns.get("version", fragment.version)) for fragment in used]
        return Batch(
            columns=columns,
            names=tuple(fragment.name for fragment in used),
            steps=sum(int(fragment.columns["valid"].sum()) for fragment in used),
            lag=float(np.mean([lag.mean() for lag in lags])),
            lag_max=max(int(lag.max()) for lag in lags),
        )

    def state(self) -> Columns:
        """Give what waits, as bytes, so that a checkpoint can hold it."""
        state: Columns = {"dropped": np.asarray(self.dropped)}
        for i, fragment in enumerate(self._waiting):
            state[f"waiting/{i:06d}"] = np.frombuffer(encode_fragment(fragment), np.uint8)
        return state

    def restore(self, state: Columns) -> None:
        """Continue with what waited."""
        self.dropped = int(state["dropped"])
        waiting = sorted(name for name in state if name.startswith("waiting/"))
        self._waiting = deque(decode_fragment(state[name].tobytes()) for name in waiting)

    def learned(self, priorities: Array | None) -> None:
        """Nothing to remember: no fragment is used again."""

    def sync(self) -> None:
        """Nothing to make durable: what waits is in the state."""

    def _drop_old(self, newest: int) -> None:
        if all(newest - fragment.version <= self.max_lag for fragment in self._waiting):
            return
        old = [fragment for fragment in self._waiting if newest - fragment.version > self.max_lag]
        self.dropped += len(old)
        self.settled += [fragment.name for fragment in old]
        self._waiting = deque(fragment for fragment in self._waiting if newest - fragment.version <= self.max_lag)

    def _pack(self) -> tuple[Columns, int] | None:
        """Place whole fragments, piece after piece, until the next one does not fit."""
        slots = Slots(self.steps, self.lanes)
        plan: list[tuple[Columns, int, int]] = []
        for count, fragment in enumerate(self._waiting):
            places = slots.place(needs(fragment, self.steps))
            if places is None:
                return (fill(plan, self.steps, self.lanes, self._fields), count) if count else None
            cut = pieces(fragment, self._fields, self.steps)
            plan += [(piece, slot, row) for piece, (slot, row) in zip(cut, places, strict=True)]
        if not slots.full:
            return None
        return fill(plan, self.steps, self.lanes, self._fields), len(self._waiting)


class Slots:
    """Where pieces go in a batch of `lanes` columns and `steps` rows; the row of a last observation is taken too."""

    def __init__(self, steps: int, lanes: int) -> None:
        self.steps, self._free = steps, [0] * lanes

    def place(self, needed: list[tuple[int, bool]]) -> list[tuple[int, int]] | None:
        """Find (slot, row) for every piece of a fragment, or nothing at all; what brings memory begins a slot."""
        free, places = list(self._free), list[tuple[int, int]]()
        for length, begins in needed:
            limit = 0 if begins else self.steps - length
            slot = next((i for i, row in enumerate(free) if row <= limit), None)
            if slot is None:
                return None
            places.append((slot, free[slot]))
            free[slot] += length + 1
        self._free = free
        return places

    @property
    def full(self) -> bool:
        """Whether no slot has room for another piece of any length."""
        return all(row >= self.steps for row in self._free)


def in_line(columns: Columns, fields: tuple[Field, ...]) -> Columns:
    """Show last observations of resets at once where a reset at the next step shows them: in the row after the end.

    That row stops being a step. After a termination nothing asks for the last observation, so that no row is lost.
    """
    index, steps = columns["final/index"], len(columns["reward"])
    cut = columns["truncated"][index[:, 0], index[:, 1]] & ~columns["terminated"][index[:, 0], index[:, 1]]
    after, lane = index[cut, 0] + 1, index[cut, 1]
    changed = {name: columns[name].copy() for name in ("valid", "first", *(field.name for field in fields))}
    for field in fields:
        changed[field.name][after, lane] = columns[f"final/{field.name}"][cut]
    there = after < steps
    changed["valid"][after[there], lane[there]] = False
    changed["first"][after[there], lane[there]] = False  # memory goes on into a last observation
    there = after + 1 < steps
    changed["first"][after[there] + 1, lane[there]] = True
    return {name: column for name, column in columns.items() if not name.startswith("final/")} | changed


def needs(fragment: Fragment, steps: int) -> list[tuple[int, bool]]:
    """Say how long each piece is, and whether it must begin a slot because memory comes with it."""
    remembers = any(name.startswith("memory/") for name in fragment.columns)
    return [(length, remembers and start == 0) for length, _, start in bounds(fragment, steps)]


def whole(waiting: deque[Fragment], steps: int, lanes: int) -> tuple[Columns, int] | None:
    """Join fragments that fill a batch exactly, as those of our own actors do; without a copy when one is enough."""
    chosen: list[Columns] = []
    filled = 0
    for fragment in waiting:
        T, N = fragment.columns["reward"].shape
        if steps != T:
            return None
        chosen.append(fragment.columns)
        filled += N
        if filled >= lanes:
            break
    if filled != lanes:
        return None
    names = [name for name in chosen[0] if not name.startswith(("episode/", "version"))]
    if len(chosen) == 1:
        return {name: chosen[0][name] for name in names}, 1
    joined = {
        name: np.concatenate([columns[name] for columns in chosen], axis=0 if name.startswith("memory/") else 1)
        for name in names
    }
    return joined, len(chosen)


def bounds(fragment: Fragment, steps: int) -> Iterator[tuple[int, int, int]]:
    """Cut lanes at `steps`: (length, lane, start)."""
    T, N = fragment.columns["reward"].shape
    for lane in range(N):
        for start in range(0, T, steps):
            yield min(steps, T - start), lane, start


def pieces(fragment: Fragment, fields: tuple[Field, ...], steps: int) -> Iterator[Columns]:
    """Give each piece as columns of one lane: [t, …], observations [t + 1, …], memory […] at a fragment's start."""
    observed = {field.name for field in fields}
    for length, lane, start in bounds(fragment, steps):
        piece: Columns = {}
        for name, column in fragment.columns.items():
            if name in observed:
                piece[name] = column[start : start + length + 1, lane]
            elif name.startswith("memory/"):
                if start == 0:
                    piece[name] = column[lane]
            elif not name.startswith(("episode/", "version")):
                piece[name] = column[start : start + length, lane]
        yield piece


def fill(plan: list[tuple[Columns, int, int]], steps: int, lanes: int, fields: tuple[Field, ...]) -> Columns:
    """Write pieces into zeroed columns; rows that nothing was written to are not valid."""
    observed = {field.name for field in fields}
    batch: Columns = {}
    for piece, slot, row in plan:
        for name, rows in piece.items():
            memory = name.startswith("memory/")
            if name not in batch:
                shape = (lanes, *rows.shape) if memory else (steps + (name in observed), lanes, *rows.shape[1:])
                batch[name] = np.zeros(shape, rows.dtype)
            if memory:
                batch[name][slot] = rows
            else:
                batch[name][row : row + len(rows), slot] = rows
    return batch
