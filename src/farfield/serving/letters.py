"""What was refused in, dead letters out: a topic of which only the newest are kept, so that no flood fills the disk."""

import time
from collections.abc import Callable
from threading import Lock

from farfield.codec import encode_dead
from farfield.errors import FarfieldError
from farfield.protocols import Transport
from farfield.types import Buffer, Cursor, Dead

PAYLOAD = 64 << 10  # bytes of what came that a letter holds
RATE, BURST = 20.0, 200.0  # letters a second, and how many at once
KEPT = 1000
REASON = 1000  # characters
_READ = 256  # records at a time when looking where a topic ends


class Tail:
    """A topic whose newest records alone are kept; `trim` forgets the others."""

    def __init__(self, log: Transport, topic: str, kept: int) -> None:
        self._log, self._topic, self._kept = log, topic, kept
        self._end: Cursor = {}
        self._noted: Cursor = {}

    def trim(self) -> None:
        """Look where the topic ends, and let the log free all but the newest."""
        records, self._end = self._log.read(self._topic, after=self._end, limit=_READ, timeout=0.0)
        while records:
            records, self._end = self._log.read(self._topic, after=self._end, limit=_READ, timeout=0.0)
        keep = {number: max(0, end - self._kept) for number, end in self._end.items()}
        if keep != self._noted:
            self._log.note(self._topic, "gateway", keep)
            self._noted = keep


class Letters:
    """Writes dead letters, so many a second at most; it never fails, and counts what it did not write."""

    def __init__(
        self, log: Transport, topic: str, *, rate: float = RATE, burst: float = BURST, kept: int = KEPT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.written = self.unwritten = 0
        self._log, self._topic, self._rate, self._burst, self._clock = log, topic, rate, burst, clock
        self._tail = Tail(log, topic, kept)
        self._credit, self._at = burst, clock()
        self._lock = Lock()

    def write(self, reason: str, sender: str, payload: Buffer, size: int | None = None) -> None:
        """Keep what was refused, cut where it is long; `size` where only a part of it is here."""
        with self._lock:
            now = self._clock()
            self._credit = min(self._burst, self._credit + (now - self._at) * self._rate)
            self._at = now
            if self._credit < 1:
                self.unwritten += 1
                return
            self._credit -= 1
        view = memoryview(payload)
        letter = Dead(
            reason[:REASON], sender, time.time(), view.nbytes if size is None else size, bytes(view[:PAYLOAD])
        )
        try:
            self._log.append(self._topic, encode_dead(letter), key=sender)
        except FarfieldError:  # no room for it, or the log is closed: the sender is told all the same
            self.unwritten += 1
        else:
            self.written += 1

    def trim(self) -> None:
        """Let the log forget old letters."""
        self._tail.trim()
