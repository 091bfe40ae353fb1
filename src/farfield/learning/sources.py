"""A topic in, decoded fragments and credits out: where a learner reads what other processes experienced."""

from collections import deque

import numpy as np

from farfield.codec import decode_credit, decode_fragment, kind_of
from farfield.errors import CorruptError, SpecError
from farfield.protocols import Transport
from farfield.types import Columns, Credit, Cursor, Fragment, Record

PATIENCE = 0.05  # seconds to wait before the learner looks after other things
LIMIT = 64  # records in one read
GROUP = "learner"
LARGEST = float(np.finfo(np.float32).max)


class TopicSource:
    """Reads a topic; its cursor is part of the checkpoint when the transport outlives the learner.

    A durable log forgets what is noted. So only places that a checkpoint knows are noted, and of these the last but
    one: should the newest checkpoint be damaged, the one before it can be gone on from.
    """

    def __init__(self, transport: Transport, topic: str, *, spec: str, durable: bool) -> None:
        self._transport, self._topic, self._spec, self._durable = transport, topic, spec, durable
        self._cursor: Cursor = {}
        self._told: Cursor = {}  # that the last state holds
        self._kept: deque[Cursor] = deque([{}], maxlen=2)  # that the last checkpoints hold
        self._known = not durable  # whether the log knows that there is a learner, and keeps everything for it
        self.unreadable = 0  # payloads that are no fragment and no credit of this run

    def arrive(self, wait: bool) -> list[Fragment | Credit]:
        """Give what has come, waiting a moment if asked to."""
        if not self._known:
            self._transport.note(self._topic, GROUP, self._kept[-1])
            self._known = True
        records, self._cursor = self._transport.read(
            self._topic, after=self._cursor, limit=LIMIT, timeout=PATIENCE if wait else 0.0
        )
        if records and not self._durable:
            self._transport.note(self._topic, GROUP, self._cursor)
        found = [self._decoded(record) for record in records]
        return [one for one in found if one is not None]

    def commit(self) -> None:
        """Hear that the last `state` is in a checkpoint which cannot get lost."""
        if self._durable:
            self._kept.append(self._told)
            self._transport.note(self._topic, GROUP, self._kept[0])

    def state(self) -> Columns:
        """Give the place up to which everything was used or waits in the feed."""
        self._told = self._cursor if self._durable else {}
        return {
            "cursor": np.asarray(sorted(self._told.items()), np.int64).reshape(-1, 2),
            "unreadable": np.asarray(self.unreadable),
        }

    def restore(self, state: Columns) -> None:
        """Read on from there."""
        self._cursor = {int(partition): int(offset) for partition, offset in state["cursor"]}
        self._kept = deque([self._cursor], maxlen=2)
        self.unreadable = int(state.get("unreadable", 0))

    def _decoded(self, record: Record) -> Fragment | Credit | None:
        """Read a payload; what a log holds that nobody can read is counted, since it will be there for ever."""
        try:
            if kind_of(record.payload) == "Credit":
                credit = decode_credit(record.payload)
                if abs(credit.reward) <= LARGEST:
                    return credit
                raise CorruptError(f"credit {credit.id!r}: its reward {credit.reward} is not finite in 32 bits")
            fragment = decode_fragment(record.payload, spec=self._spec)
            _check(fragment)
        except (CorruptError, SpecError):
            if not self._durable:
                raise  # our own actors, just now: they are wrong, and would be for ever
            self.unreadable += 1
            return None
        return fragment


def _check(fragment: Fragment) -> None:
    """See that a fragment has what all that handles it relies on."""
    columns = fragment.columns
    reward = columns.get("reward", np.zeros(0))
    flags = [columns.get(name, np.zeros(0)) for name in ("terminated", "truncated", "valid", "first")]
    if (
        reward.ndim != 2
        or not reward.size
        or any(flag.shape != reward.shape or flag.dtype != np.bool_ for flag in flags)
    ):
        raise CorruptError(f"fragment {fragment.name}: its rewards and flags are not one each for steps and lanes")
