"""Fragments of any shape in, columns of one static shape out: where their rows go in a batch, and their copies."""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from farfield.types import Columns, Field, Fragment


class Piece(NamedTuple):
    """Rows of one lane of a fragment, and where they go."""

    lane: int
    start: int
    length: int
    slot: int
    row: int


class End(NamedTuple):
    """How the newest rows of a lane end, for the fragment that follows them."""

    slot: int
    seq: int
    truncated: bool  # and not terminated: the row after shows the last observation
    valid: bool


NOWHERE = End(-1, -1, False, False)


class Slots:
    """The `lanes` columns of a batch with `steps` rows, while fragments are placed in them.

    A piece is followed by a row that shows its last observation and is no step, unless the stream's next fragment goes
    on in that row. Rows are cut where a slot ends, as if the fragment had ended there. Where the network remembers they
    are not, since only a fragment's first row brings memory; and what does bring it begins a slot.
    """

    def __init__(self, steps: int, lanes: int) -> None:
        self.steps, self.lanes = steps, lanes
        self.filled = 0  # rows of fragments
        self._free = [0] * lanes
        self._ends: dict[tuple[str, int], End] = {}  # (stream, lane) -> how its newest rows end
        self._owner: list[tuple[str, int] | None] = [None] * lanes  # of the newest rows of each slot

    @property
    def full(self) -> bool:
        """Whether no slot has room for another row."""
        return all(row >= self.steps for row in self._free)

    def place(self, fragment: Fragment) -> list[Piece] | None:
        """Find a place for every row of a fragment, or for none."""
        before = list(self._free), dict(self._ends), list(self._owner)
        T, N = fragment.columns["reward"].shape
        remembers = any(name.startswith("memory/") for name in fragment.columns)
        pieces: list[Piece] = []
        for lane in range(N):
            start = 0
            while start < T:
                known = start > 0 or not remembers or bool(fragment.columns["first"][0, lane])
                piece = self._find(fragment, lane, start, cut=not remembers, anywhere=known)
                if piece is None:
                    self._free, self._ends, self._owner = before
                    return None
                pieces.append(piece)
                self._take(fragment, piece)
                start += piece.length
        self.filled += T * N
        return pieces

    def _find(self, fragment: Fragment, lane: int, start: int, *, cut: bool, anywhere: bool) -> Piece | None:
        left = len(fragment.columns["reward"]) - start
        key = (fragment.stream, lane)
        slot, seq, truncated, valid = self._ends.get(key, NOWHERE)
        # After a truncation and a reset at once the next fragment begins elsewhere than the last observation; and
        # memory does not pass a row that is no step.
        follows = not (truncated and fragment.columns["valid"][0, lane]) and (valid or anywhere)
        if start == 0 and seq + 1 == fragment.seq and follows and self._owner[slot] == key:
            row = self._free[slot] - 1  # the row of the last observation is the first one of what follows
            if self.steps - row >= left or (cut and row < self.steps):
                return Piece(lane, start, min(left, self.steps - row), slot, row)
        slot = min(range(self.lanes), key=self._free.__getitem__)  # so that streams do not share slots without need
        row = self._free[slot]
        if row >= self.steps or (row and not anywhere):
            return None
        if self.steps - row < left and not cut and (row or left <= self.steps):
            return None
        return Piece(lane, start, min(left, self.steps - row), slot, row)

    def _take(self, fragment: Fragment, piece: Piece) -> None:
        columns, key = fragment.columns, (fragment.stream, piece.lane)
        self._free[piece.slot] = piece.row + piece.length + 1
        self._owner[piece.slot] = key
        truncated = bool(columns["truncated"][-1, piece.lane] and not columns["terminated"][-1, piece.lane])
        self._ends[key] = End(piece.slot, fragment.seq, truncated, bool(columns["valid"][-1, piece.lane]))


def join(placed: Iterable[tuple[Fragment, list[Piece]]], steps: int, lanes: int, fields: tuple[Field, ...]) -> Columns:
    """Copy rows to their places in zeroed columns; rows that nothing was copied to are not valid."""
    observed = {field.name for field in fields}
    batch: Columns = {}
    for fragment, pieces in placed:
        for name, column in fragment.columns.items():
            if name.startswith(("episode/", "version")):
                continue
            memory, more = name.startswith("memory/"), name in observed
            if name not in batch:
                shape = (lanes, *column.shape[1:]) if memory else (steps + more, lanes, *column.shape[2:])
                batch[name] = np.zeros(shape, column.dtype)
            target = batch[name]
            for lane, start, length, slot, row in pieces:
                if not memory:
                    target[row : row + length + more, slot] = column[start : start + length + more, lane]
                elif start == 0 and row == 0:
                    target[slot] = column[lane]
    return batch


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
