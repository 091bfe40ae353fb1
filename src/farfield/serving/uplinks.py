"""One client's Append call: payloads in, one reply for all that became durable or were refused meanwhile."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

from farfield.errors import ConflictError, CorruptError, FarfieldError, FullError, MissingError, SpecError
from farfield.serving.hosted import Hosted, Taken
from farfield.serving.pulses import Pulse
from farfield.v1 import farfield_pb2 as wire

TEXT = 1000  # characters of a refusal
LARGE = 1 << 20  # bytes from which a payload is checked by another thread, so that other calls go on meanwhile
PAUSE = 0.02  # seconds before a payload is tried again for which there was no room
STREAMS = 4096  # of one call whose settled marks it is told
RECHECK = 30.0  # seconds after which a token is looked at again


class Talk(Protocol):
    """A call in which both sides speak."""

    async def read(self) -> Any:
        """Give the next message; None after the last one."""
        ...

    async def write(self, message: Any) -> None:
        """Send a message as soon as the client takes it."""
        ...


class Entry(NamedTuple):
    """A payload that came: on its way to the disk, or refused."""

    owned: "Future[None] | None"
    size: int
    refusal: wire.Down.Refusal | None


class Uplink:
    """Reads as long as less than the quota is on its way; whatever it has taken it answers, in order."""

    def __init__(self, hosted: Hosted, pulse: Pulse, sender: str, *, pool: Executor, admit: Callable[[], None]) -> None:
        self._hosted, self._pulse, self._sender, self._pool, self._admit = hosted, pulse, sender, pool, admit
        self._loop = asyncio.get_running_loop()
        self._wake, self._room = asyncio.Event(), asyncio.Event()
        self._entries: deque[Entry] = deque()
        self._held = self._came = self._owned = self._told = 0
        self._streams: dict[str, None] = {}
        self._marks: dict[str, int] = {}
        self._ended = False
        self._failure: BaseException | None = None
        self._cold = True  # the first payload may open files
        self._recheck = self._loop.time() + RECHECK

    async def run(self, first: wire.Up, talk: Talk) -> None:
        """Serve until the client is done, or raise what ended it; payloads may come with the first message."""
        reader = asyncio.create_task(self._read(first, talk))
        try:
            while not (self._ended and not self._entries):
                await self._wake.wait()
                self._wake.clear()
                if reply := self._reply():
                    await talk.write(reply)
                if self._failure is not None:
                    raise self._failure
            if reader.done():
                reader.result()  # raises what nobody foresaw
        finally:
            reader.cancel()
            for stream in self._streams:
                self._pulse.leave(stream, self._settle)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Take nothing more; what was taken is still answered."""
        self._fail(None)

    async def _read(self, first: wire.Up, talk: Talk) -> None:
        up: wire.Up | None = first
        try:
            while up is not None and not self._ended:
                for payload in up.payloads:
                    await self._take(payload)
                if up.probe:
                    await self._enter(len(up.probe), partial(self._hosted.probe, up.probe))
                if self._loop.time() > self._recheck:
                    self._recheck = self._loop.time() + RECHECK
                    self._admit()
                up = await talk.read()
        except (FarfieldError, OSError) as error:
            self._fail(error)
        finally:
            self._fail(None)

    def _fail(self, error: BaseException | None) -> None:
        if isinstance(error, (MissingError, FullError)):  # the log was closed under it, or its disk is full: for a
            error = ConflictError(str(error))  # client not the end, but a reason to send again
        self._failure, self._ended = self._failure or error, True
        self._wake.set()
        self._room.set()

    async def _take(self, payload: bytes) -> None:
        taken = await self._enter(len(payload), partial(self._hosted.take, payload, self._sender))
        if isinstance(taken, Taken) and taken.stream and taken.stream not in self._streams:
            if len(self._streams) >= STREAMS:
                oldest = next(iter(self._streams))
                del self._streams[oldest]
                self._pulse.leave(oldest, self._settle)
            self._streams[taken.stream] = None
            if count := self._pulse.attend(taken.stream, self._settle):
                self._settle({taken.stream: count})

    async def _enter(self, size: int, append: "Callable[[], Taken | Future[None]]") -> "Taken | Future[None] | None":
        """Hand something to the log as soon as there is room; what is refused gets its place among the answers."""
        taken, refusal = None, None
        while self._held and self._held + size > self._hosted.limits.quota and not self._ended:
            self._room.clear()
            await self._room.wait()
        while True:
            try:
                if size > LARGE or self._cold:
                    taken = await self._loop.run_in_executor(self._pool, append)
                    self._cold = False
                else:
                    taken = append()
            except FullError:
                await asyncio.sleep(PAUSE)
                if self._ended:
                    raise
                continue
            except (SpecError, CorruptError) as error:
                refusal = wire.Down.Refusal(index=self._came, kind=type(error).__name__, text=str(error)[:TEXT])
            break
        self._came += 1
        self._held += size
        self._entries.append(Entry(taken.owned if isinstance(taken, Taken) else taken, size, refusal))
        if len(self._entries) == 1:
            self._watch()
        return taken

    def _watch(self) -> None:
        """Be woken when the first entry is dealt with."""
        owned = self._entries[0].owned
        if owned is None or owned.done():
            self._wake.set()
        else:
            owned.add_done_callback(self._landed)

    def _landed(self, _: "Future[None]") -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._wake.set)

    def _settle(self, counts: dict[str, int]) -> None:
        self._marks |= counts
        self._wake.set()

    def _reply(self) -> wire.Down | None:
        """Say what became of all entries up to the first that is on its way; None when there is nothing to say."""
        refusals: list[wire.Down.Refusal] = []
        while self._entries and self._failure is None:
            owned, size, refusal = self._entries[0]
            if owned is not None and not owned.done():
                break
            if owned is not None and (error := owned.exception()) is not None:
                self._fail(error)  # the client sends again what was not owned
                break
            self._entries.popleft()
            self._held -= size
            self._owned += 1
            if refusal is not None:
                refusals.append(refusal)
        self._room.set()
        if self._entries and self._failure is None:
            self._watch()
        if self._owned == self._told and not self._marks:
            return None
        marks, self._marks, self._told = self._marks, {}, self._owned
        settled = [
            wire.Announcement.Settled(stream=bytes.fromhex(stream), fragments=count) for stream, count in marks.items()
        ]
        return wire.Down(owned=self._owned, refusals=refusals, settled=settled)
