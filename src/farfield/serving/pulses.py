"""Changes of a run in, from the thread that follows it; waiting calls of one event loop woken up."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from farfield.serving.hosted import Hosted

PACE = 0.0005  # seconds that are left free for each follower that was woken: sending to all takes part of the time

Told = Callable[[dict[str, int]], None]


class Pulse:
    """Wakes those who follow versions, and tells each stream's call what of it was settled."""

    def __init__(self, hosted: Hosted) -> None:
        self._hosted, self._loop = hosted, asyncio.get_running_loop()
        self._followers: set[asyncio.Future[None]] = set()
        self._streams: dict[str, Told] = {}
        self._settled: Mapping[str, int] = hosted.settled
        self._ready, self._due = 0.0, False
        self._ignore = hosted.listen(self._hear)

    async def news(self) -> None:
        """Wait for a change; look for what has changed already before this."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._followers.add(future)
        try:
            await future
        finally:
            self._followers.discard(future)

    def attend(self, stream: str, told: Told) -> int:
        """Have `told` called with what is settled of a stream from now on; gives what is now."""
        self._streams[stream] = told
        return self._settled.get(stream, 0)

    def leave(self, stream: str, told: Told) -> None:
        """End that, unless another call has brought the stream since."""
        if self._streams.get(stream) == told:
            del self._streams[stream]

    def wake(self) -> None:
        """Wake all followers, to look whether they should go on."""
        for future in self._followers:
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        """Hear nothing more."""
        self._ignore()

    def _hear(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._change)

    def _change(self) -> None:
        """Ring now, or as soon as the followers of the last time have had theirs."""
        if self._due:
            return
        self._due = True
        self._loop.call_later(max(0.0, self._ready - self._loop.time()), self._ring)

    def _ring(self) -> None:
        self._due = False
        self._ready = self._loop.time() + PACE * len(self._followers)
        self.wake()
        before, now = self._settled, self._hosted.settled
        if before is now:
            return
        self._settled = now
        marks: dict[Told, dict[str, int]] = {}
        for stream, count in now.items():
            if stream in self._streams and before.get(stream) != count:
                marks.setdefault(self._streams[stream], {})[stream] = count
        for told, counts in marks.items():
            told(counts)
