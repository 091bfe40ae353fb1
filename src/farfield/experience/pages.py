"""Rows in, the columns of one fragment out: buffers that are written in place and used again for the next fragment."""

from collections.abc import Callable

import numpy as np

from farfield.experience.intake import MOST
from farfield.types import Array, Columns, Spec

Score = Callable[[Columns, Columns], Array]  # head outputs and actions -> log-probabilities [T, N]


class Page:
    """`steps` rows of N lanes. Rows 0 … count - 1 are there; observations have one row more."""

    def __init__(self, spec: Spec, steps: int, lanes: int) -> None:
        T, N = steps, lanes
        self.steps, self.lanes, self.count = T, N, 0
        self.seen: Columns = {f.name: np.zeros((T + 1, N, *f.shape), f.dtype) for f in spec.observations}
        self.acted: Columns = {f.name: np.zeros((T, N, *f.shape), f.dtype) for f in spec.actions}
        self.logits: Columns = {}
        self.memory: Columns = {}  # before row 0
        self.reward = np.zeros((T, N), np.float64)  # rounded once, when the fragment is finished
        self.log_prob = np.zeros((T, N), np.float32)
        self.terminated, self.truncated, self.first = (np.zeros((T, N), np.bool_) for _ in range(3))
        self.valid = np.ones((T, N), np.bool_)
        self.scored = 0  # rows whose log-probability is there; of the others there are logits
        self.finals: list[tuple[int, Array, Columns]] = []  # row, lanes, their last observations
        self.versions = [(0, 0, 0)]  # from which row on which version decided: row, number, attempt
        self.ended = False  # whether an episode ends in it
        self._total, self._length = (
            np.zeros(N, np.float64),
            np.zeros(N, np.int64),
        )  # of unfinished episodes before row 0

    def watch(self, logits: Columns) -> None:
        """Record these head outputs [N, …] from now on."""
        self.logits = {name: np.zeros((self.steps, *value.shape), value.dtype) for name, value in logits.items()}

    def score(self, upto: int, score: Score | None) -> None:
        """Work out log-probabilities of the rows before `upto` that have none yet."""
        start = self.scored
        if start < upto and score is not None and self.logits:
            rows = slice(start, upto)
            logits = {name: value[rows] for name, value in self.logits.items()}
            found = score(logits, {name: value[rows] for name, value in self.acted.items()})
            np.copyto(self.log_prob[rows], found, where=self.valid[rows])
        self.scored = max(start, upto)

    def finish(self, rows: int, *, scored: bool) -> Columns:
        """Give the columns of the first rows, as views: encode them before the next row is written."""
        columns: Columns = {name: value[: rows + 1] for name, value in self.seen.items()}
        columns |= {name: value[:rows] for name, value in self.acted.items()}
        reward = self.reward[:rows].astype(np.float32)
        flags = {"terminated": self.terminated, "truncated": self.truncated, "valid": self.valid, "first": self.first}
        columns |= {"reward": reward} | {name: value[:rows] for name, value in flags.items()}
        if scored:
            columns["log_prob"] = self.log_prob[:rows]
        columns |= {f"memory/{node}": value for node, value in self.memory.items()}
        columns |= self._final(rows) | self._episodes(rows, reward)
        if any(0 < row < rows for row, _, _ in self.versions):
            columns["version"] = np.empty(rows, np.int64)
            for row, number, _ in self.versions:
                columns["version"][row:] = number
        return columns

    def carry(self, rows: int) -> None:
        """Forget the first rows; what is behind them becomes row 0 and so on."""
        left = self.count - rows
        for column in self.seen.values():
            column[: left + 1] = column[rows : rows + left + 1]
        columns = [*self.acted.values(), *self.logits.values(), self.reward, self.log_prob]
        for column in (*columns, self.terminated, self.truncated, self.valid, self.first):
            column[:left] = column[rows : rows + left]
        for column in (self.reward, self.log_prob, self.terminated, self.truncated, self.first):
            column[left:] = 0
        self.valid[left:] = True
        self.scored = max(0, self.scored - rows)
        self.finals = [(row - rows, lanes, final) for row, lanes, final in self.finals if row >= rows]
        _, *current = max(entry for entry in self.versions if entry[0] <= rows)
        later = [(row - rows, number, attempt) for row, number, attempt in self.versions if row > rows]
        self.versions = [(0, *current), *later]
        self.ended = bool(left) and bool((self.terminated[:left] | self.truncated[:left]).any())
        self.count = left

    def mark(self, row: int, number: int, attempt: int) -> None:
        """Note which version decides from this row on."""
        if self.versions[-1][0] == row:
            self.versions[-1] = (row, number, attempt)
        elif self.versions[-1][1:] != (number, attempt):
            self.versions.append((row, number, attempt))

    def rest(self, row: int) -> None:
        """Make a row that is no step: it only shows the observation at which an episode was cut off."""
        self.valid[row] = False
        for column in (*self.acted.values(), *self.logits.values()):
            column[row] = 0
        self.count = row + 1

    def _final(self, rows: int) -> Columns:
        finals = [entry for entry in self.finals if entry[0] < rows]
        if not finals:
            return {}
        index = [(row, lane) for row, lanes, _ in finals for lane in lanes]
        named = {f"final/{name}": np.concatenate([final[name] for *_, final in finals]) for name in finals[0][2]}
        return {"final/index": np.asarray(index, np.int32)} | named

    def _episodes(self, rows: int, reward: Array) -> Columns:
        """Give returns and lengths of the episodes that ended, and remember how far the others are."""
        valid = self.valid[:rows]
        if not self.ended:
            self._total = self._total + reward.sum(0, np.float64)
            self._length = self._length + valid.sum(0)
            return {"episode/return": np.zeros(0, np.float32), "episode/length": np.zeros(0, np.int32)}
        total = self._total + np.cumsum(reward, 0, np.float64)
        length = self._length + np.cumsum(valid, 0)
        before, steps_before = np.zeros_like(self._total), np.zeros_like(self._length)
        returns: list[float] = []
        lengths: list[int] = []
        for t, lane in np.argwhere(self.terminated[:rows] | self.truncated[:rows]):
            returns.append(float(total[t, lane] - before[lane]))
            lengths.append(int(length[t, lane] - steps_before[lane]))
            before[lane], steps_before[lane] = total[t, lane], length[t, lane]
        self._total, self._length = total[-1] - before, length[-1] - steps_before
        return {
            "episode/return": np.clip(returns, -MOST, MOST).astype(np.float32),
            "episode/length": np.asarray(lengths, np.int32),
        }
