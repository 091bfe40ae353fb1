"""Fragments and late rewards in, fragments with these rewards out, once they have been held as long as a run says."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec
import numpy as np
from msgspec import Struct, structs

from farfield.codec import decode_fragment, encode_fragment
from farfield.learning.early import Early, Key
from farfield.learning.sources import LARGEST
from farfield.types import Array, Columns, Credit, Fragment

EARLY = 100_000  # credits that may be there before their fragments
HELD = 512 << 20  # bytes of fragments that are held at most

Carry = tuple[int, list[float]]  # seq of the fragment that it is for, and what changed in each lane's open episode


class Inner(Protocol):
    """Where fragments and credits come from."""

    unreadable: int

    def arrive(self, wait: bool) -> list[Fragment | Credit]:
        """Give what has come."""
        ...

    def commit(self) -> None:
        """Hear that the last `state` is in a checkpoint."""
        ...

    def state(self) -> Columns:
        """Give everything that an exact resume needs."""
        ...

    def restore(self, state: Columns) -> None:
        """Continue from it."""
        ...


class Counts(Struct):
    """What became of credits."""

    applied: int = 0
    late: int = 0  # their fragment was not held any more
    unknown: int = 0  # no fragment came for them, or one without such a decision
    repeated: int = 0  # an id that this decision had already
    hurried: int = 0  # fragments that were let go before their time, since there were too many


class Held(Struct):
    """A fragment until it is due."""

    fragment: Fragment
    due: float
    size: int
    before: Array | None = None  # its rewards as they came, once one of them was changed
    ids: set[Key] = msgspec.field(default_factory=lambda: set[Key]())


class Facts(Struct):
    """What the state holds besides arrays."""

    counts: Counts
    left: list[float]  # seconds for which each fragment is still held
    ids: list[list[Key]]
    early: list[tuple[float, Credit]]
    released: dict[str, int]
    carried: dict[str, Carry]


class CreditWindow:
    """Holds each fragment `window` seconds from when it came, and changes its rewards as credits say.

    Its stage is between a source and the learner; the order of fragments stays as it was. Without a window everything
    passes at once, and every credit is late.
    """

    def __init__(self, source: Inner, window: float, clock: Callable[[], float]) -> None:
        self._source, self._window, self._clock = source, window, clock
        self.counts = Counts()
        self._begin()

    def arrive(self, wait: bool) -> list[Fragment]:
        """Give the fragments that are due."""
        came = self._source.arrive(wait)
        if not self._window and not self._held:
            fragments = [one for one in came if isinstance(one, Fragment)]
            self.counts.late += len(came) - len(fragments)
            return fragments
        now = self._clock()
        for one in came:
            if isinstance(one, Fragment):
                self._hold(one, now)
            else:
                self._credit(one, now)
        self.counts.unknown += self._early.expire(now)
        return self._due(now)

    def numbers(self) -> dict[str, int]:
        """Give what was counted, by the names of the rows of metrics."""
        counts = self.counts
        return {
            "credits": counts.applied,
            "credits_late": counts.late,
            "credits_unknown": counts.unknown,
            "credits_repeated": counts.repeated,
            "hurried": counts.hurried,
            "unreadable": self._source.unreadable,
        }

    def commit(self) -> None:
        """Hear that the last `state` is in a checkpoint which cannot get lost."""
        self._source.commit()

    def state(self) -> Columns:
        """Give what is held, which rewards were changed, by which credits, and for how long it is held still."""
        now = self._clock()
        left, ids = [held.due - now for held in self._held], [sorted(held.ids) for held in self._held]
        facts = Facts(self.counts, left, ids, self._early.left(now), self._released, self._carried)
        state = self._source.state() | {"facts": _bytes(msgspec.json.encode(facts))}
        for i, held in enumerate(self._held):
            state[f"held/{i:08d}"] = _bytes(encode_fragment(held.fragment))
            if held.before is not None:
                state[f"before/{i:08d}"] = held.before
        return state

    def restore(self, state: Columns) -> None:
        """Continue; nothing is held longer than it would have been, or than the window is now."""
        self._source.restore(state)
        self._begin()
        if "facts" not in state:
            return  # written before there were credits
        facts = msgspec.json.decode(state["facts"].tobytes(), type=Facts)
        now = self._clock()
        self.counts, self._released, self._carried = facts.counts, facts.released, facts.carried
        for i, (left, ids) in enumerate(zip(facts.left, facts.ids, strict=True)):
            fragment = decode_fragment(state[f"held/{i:08d}"].tobytes())
            before = state.get(f"before/{i:08d}")
            if before is not None:
                fragment = _writable(fragment)
            self._keep(Held(fragment, now + min(left, self._window), _size(fragment), before, set(ids)))
        for left, credit in facts.early:
            self._early.add(credit, now + min(left, self._window))

    def _begin(self) -> None:
        """Hold nothing."""
        self._held: deque[Held] = deque()  # in the order in which they came, and so are due
        self._by_stream: dict[str, deque[Held]] = {}  # by their decisions; a fragment that came twice is here once
        self._bytes = 0
        self._early = Early()
        self._released: dict[str, int] = {}  # stream -> its first decision that was not given yet
        self._carried: dict[str, Carry] = {}

    def _hold(self, fragment: Fragment, now: float) -> None:
        held = Held(fragment, now + self._window, _size(fragment))
        if self._keep(held):
            for credit in self._early.take(fragment.stream, fragment.decision, _after(fragment)):
                self._apply(held, credit)

    def _keep(self, held: Held) -> bool:
        """Queue a fragment; says whether credits can be for it: not where it is older than what came before."""
        self._held.append(held)
        self._bytes += held.size
        stream = held.fragment.stream
        line = self._by_stream.setdefault(stream, deque())
        newest = _after(line[-1].fragment) if line else self._released.get(stream, 0)
        if held.fragment.decision < newest:
            return False
        line.append(held)
        return True

    def _credit(self, credit: Credit, now: float) -> None:
        line = self._by_stream.get(credit.stream, deque[Held]())
        # Most are for the newest fragments, and those are few.
        held = next((held for held in reversed(line) if held.fragment.decision <= credit.n), None)
        if held is not None and credit.n < _after(held.fragment):
            self._apply(held, credit)
        elif credit.n < self._released.get(credit.stream, 0):
            self.counts.late += 1
        elif self._early.has(credit):
            self.counts.repeated += 1
        elif self._early.count >= EARLY:
            self.counts.unknown += 1
        else:
            self._early.add(credit, now + self._window)

    def _apply(self, held: Held, credit: Credit) -> None:
        """Change one reward, unless that was done."""
        columns, key = held.fragment.columns, (credit.n, credit.id)
        row, lane = divmod(credit.n - held.fragment.decision, columns["reward"].shape[1])
        value = credit.reward + (float(columns["reward"][row, lane]) if credit.mode == "add" else 0.0)
        if key in held.ids:
            self.counts.repeated += 1
        elif not columns["valid"][row, lane] or abs(value) > LARGEST:
            self.counts.unknown += 1  # a row that nobody decided, or nothing that a reward can be
        else:
            if held.before is None:
                held.before, held.fragment = columns["reward"], _writable(held.fragment)
            held.fragment.columns["reward"][row, lane] = value
            held.ids.add(key)
            self.counts.applied += 1

    def _due(self, now: float) -> list[Fragment]:
        fragments: list[Fragment] = []
        while self._held and (self._held[0].due <= now or self._bytes > HELD):
            held = self._held.popleft()
            self._bytes -= held.size
            self.counts.hurried += held.due > now
            stream = held.fragment.stream
            line = self._by_stream.get(stream)
            if line and line[0] is held:
                line.popleft()
                self._released[stream] = _after(held.fragment)
                fragments.append(self._corrected(held))
            else:
                fragments.append(held.fragment)  # one that came twice: the learner knows
            if not line:
                self._by_stream.pop(stream, None)
        return fragments

    def _corrected(self, held: Held) -> Fragment:
        """Let the returns of finished episodes be the sums of the rewards as they are now."""
        fragment, columns = held.fragment, held.fragment.columns
        lanes = columns["reward"].shape[1]
        seq, carried = self._carried.pop(fragment.stream, (-1, []))
        follows = seq == fragment.seq and len(carried) == lanes
        if held.before is None and not follows:
            return fragment
        begun = np.array(carried) if follows else np.zeros(lanes)
        before = columns["reward"] if held.before is None else held.before
        total = begun + np.cumsum(columns["reward"] - before.astype(np.float64), axis=0)  # [T, N]
        ends = np.argwhere(columns["terminated"] | columns["truncated"])
        returns = columns.get("episode/return", np.zeros(0, np.float32)).copy()
        told = np.zeros(lanes)
        for place, (row, lane) in enumerate(ends):
            if len(returns) == len(ends):
                returns[place] += total[row, lane] - told[lane]
            told[lane] = total[row, lane]
        rest = total[-1] - told
        if rest.any():  # an episode that goes on tells its return later
            self._carried[fragment.stream] = fragment.seq + 1, rest.tolist()
        return structs.replace(fragment, columns=columns | {"episode/return": returns})


def _after(fragment: Fragment) -> int:
    """Give the number of the decision after a fragment's last one."""
    return fragment.decision + fragment.columns["reward"].size


def _size(fragment: Fragment) -> int:
    return sum(column.nbytes for column in fragment.columns.values())


def _writable(fragment: Fragment) -> Fragment:
    """Give a fragment with rewards of its own."""
    return structs.replace(fragment, columns=fragment.columns | {"reward": fragment.columns["reward"].copy()})


def _bytes(data: bytes) -> Array:
    return np.frombuffer(data, np.uint8)
