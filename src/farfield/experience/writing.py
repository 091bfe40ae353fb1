"""Rows, rewards and ends of one stream in; fragments, encoded and numbered, out. No locks, no decisions."""

from collections.abc import Callable
from time import monotonic
from typing import Any, Literal, cast

import numpy as np

from farfield.canonical import spec_hash
from farfield.codec import encode_fragment
from farfield.errors import SpecError
from farfield.experience.intake import MOST, Intake, amounts, flags
from farfield.experience.pages import Page, Score
from farfield.types import Array, Columns, Fragment, Memory, Spec

Emit = Callable[[bytes, int], object]
Stamp = tuple[int, int]  # version and attempt
NOBODY: Stamp = (0, 0)  # no version has decided yet


class Writer:
    """Writes the rows of one stream: a row is placed, filled and open for rewards until the next one comes."""

    def __init__(self, spec: Spec, *, steps: int, lanes: int, emit: Emit, **names: str) -> None:
        self.lanes, self.N = lanes, max(lanes, 1)
        self.intake = Intake(spec, lanes)
        self.page = page = Page(spec, steps, self.N)
        self.rows: list[Columns] = [{name: page.seen[name][k] for name in page.seen} for k in range(steps + 1)]
        self.open = False  # whether the last row may get rewards
        self.first: Array = np.ones(self.N, np.bool_)  # lanes whose episode begins with the next row
        self.begins = True  # whether any does
        self.source = ""  # of the rows on the page
        self.stamp = NOBODY  # of the last row
        self.prior: Memory = {}  # before the last row
        self.score: Score | None = None
        self.base = self.seq = 0  # decision of row 0; number of the next fragment
        self.decision = -self.N  # of the last row
        self.began = 0.0
        self._names: dict[str, Any] = {**names, "spec": spec_hash(spec)}
        self._emit = emit
        self._rewards: Any = memoryview(cast("Any", page.reward.reshape(-1)))

    def place(self, source: str, stamp: Stamp) -> int:
        """Make room for the row whose observation was just written behind the last one, and give its number."""
        page = self.page
        if page.count == page.steps or (page.count and source != self.source):
            self.ship(page.count, known=True)
        k = page.count
        self.source = source
        if k == 0:
            self.began = monotonic()
            page.memory = {}
        if self.begins:
            page.first[k] = self.first
            self.first, self.begins = np.zeros(self.N, np.bool_), False
        page.mark(k, *stamp)
        self.stamp = stamp
        return k

    def fill(self, k: int, chosen: Columns) -> None:
        """Write what was decided in row k, which is open from now on."""
        for name, value in chosen.items():
            self.page.acted[name][k] = value
        self.page.count = k + 1
        self.open = True
        self.decision = self.base + k * self.N

    def reward(self, amount: Any) -> None:
        """Add to the reward of the open row: a number, or one for each lane."""
        if not self.open:
            raise SpecError("reward: no decision waits for one; act first, or credit the decision that it is for")
        at = self.page.count - 1
        if self.lanes:
            self.page.reward[at] += amounts(amount, (self.lanes,), self.page.reward[at])
            return
        try:
            total = self._rewards[at] + float(amount)
        except (TypeError, ValueError) as error:
            raise SpecError(f"reward: expected a number, came {amount!r}") from error
        if not -MOST <= total <= MOST:
            raise SpecError(f"reward: expected a finite 32-bit number, came {amount!r}, which makes it {total}")
        self._rewards[at] = total

    def end(self, truncated: bool, obs: Any, mask: Any, memory: Callable[[], Memory]) -> None:
        """End the episodes of all lanes; where they were cut off, a row that is no step shows the last observation."""
        if not self.open:
            return
        page, k = self.page, self.page.count
        if truncated:
            self.intake.last(obs, mask, self.rows[k], self.rows[k - 1])
        going = ~(page.terminated[k - 1] | page.truncated[k - 1])
        (page.truncated if truncated else page.terminated)[k - 1] |= going
        page.ended, self.open = True, False
        if truncated:
            self.first, self.begins = np.zeros(self.N, np.bool_), False
            k = self.place(self.source, self.stamp)
            if k == 0 and not self.source:
                page.memory = memory() or self.prior
            page.rest(k)
        self.first, self.begins = np.ones(self.N, np.bool_), True
        if page.count == page.steps:
            self.ship(page.count, known=False)

    def restart(self, ended: Any, truncated: Any, obs: Any, mask: Any) -> None:
        """End the episodes of some lanes with the open row, which stays open; the others go on."""
        if not self.lanes or not self.open:
            raise SpecError("restart: expected a batched episode that has acted; end() ends a plain one")
        page, row = self.page, self.page.count - 1
        over = flags("ended", ended, self.lanes)
        cut = np.zeros_like(over) if truncated is None else flags("truncated", truncated, self.lanes)
        before = page.terminated[row] | page.truncated[row]
        cut &= ~before
        lanes = np.flatnonzero(cut)
        if len(lanes):
            last: Columns = {name: np.empty_like(value) for name, value in self.rows[row].items()}
            self.intake.last(obs, mask, last, self.rows[row])
            page.finals.append((row, lanes, {name: value[lanes] for name, value in last.items()}))
        page.truncated[row] |= cut
        page.terminated[row] |= over & ~cut & ~before
        page.ended = page.ended or bool(over.any() or len(lanes))
        self.first = self.first | over | cut
        self.begins = bool(self.first.any())

    def credit(self, n: int, amount: float, mode: Literal["add", "set"]) -> bool:
        """Change the reward of decision n if its row is still here."""
        row, lane = divmod(n - self.base, self.N)
        page = self.page
        if not 0 <= row < page.count or not page.valid[row, lane]:
            return False
        total = amount if mode == "set" else page.reward[row, lane] + amount
        if not -MOST <= total <= MOST:
            raise SpecError(f"credit: expected a finite 32-bit number, came {amount!r}, which makes it {total}")
        page.reward[row, lane] = total
        return True

    def cut(self) -> int:
        """Emit the rows that are closed, and give how many; the open one stays."""
        rows = self.page.count - self.open
        if rows:
            self.ship(rows, known=self.open)
        return rows

    def ship(self, rows: int, *, known: bool) -> None:
        """Emit the first rows as a fragment. What was seen after them is in the next row or, unknown, repeated."""
        page = self.page
        if not self.source:
            page.score(rows, self.score)
        if not known:
            for column in page.seen.values():
                column[rows] = column[rows - 1]
        columns = page.finish(rows, scored=not self.source)
        _, version, attempt = page.versions[0]
        fragment = Fragment(
            seq=self.seq, version=version, attempt=attempt, columns=columns, decision=self.base, source=self.source,
            **self._names,
        )  # fmt: skip
        self._emit(encode_fragment(fragment), int(np.count_nonzero(columns["valid"])))
        page.carry(rows)
        self.seq += 1
        self.base += rows * self.N
        page.memory = self.prior if page.count and not self.source else {}
        self.began = monotonic()
