"""Fragments in, batches of one static shape out: what has come, what is too old, and what made which update."""

from collections import deque
from itertools import islice
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta, Struct, structs

from farfield.codec import decode_fragment, encode_fragment
from farfield.errors import SpecError
from farfield.learning.packing import Piece, Slots, in_line, join, whole
from farfield.types import Array, Columns, Fragment, Name, Spec

AHEAD = 8  # fragments that do not fit and are looked behind, for some that do
DENSE = 0.95  # share of a batch's rows that is enough not to wait for those


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
    """Uses every fragment of the policy once, soon after it came; what lags too far is dropped and counted.

    So is what fits into no batch, where it is `live`: programs far away choose their shapes, and one that is wrong must
    not end learning for all. From our own actors it is an error.
    """

    def __init__(self, spec: Spec, *, steps: int, lanes: int, max_lag: int, live: bool = False) -> None:
        self.steps, self.lanes, self.max_lag, self._live = steps, lanes, max_lag, live
        self.dropped = 0
        self.off_policy = 0  # fragments that somebody else decided: nothing for an algorithm that learns from its own
        self.settled: list[Name] = []  # counted as not used since the last batch
        self._fields = spec.observations
        self._waiting: deque[Fragment] = deque()

    def put(self, fragment: Fragment) -> None:
        """Queue a fragment that is not a duplicate."""
        if fragment.source:
            self.off_policy += 1
            self.settled.append(fragment.name)
            return
        if "final/index" in fragment.columns:
            fragment = structs.replace(fragment, columns=in_line(fragment.columns, self._fields))
        T, N = fragment.columns["reward"].shape
        plain = self.steps >= T and self.lanes >= N  # each lane has a slot: nothing to try
        if not plain and Slots(self.steps, self.lanes).place(fragment) is None:
            if self._live:
                self.dropped += 1
                self.settled.append(fragment.name)
                return
            raise SpecError(
                f"fragment {fragment.name}: {fragment.columns['reward'].shape} steps × lanes do not fit into a batch "
                f"of {self.steps} × {self.lanes}; send shorter fragments or raise feed.fragments"
            )
        self._waiting.append(fragment)

    def take(self, newest: int) -> Batch | None:
        """Give a full batch for weights that have seen `newest` updates, or nothing yet."""
        self._drop_old(newest)
        taken = self._whole() or self._packed()
        if taken is None:
            return None
        columns, used = taken
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
        state: Columns = {"dropped": np.asarray(self.dropped), "off_policy": np.asarray(self.off_policy)}
        for i, fragment in enumerate(self._waiting):
            state[f"waiting/{i:06d}"] = np.frombuffer(encode_fragment(fragment), np.uint8)
        return state

    def restore(self, state: Columns) -> None:
        """Continue with what waited."""
        self.dropped, self.off_policy = int(state["dropped"]), int(state.get("off_policy", 0))
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

    def _whole(self) -> tuple[Columns, list[Fragment]] | None:
        """Use the oldest fragments as they are, when they fill a batch exactly."""
        found = whole(self._waiting, self.steps, self.lanes)
        return found and (found[0], [self._waiting.popleft() for _ in range(found[1])])

    def _packed(self) -> tuple[Columns, list[Fragment]] | None:
        """Place the oldest fragments that fit, once they fill a batch or enough of those behind them do not fit."""
        if not self._may_fill():
            return None
        slots = Slots(self.steps, self.lanes)
        placed: list[tuple[Fragment, list[Piece]]] = []
        left: list[Fragment] = []
        for fragment in self._waiting:
            pieces = slots.place(fragment)
            if pieces is not None:
                placed.append((fragment, pieces))
            else:
                left.append(fragment)
            if slots.full or len(left) > AHEAD:
                break
        # Who sends may wait for what is here to be settled: a batch is not waited with for one that is fuller.
        rows = sum(fragment.columns["reward"].size for fragment in self._waiting)
        enough = left and (slots.filled >= DENSE * self.steps * self.lanes or rows >= self.steps * self.lanes)
        if not (slots.full or len(left) > AHEAD or enough):
            return None
        self._waiting = deque([*left, *islice(self._waiting, len(placed) + len(left), None)])
        return join(placed, self.steps, self.lanes, self._fields), [fragment for fragment, _ in placed]

    def _may_fill(self) -> bool:
        """Say whether trying is worth it: what waits, with a last observation each, could fill a batch."""
        rows = 0
        for fragment in self._waiting:
            T, N = fragment.columns["reward"].shape
            rows += (T + 1) * N
            if rows >= self.steps * self.lanes or any(name.startswith("memory/") for name in fragment.columns):
                return True
        return False
