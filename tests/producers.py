"""Streams of fragments as producers send them, whose every row has a reward of its own and so can be found again."""

from typing import NamedTuple

import numpy as np

from farfield.types import Array, Columns, Field, Fragment, Kind, Spec

SPEC = Spec(
    (Field("obs/picture", Kind.BOX, "uint8", (2, 1, 1)), Field("obs/number", Kind.BOX, "float32", (2,))),
    (Field("action", Kind.DISCRETE, "int64", (), (5,)),),
)


class Row(NamedTuple):
    """One row as the slow reference keeps it; its reward is unique and names it."""

    obs: float
    reward: float
    action: int
    terminated: bool
    truncated: bool
    valid: bool
    first: bool


class Producer:
    """Makes fragments of one stream, and the chains of rows that they stand for.

    `at_once`: as environments that reset at once; otherwise the next row only resets. `live`: as apps, whose next
    episode follows a termination directly, and a truncation after a row with its last observation.
    """

    def __init__(
        self, number: int, lanes: int, *, at_once: bool = False, memory: bool = False, live: bool = False
    ) -> None:
        self.rng = np.random.default_rng(number)
        self.live, self.decision = live, 0
        self.stream, self.lanes, self.at_once, self.memory = f"{number:032x}", lanes, at_once, memory
        self.seq, self.count = 0, number * 100_000
        self.obs = [self.unique() for _ in range(lanes)]
        self.over = [False] * lanes  # the next row only resets
        self.new = [True] * lanes
        self.chains: list[list[Row]] = []  # all of them
        self.open: list[list[Row]] = []  # by lane, those that the next fragment continues

    def unique(self) -> int:
        self.count += 1
        return self.count

    def fragment(self, steps: int, *, gap: bool = False, source: str = "") -> Fragment:
        if gap:
            self.seq += 1
        if gap or not self.open:
            self.open = [[] for _ in range(self.lanes)]
            self.chains += self.open
        rows = np.zeros((steps, self.lanes), object)
        finals: list[tuple[int, int, float]] = []
        for t in range(steps):
            for lane in range(self.lanes):
                rows[t, lane] = self.step(t, lane, finals)
        columns = self.columns(rows, finals)
        if source:
            columns = {name: column for name, column in columns.items() if not name.startswith(("log_prob", "memory"))}
        self.seq += 1
        self.decision += steps * self.lanes
        return Fragment(
            run="r", stream=self.stream, seq=self.seq - 1, version=7, attempt=1, spec="0" * 64, columns=columns,
            decision=self.decision - steps * self.lanes, source=source,
        )  # fmt: skip

    def step(self, t: int, lane: int, finals: list[tuple[int, int, float]]) -> Row:
        reset = self.over[lane]
        end = 0 if reset else int(self.rng.choice([0, 0, 0, 1, 2]))
        row = Row(
            self.obs[lane], 0 if reset else self.unique(), int(self.rng.integers(5)), end == 1, end == 2, not reset,
            self.new[lane],
        )  # fmt: skip
        self.open[lane].append(row)
        self.obs[lane] = self.unique()
        self.new[lane], self.over[lane] = reset, False
        if end and self.at_once:
            finals.append((t, lane, self.obs[lane]))
            self.open[lane].append(Row(self.obs[lane], 0, 0, False, False, False, False))
            self.obs[lane], self.new[lane] = self.unique(), True
        elif end == 1 and self.live:
            self.new[lane] = True
        elif end:
            self.over[lane] = True
        return row

    def columns(self, rows: Array, finals: list[tuple[int, int, float]]) -> Columns:
        def column(name: str, dtype: str) -> Array:
            return np.array([[getattr(row, name) for row in line] for line in rows], dtype)

        obs = np.concatenate([column("obs", "int64"), np.array([self.obs])])
        found = {name: column(name, "bool") for name in ("terminated", "truncated", "valid", "first")}
        found |= seen(obs) | {"action": column("action", "int64"), "reward": column("reward", "float32")}
        found["log_prob"] = -found["reward"]
        if finals:
            found["final/index"] = np.array([(t, lane) for t, lane, _ in finals], np.int32)
            found |= {f"final/{name}": value for name, value in seen(np.array([obs for *_, obs in finals])).items()}
        if self.memory:
            found["memory/core"] = found["reward"][0][:, None] * np.float32([1, 2])
        found["episode/return"] = np.zeros(1, np.float32)
        return found


def seen(numbers: Array) -> Columns:
    picture = np.stack([numbers % 251, numbers % 241], axis=-1).astype(np.uint8)
    return {
        "obs/picture": picture.reshape(*numbers.shape, 2, 1, 1),
        "obs/number": np.stack([numbers, -numbers], axis=-1).astype(np.float32),
    }
