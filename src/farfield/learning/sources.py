"""A topic in, decoded fragments out: where a learner reads when its actors are other processes."""

import numpy as np

from farfield.codec import decode_fragment
from farfield.protocols import Transport
from farfield.types import Columns, Cursor, Fragment

PATIENCE = 0.05  # seconds to wait before the learner looks after other things
LIMIT = 64  # records in one read


class TopicSource:
    """Reads fragments from a topic; its cursor is part of the checkpoint when the transport outlives the learner."""

    def __init__(self, transport: Transport, topic: str, *, spec: str, durable: bool) -> None:
        self._transport, self._topic, self._spec, self._durable = transport, topic, spec, durable
        self._cursor: Cursor = {}

    def arrive(self, wait: bool) -> list[Fragment]:
        """Give what has come, waiting a moment if asked to."""
        records, self._cursor = self._transport.read(
            self._topic, after=self._cursor, limit=LIMIT, timeout=PATIENCE if wait else 0.0
        )
        if records:
            self._transport.note(self._topic, "learner", self._cursor)
        return [decode_fragment(record.payload, spec=self._spec) for record in records]

    def state(self) -> Columns:
        """Give the place up to which everything was used or waits in the feed."""
        cursor = self._cursor if self._durable else {}
        return {"cursor": np.asarray(sorted(cursor.items()), np.int64).reshape(-1, 2)}

    def restore(self, state: Columns) -> None:
        """Read on from there."""
        self._cursor = {int(partition): int(offset) for partition, offset in state["cursor"]}
