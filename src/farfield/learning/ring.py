"""Fragments in, windows of consecutive steps out: every row is stored once and knows the row that follows it."""

from typing import NamedTuple

import numpy as np

from farfield.errors import ConfigError, SpecError
from farfield.types import Array, Columns, Fragment, Spec

STEP = {"reward": np.float32, "log_prob": np.float32} | dict.fromkeys(
    ("terminated", "truncated", "valid", "first"), np.bool_
)


class Tail(NamedTuple):
    """Where a stream's newest fragment ends: what its next one is joined to."""

    seq: int
    rows: Array  # [N] numbers of the rows that the next fragment's first rows follow
    last: int  # number of the first of the N rows that hold its last observations


class Block(NamedTuple):
    """The rows that a fragment took: `rows` of them from number `base` on."""

    base: int
    rows: int
    starts: Array  # [rows] whether a window may begin there


class Ring:
    """The newest `capacity` rows. Rows are numbered as they come; row n is in slot n % capacity.

    A fragment of T steps and N lanes takes T x N rows, one for each last observation of a reset that was done at once,
    and N for its last observations. These extra rows are not valid: they only end windows. When the stream's next
    fragment arrives directly after, its first rows take the place of the latter.
    """

    def __init__(self, spec: Spec, capacity: int) -> None:
        self.capacity = capacity
        self.head = 0  # number of the next row
        self._observed = tuple(field.name for field in spec.observations)
        self._rows: Columns = {
            field.name: np.zeros((capacity, *field.shape), field.dtype) for field in (*spec.observations, *spec.actions)
        } | {name: np.zeros(capacity, dtype) for name, dtype in STEP.items()}
        self._memory: Columns = {}  # as long as the rows; only pages that are written to take up space
        self._empty = True
        self._follow = np.zeros(capacity, np.int64)  # slot of the row that follows
        self._version = np.zeros(capacity, np.int64)
        self._tails: dict[str, Tail] = {}

    @property
    def oldest(self) -> int:
        """The number of the oldest row that can still be there."""
        return max(0, self.head - self.capacity)

    @property
    def recurrent(self) -> bool:
        """Whether fragments bring memory, so that windows begin only where it is known."""
        return bool(self._memory)

    def numbers(self, slots: Array) -> Array:
        """Say which rows are in these slots."""
        return self.head - 1 - (self.head - 1 - slots) % self.capacity

    @property
    def memory(self) -> Columns:
        """Zeros of the shapes of what fragments bring."""
        return {name: np.zeros_like(rows[0]) for name, rows in self._memory.items()}

    def remember(self, memory: Columns) -> None:
        """Keep such memory from now on; windows begin only where it is known."""
        self._empty = False
        self._memory = {name: np.zeros((self.capacity, *one.shape), one.dtype) for name, one in memory.items()}

    def inside(self, slots: Array) -> Array:
        """Say which of these rows do not begin an episode."""
        return ~self._rows["first"][slots]

    def put(self, fragment: Fragment) -> Block:
        """Store a fragment over the oldest rows."""
        columns = self._check(fragment)
        T, N = columns["reward"].shape
        if not T * N:
            return Block(self.head, 0, np.zeros(0, np.bool_))
        finals = columns.get("final/index", np.zeros((0, 2), np.int32)).astype(np.int64)
        count = T * N + len(finals) + N
        if count > self.capacity:
            raise ConfigError(
                f"fragment {fragment.name}: {T} steps of {N} lanes need {count} rows, feed.capacity is "
                f"{self.capacity}; raise it or send shorter fragments"
            )
        tail = self._tails.pop(fragment.stream, None)
        joined = tail if tail is not None and tail.seq + 1 == fragment.seq and len(tail.rows) == N else None
        if joined is not None and joined.last + N == self.head:
            self.head -= N  # the same observations: no need to keep them twice
        base = self.head
        self.head += count
        self._store(columns, base, finals)
        acted = np.repeat(columns.get("version", np.full(T, fragment.version)), N)
        self._version[np.arange(base, base + count) % self.capacity] = np.pad(acted, (0, count - T * N), "edge")
        last = self._link(base, (T, N), finals)
        self._tails[fragment.stream] = Tail(fragment.seq, last, base + count - N)
        if joined is not None:
            alive = joined.rows >= self.oldest
            self._follow[joined.rows[alive] % self.capacity] = (base + np.arange(N))[alive] % self.capacity
        return Block(base, count, self._starts(columns, count))

    def windows(self, slots: Array, steps: int) -> Columns:
        """Give `steps` rows from each slot on: observations [steps + 1, B, …], others [steps, B, …], memory [B, …]."""
        at = np.empty((steps + 1, len(slots)), np.int64)
        at[0] = slots
        for t in range(steps):
            at[t + 1] = self._follow[at[t]]
        batch = {name: rows[at if name in self._observed else at[:-1]] for name, rows in self._rows.items()}
        return batch | {name: rows[slots] for name, rows in self._memory.items()}

    def versions(self, slots: Array) -> Array:
        """Say which versions acted there."""
        return self._version[slots]

    def forget(self, stream: str) -> None:
        """Drop the tail of a stream whose newest rows are gone."""
        tail = self._tails.get(stream)
        if tail is not None and tail.last < self.oldest:
            del self._tails[stream]

    def _check(self, fragment: Fragment) -> Columns:
        """Compare with what is stored; the first fragment of the policy says which memory there is."""
        columns = fragment.columns
        if self._empty and not fragment.source:
            brought = {name: column for name, column in columns.items() if name.startswith("memory/")}
            self.remember({name: np.zeros(column.shape[1:], column.dtype) for name, column in brought.items()})
        T, N = columns["reward"].shape
        for name, rows in (self._rows | self._memory).items():
            if fragment.source and name not in columns and (name in self._memory or name == "log_prob"):
                continue  # somebody else decided: with another memory, and nobody knows how probably
            lead = (N,) if name in self._memory else (T + (name in self._observed), N)
            column = columns.get(name)
            if column is None or column.shape != (*lead, *rows.shape[1:]):
                came = "nothing" if column is None else f"shape {column.shape}"
                raise SpecError(
                    f"fragment {fragment.name}: column {name!r} was expected with shape {(*lead, *rows.shape[1:])}, "
                    f"came with {came}; start its producer again with the run's spec"
                )
        return columns

    def _store(self, columns: Columns, base: int, finals: Array) -> None:
        """Write rows in the order: T x N steps, last observations of resets, N last observations."""
        T, N = columns["reward"].shape
        K = len(finals)
        for name, rows in self._rows.items():
            column = columns.get(name)
            if column is None:
                column = np.zeros((T, N, *rows.shape[1:]), rows.dtype)
            self._write(rows, base, column[:T].reshape(T * N, *rows.shape[1:]))
            if name in self._observed:
                self._write(rows, base + T * N + K, column[T])
                if K:
                    self._write(rows, base + T * N, columns[f"final/{name}"])
            else:
                self._write(rows, base + T * N, np.zeros((K + N, *rows.shape[1:]), rows.dtype))
        for name, rows in self._memory.items():
            rows[(base + np.flatnonzero(columns["first"])) % self.capacity] = 0
            if name in columns:
                self._write(rows, base, columns[name])

    def _write(self, rows: Array, number: int, values: Array) -> None:
        """Copy values into the slots from a row's number on, round the end of the ring."""
        slot = number % self.capacity
        fits = min(len(values), self.capacity - slot)
        rows[slot : slot + fits] = values[:fits]
        rows[: len(values) - fits] = values[fits:]

    def _link(self, base: int, shape: tuple[int, int], finals: Array) -> Array:
        """Let every row know what follows it; give the numbers of the rows before the last observations."""
        T, N = shape
        K = len(finals)
        follow = np.arange(N, T * N + K + 2 * N)
        follow[(T - 1) * N : T * N] += K
        follow[T * N + K :] -= N  # nothing follows yet
        before = np.arange((T - 1) * N, T * N)
        if K:  # an end, then its last observation, then the new episode
            ends, extra = finals[:, 0] * N + finals[:, 1], T * N + np.arange(K)
            follow[extra] = follow[ends]
            follow[ends] = extra
            final = finals[:, 0] == T - 1
            before[finals[final, 1]] = extra[final]
        self._follow[(base + np.arange(len(follow))) % self.capacity] = (base + follow) % self.capacity
        return base + before

    def _starts(self, columns: Columns, count: int) -> Array:
        valid = columns["valid"]
        starts = np.zeros(count, np.bool_)
        if self._memory:
            known = columns["first"].copy()
            known[:1] |= self._memory.keys() <= columns.keys()
            valid = valid & known
        starts[: valid.size] = valid.ravel()
        return starts
