"""Finished payloads in, at once and from any thread; on disk, on their way and accounted for, out."""

from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Condition, Event, Thread
from time import monotonic
from typing import NamedTuple

from farfield.experience.spool import Place, Spool

PACE = 0.05  # seconds in which what comes is gathered: a thread that wakes up for each fragment holds up the program


class Remaining(NamedTuple):
    """What no server owns yet; false when there is nothing."""

    payloads: int  # fragments and credits
    bytes: int
    in_memory: int  # payloads of these that end with the process; the others wait on disk for the next one

    def __bool__(self) -> bool:
        return self.payloads > 0


class Tally:
    """Counts of an outbox; plain numbers, written by it alone."""

    def __init__(self) -> None:
        self.fragments = self.steps = self.credits = self.owned = self.refused = self.adopted = 0
        self.dropped_fragments = self.dropped_steps = 0
        self.refusal = ""  # the last one's reason


class Parcel:
    """A payload on its way."""

    __slots__ = ("_box", "payload", "place", "size", "steps", "stream")

    def __init__(self, box: "Outbox", stream: str, size: int, steps: int, payload: bytes | None) -> None:
        self._box, self.stream, self.size, self.steps, self.payload = box, stream, size, steps, payload
        self.place: Place | None = None

    def load(self) -> bytes | None:
        """Give the payload, from memory or from disk."""
        if self.payload is not None:
            return self.payload
        return self._box.spool.read(self.place) if self.place else None

    def settle(self, refusal: str | None, lost: bool = False) -> None:
        """Hear what became of it."""
        self._box.settle(self, refusal, lost=lost)


class Outbox:
    """Keeps what is finished until the server owns it: written to disk first, then sent, by a thread of its own.

    `tick` is called by that thread now and then; `lost` is told of streams in which a fragment is missing for ever.
    """

    def __init__(
        self, spool: Spool, *, memory: int, send: Callable[[Parcel], None], lost: Callable[[str], None],
        tick: Callable[[], None], pause: float,
    ) -> None:  # fmt: skip
        self.spool, self.tally = spool, Tally()
        self.held = 0  # bytes in memory
        self._memory, self._send, self._lost, self._tick, self._pause = memory, send, lost, tick, pause
        self._came: SimpleQueue[Parcel | None] = SimpleQueue()
        self._changed = Condition()
        self._open: dict[Parcel, None] = {}  # not settled, in their order
        self._bytes = self._placed = 0  # of these: their bytes; how many are on disk
        self._shut = False
        self._hurry = Event()  # somebody waits
        self._thread = Thread(target=self._run, name="farfield-outbox", daemon=True)

    def start(self) -> None:
        """Begin, with what dead processes left."""
        self._thread.start()

    def put(self, stream: str, payload: bytes, steps: int) -> None:
        """Take a fragment, or count it as dropped where there is no room."""
        with self._changed:
            self.tally.fragments += 1
            self.tally.steps += steps
        if not self._take(Parcel(self, stream, len(payload), steps, payload)):
            with self._changed:
                self.tally.dropped_fragments += 1
                self.tally.dropped_steps += steps
            self._lost(stream)

    def credit(self, payload: bytes) -> bool:
        """Take a late reward; false where there is no room."""
        self.tally.credits += 1
        return self._take(Parcel(self, "", len(payload), 0, payload))

    def settle(self, parcel: Parcel, refusal: str | None, *, lost: bool) -> None:
        """Forget a parcel: owned, refused or lost."""
        if parcel not in self._open:  # dealt with already
            return
        if parcel.place is not None:
            self.spool.release(parcel.place)
        with self._changed:
            del self._open[parcel]
            self._bytes -= parcel.size
            self._placed -= parcel.place is not None
            self._release(parcel)
            if lost:
                self.tally.dropped_fragments += 1
                self.tally.dropped_steps += parcel.steps
            elif refusal is not None:
                self.tally.refused += 1
                self.tally.refusal = refusal
            else:
                self.tally.owned += 1
            self._changed.notify_all()
        if (lost or refusal is not None) and parcel.stream:
            self._lost(parcel.stream)

    def remaining(self) -> Remaining:
        """Say what is left."""
        with self._changed:
            return Remaining(len(self._open), self._bytes, len(self._open) - self._placed)

    def wait(self, deadline: float, given_up: Callable[[], bool]) -> None:
        """Wait until nothing is left, or until that makes no sense."""
        self._hurry.set()
        with self._changed:
            while self._open and not given_up() and (left := deadline - monotonic()) > 0:
                self._changed.wait(min(left, 0.1))
        self._hurry.clear()

    def close(self) -> Remaining:
        """Take nothing more; keep on disk what is left, and say what that is. The link is closed by now."""
        with self._changed:
            self._shut = True
        self._hurry.set()
        self._came.put(None)
        self._thread.join(5.0)
        for parcel in list(self._open):
            if parcel.place is None and parcel.payload is not None:
                self._place(parcel)
        left = self.remaining()
        self.spool.close()
        return left

    def _take(self, parcel: Parcel) -> bool:
        with self._changed:
            if self._shut or self.held + parcel.size > self._memory:
                return False
            self.held += parcel.size
            self._open[parcel] = None
            self._bytes += parcel.size
        self._came.put(parcel)
        return True

    def _run(self) -> None:
        for place in self.spool.adopt():
            parcel = Parcel(self, "", place.size, 0, None)
            parcel.place = place
            with self._changed:
                self._open[parcel] = None
                self._bytes += parcel.size
                self._placed += 1
                self.tally.adopted += 1
            self._send(parcel)
        due = monotonic() + self._pause
        while True:
            with suppress(Empty):
                if not self._keep_all(self._came.get(timeout=max(0.0, due - monotonic()))):
                    return
                self._hurry.wait(min(PACE, self._pause))
            if monotonic() >= due:
                self._tick()
                due = monotonic() + self._pause

    def _keep_all(self, parcel: Parcel | None) -> bool:
        """Deal with a parcel and with what came after it; false at the end."""
        while parcel is not None:
            self._keep(parcel)
            if self._came.empty():
                return True
            parcel = self._came.get()
        return False

    def _keep(self, parcel: Parcel) -> None:
        """Write a parcel to disk, and send it. Where much waits, the disk alone holds it."""
        self._place(parcel)
        if parcel.place is not None and self.held > self._memory // 2:
            with self._changed:
                self._release(parcel)
        self._send(parcel)

    def _place(self, parcel: Parcel) -> None:
        if parcel.payload is not None and (place := self.spool.write(parcel.payload)) is not None:
            with self._changed:
                parcel.place = place
                self._placed += 1

    def _release(self, parcel: Parcel) -> None:
        if parcel.payload is not None:
            self.held -= parcel.size
            parcel.payload = None
