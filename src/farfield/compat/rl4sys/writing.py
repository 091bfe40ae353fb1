"""Finished episodes in, rows of the session out: held until their rewards are known, then written in order."""

import warnings
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import RLock
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from farfield.compat.rl4sys.common.action import RL4SysAction
from farfield.compat.rl4sys.decisions import Decisions
from farfield.types import Array, Decision

Credit = Callable[[Decision, Any, Literal["set"]], object]
HOST = "host"  # who decided what the policy did not


class Ended(Struct, eq=False):
    """An episode, or a part of one that grew too long."""

    actions: list[RL4SysAction]
    last: tuple[Array, Array | None] | None = None  # observation and mask behind it, where it was truncated
    missing: int = 0  # rewards that are not set yet


class Counts(Struct):
    """What an agent counts besides the session's own counters."""

    written: int = 0  # steps that were handed to the session
    unrewarded: int = 0  # of these: without a reward, learned from as 0
    unfinished: int = 0  # decisions whose outcome never became known
    late: int = 0  # rewards that came after their steps were handed over, and followed as credits


class Writing:
    """Writes finished episodes to one stream of the session."""

    def __init__(self, part: Any, decisions: Decisions, *, credit: Credit, hold: int, lock: RLock) -> None:
        self._part, self._decisions, self._credit, self._hold, self._lock = part, decisions, credit, hold, lock
        self._track: Any = part.take(0)
        self._held: deque[Ended] = deque()
        self.counts, self.closed = Counts(), False

    def yield_turn(self) -> None:
        """Wait while the learner is behind."""
        self._part.yield_turn(self._track)

    def take(self, ended: Ended) -> None:
        """Write it when all its rewards are set, or when as many others have ended as the file's send_frequency."""
        if self.closed:  # actions are still decided, and nothing is recorded
            return
        for action in ended.actions:
            if not action.is_reward_set():
                ended.missing += 1
            action.told = partial(self._told, ended)
        if not ended.missing:
            self._write(ended)
            return
        self._held.append(ended)
        self.release(self._hold)

    def release(self, hold: int) -> None:
        """Write the oldest of those that wait for rewards until `hold` are left."""
        while len(self._held) > hold:
            self._write(self._held.popleft())

    def _told(self, ended: Ended, action: RL4SysAction, first: bool) -> None:
        """Hear of a reward that is set after the end."""
        with self._lock:
            ended.missing -= first
            if not ended.missing and ended in self._held:
                self._held.remove(ended)
                self._write(ended)

    def _write(self, ended: Ended) -> None:
        if ended.missing and not self.counts.unrewarded:
            warnings.warn(
                f"{ended.missing} of {len(ended.actions)} decisions of an episode got no reward and count as 0: call "
                "update_reward on each of them, also when it is 0",
                stacklevel=5,
            )
        self.counts.unrewarded += ended.missing
        for action in ended.actions[:-1]:
            self._record(action)
            if action.done:
                self._track.end()
        self._record(ended.actions[-1])
        self._track.end(ended.last is not None, *(ended.last or ()))
        self._part.episodes += 1
        self._part.give(self._track, 0)
        self._track = self._part.take(0)  # another one, where this stream is to get no more
        self.counts.written += len(ended.actions)

    def _record(self, action: RL4SysAction) -> None:
        """Write one row: as the policy's own where the program carried out what was chosen for it."""
        reward, row = action.rew or 0.0, self._decisions.find(action)
        if row is None or not carried_out(action):
            obs, mask = self._decisions.seen(action)
            self._track.record(obs, _plain(action.act), reward, mask, HOST)
        elif row.source:  # such as a fallback, while no version was there
            self._track.record(row.obs, row.action, reward, row.mask, row.source)
        else:
            self._track.put(row.obs, row.action, row.log_prob, version=row.version, attempt=row.attempt, mask=row.mask)
            self._track.reward(reward)
        action.row, action.told = None, partial(self._late, Decision(self._track.stream, self._track.decision))

    def _late(self, decision: Decision, action: RL4SysAction, first: bool) -> None:
        """Send a reward after its step."""
        self.counts.late += 1
        if not self.closed:
            self._credit(decision, action.rew, "set")


def carried_out(action: RL4SysAction) -> bool:
    """Say whether the program did what was decided."""
    act, shown = action.act, action.shown
    if type(shown) is int:
        return act == shown if type(act) is int else bool(np.asarray(act).reshape(-1)[0] == shown)
    return bool(np.array_equal(act, shown))


def _plain(act: Any) -> Any:
    """Give an action as the session takes it: a choice as an int, numbers as a vector."""
    array = np.asarray(act)
    return array.reshape(-1) if array.dtype.kind == "f" else int(array.reshape(-1)[0])
