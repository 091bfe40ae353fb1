"""Parcels in, sent in their order until the server owns or refuses each, over an Append call that may break."""

from collections import deque
from collections.abc import Callable, Iterator
from threading import Condition
from time import monotonic
from typing import Protocol

from farfield import codec
from farfield.errors import CorruptError
from farfield.transports.link.lifeline import Lifeline, Stream
from farfield.types import Welcome
from farfield.v1 import farfield_pb2 as wire

CHUNK = 1 << 20  # bytes of small payloads that travel as one
MOST = 256  # payloads in a chunk
STALL = 30.0  # seconds without an answer after which what is on its way is sent again over a new call


class Parcel(Protocol):
    """A payload that waits; it may lie on disk."""

    size: int

    def load(self) -> bytes | None:
        """Give the payload; none where it is lost."""
        ...

    def settle(self, refusal: str | None, lost: bool = False) -> None:
        """Hear what became of it: owned, refused for ever and why, or lost on this side."""
        ...


class Appender:
    """Keeps one Append call open, also with nothing to send: it brings the welcome and what is settled."""

    def __init__(
        self,
        open_call: Callable[[Iterator[wire.Up]], Stream],
        hello: wire.Hello,
        *,
        welcomed: Callable[[Welcome], object],
        settled: Callable[[dict[str, int]], object],
    ) -> None:
        self.sent = 0  # payloads, counted again when sent again
        self.line = Lifeline("farfield-append", self._once)
        self._open_call, self._hello, self._welcomed, self._settled = open_call, hello, welcomed, settled
        self._work = Condition()
        self._waiting: deque[Parcel] = deque()
        self._under_way: deque[Parcel] = deque()
        self._bytes = 0  # under way
        self._welcome: Welcome | None = None  # of the call that is open
        self._life = 0  # of the call; requests of an earlier one end
        self._heard = 0.0

    def send(self, parcel: Parcel) -> None:
        """Queue a parcel."""
        with self._work:
            self._waiting.append(parcel)
            self._work.notify_all()

    def close(self) -> None:
        """Send nothing more."""
        with self._work:
            self._life += 1
            self._work.notify_all()
        self.line.close()

    def _once(self) -> None:
        with self._work:
            self._life += 1
            self._welcome = None
            self._waiting.extendleft(reversed(self._under_way))
            self._under_way.clear()
            self._bytes = 0
            life = self._life
        try:
            self._talk(life)
        finally:
            with self._work:
                if self._life == life:
                    self._life += 1
                self._work.notify_all()

    def _talk(self, life: int) -> None:
        owned = 0
        for down in self.line.hold(self._open_call(self._requests(life))):
            self._heard = monotonic()
            if self._welcome is None:
                welcome = codec.read_welcome(down.welcome)
                if not (welcome.steps >= 1 and welcome.quota >= 1 and welcome.limit >= 1):
                    raise CorruptError(f"a welcome with steps, quota or limit below 1 came: {welcome}")
                self._welcomed(welcome)
                with self._work:
                    self._welcome = welcome
                    self._work.notify_all()
            self.line.well()
            if down.owned > owned:  # a reply with marks alone may leave it out
                self._settle(down, owned)
                owned = down.owned
            if down.settled:
                marks = {mark.stream.hex(): mark.fragments for mark in down.settled}
                self._settled(marks)

    def _settle(self, down: wire.Down, before: int) -> None:
        with self._work:
            count = down.owned - before
            if count > len(self._under_way):
                raise CorruptError(
                    f"{down.owned} payloads are said to be owned, but {before + len(self._under_way)} left"
                )
            parcels = [self._under_way.popleft() for _ in range(count)]
            self._bytes -= sum(parcel.size for parcel in parcels)
            self._work.notify_all()
        refused = {refusal.index - before: f"{refusal.kind}: {refusal.text}" for refusal in down.refusals}
        for number, parcel in enumerate(parcels):
            parcel.settle(refused.get(number))

    def _requests(self, life: int) -> Iterator[wire.Up]:
        yield wire.Up(hello=self._hello)
        while True:
            with self._work:
                while self._life == life and not self._ready():
                    self._work.wait(1.0 if self._under_way else None)
                    if self._under_way and monotonic() - self._heard > STALL:
                        self._life += 1
                        self.line.drop()
                if self._life != life:
                    return
                payloads, strays = self._chunk()
            for parcel, refusal in strays:
                parcel.settle(refusal, lost=refusal is None)
            if payloads:
                yield wire.Up(payloads=payloads)

    def _ready(self) -> bool:
        if self._welcome is None or not self._waiting:
            return False
        return not self._under_way or self._bytes + self._waiting[0].size <= self._welcome.quota

    def _chunk(self) -> tuple[list[bytes], list[tuple[Parcel, str | None]]]:
        """Give payloads to send now, and parcels that never can be: too large ones, and what a disk has lost."""
        assert self._welcome is not None
        if not self._under_way:
            self._heard = monotonic()
        payloads: list[bytes] = []
        strays: list[tuple[Parcel, str | None]] = []
        size = 0
        while self._ready() and len(payloads) < MOST and (not payloads or size + self._waiting[0].size <= CHUNK):
            parcel = self._waiting.popleft()
            if parcel.size > self._welcome.limit:
                text = f"{parcel.size} bytes are over the limit of {self._welcome.limit}: use fewer lanes or steps"
                strays.append((parcel, f"FullError: {text}"))
                continue
            payload = parcel.load()
            if payload is None:
                strays.append((parcel, None))
                continue
            payloads.append(payload)
            self._under_way.append(parcel)
            self._bytes += parcel.size
            size += parcel.size
        self.sent += len(payloads)
        return payloads, strays
