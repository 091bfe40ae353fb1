"""A TCP proxy in threads of this process, for tests: an address in, another one out, and in between what goes wrong."""

import random
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

CHUNK = 1 << 14
LOOK = 0.05  # seconds between two looks whether it was told to end
QUIET = 0.5  # seconds without an answer after which a repeated connection is over
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing forgets what is on its way, and says no goodbye


class Line:
    """One direction of one connection: what is read from `source` is written to `target` as the way wants it."""

    def __init__(self, source: socket.socket, target: socket.socket, rng: random.Random, *, up: bool) -> None:
        self.source, self.target, self.rng, self.up = source, target, rng, up
        self.kept = b""  # what waits until something else has passed
        self.seen = 0  # bytes
        self.happened = 0  # times that something went wrong
        self.ended = threading.Event()  # the other direction has the same one
        self._left = 0  # bytes until something happens again

    def due(self, data: bytes, least: int, most: int) -> bool:
        """Say whether it is time for something to happen: each time after another number of bytes."""
        self._left = self._left or self.rng.randrange(least, most)
        self._left -= len(data)
        if self._left > 0:
            return False
        self._left = 0
        self.happened += 1
        return True

    def cut(self) -> None:
        """Break both directions off."""
        for end in (self.source, self.target):
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.ended.set()


Way = Callable[[Line, bytes], None]


def forward(line: Line, data: bytes) -> None:
    """Do what a network should."""
    line.target.sendall(data)


def delay(line: Line, data: bytes) -> None:
    """Let everything wait a little, and now and then for long."""
    late = line.due(data, 2_000, 20_000)
    line.ended.wait(0.5 if late else 0.01)
    line.target.sendall(data)


def drop(line: Line, data: bytes) -> None:
    """Break connections off between two chunks, some soon after their beginning."""
    if line.due(data, 300, 30_000):
        line.cut()
    else:
        line.target.sendall(data)


def halve(line: Line, data: bytes) -> None:
    """Deliver in small pieces; after a while half a chunk alone, and then nothing more."""
    if line.due(data, 1_000, 40_000):
        line.target.sendall(data[: len(data) // 2])
        line.cut()
        return
    while data and not line.ended.is_set():
        size = line.rng.choice([1, 9, 100, CHUNK])
        line.target.sendall(data[:size])
        data = data[size:]


def duplicate(line: Line, data: bytes) -> None:
    """Deliver some chunks twice."""
    line.target.sendall(data)
    if line.due(data, 5_000, 40_000):
        line.target.sendall(data)


def reorder(line: Line, data: bytes) -> None:
    """Deliver some chunks after the next one."""
    if line.kept:
        line.target.sendall(data + line.kept)
        line.kept = b""
    elif line.due(data, 5_000, 40_000):
        line.kept = data
    else:
        line.target.sendall(data)


def repeat(line: Line, data: bytes) -> None:
    """Break connections off, and do all that they said once more later, beside the next one of the same client."""
    if line.up:
        line.kept += data
    line.target.sendall(data)
    if line.due(data, 5_000, 40_000):
        line.cut()


def swallow(line: Line, data: bytes) -> None:
    """Take everything, deliver nothing, and never hang up: both ends are alone and do not know it."""
    line.happened += 1


WAYS: dict[str, Way] = {way.__name__: way for way in (forward, delay, drop, halve, duplicate, reorder, repeat, swallow)}


class Proxy:
    """Listens on `address`; its way may be changed while connections are open. All of it is plain bytes to it."""

    def __init__(self, target: str, way: str = "forward", *, seed: int = 0) -> None:
        self.way, self.connections, self.repeated = way, 0, 0
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._rng = random.Random(seed)
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._door.getsockname()[1]}"
        self._closing = threading.Event()
        self._lines: list[Line] = []
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    @property
    def happened(self) -> int:
        """Count what went wrong on purpose."""
        return sum(line.happened for line in list(self._lines))

    def break_all(self) -> None:
        """Break off all connections that are open."""
        for line in list(self._lines):
            if not line.ended.is_set():
                line.cut()

    def close(self) -> None:
        """End everything."""
        self._closing.set()
        self.break_all()
        for thread in list(self._threads):
            thread.join(10.0)
        self._door.close()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def _clients(self) -> Iterator[socket.socket]:
        while not self._closing.is_set():
            if select.select([self._door], [], [], LOOK)[0]:
                yield self._door.accept()[0]

    def _accept(self) -> None:
        for client in self._clients():
            self.connections += 1
            try:
                server = socket.create_connection(self._target, timeout=5.0)
            except OSError:  # nobody is there
                client.close()
                continue
            server.settimeout(None)
            lines = [
                Line(one, other, random.Random(self._rng.random()), up=one is client)
                for one, other in ((client, server), (server, client))
            ]
            lines[1].ended = lines[0].ended
            self._lines += lines
            self._begin(self._down, lines[1], self._begin_up(lines[0]))

    def _begin_up(self, line: Line) -> threading.Thread:
        self._begin(self._carry, line)
        return self._threads[-1]

    def _down(self, line: Line, up: threading.Thread) -> None:
        """Carry answers; the sockets are closed when neither direction uses them any more."""
        self._carry(line)
        for end in (line.source, line.target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes who waits in a write
        up.join()
        line.source.close()
        line.target.close()

    def _carry(self, line: Line) -> None:
        try:
            while not line.ended.is_set():
                if select.select([line.source], [], [], LOOK)[0]:
                    data = line.source.recv(CHUNK)
                    if not data:
                        break
                    line.seen += len(data)
                    WAYS[self.way](line, data)
        except OSError:  # one of the ends is gone
            pass
        line.ended.set()
        if line.kept and self.way == "repeat":
            self._repeat(line.kept)

    def _repeat(self, said: bytes) -> None:
        """Say it once more, to nobody's ears."""
        with suppress(OSError), socket.create_connection(self._target, timeout=5.0) as again:
            again.sendall(said)
            again.settimeout(QUIET)
            with suppress(TimeoutError):
                while again.recv(CHUNK):
                    pass
            self.repeated += 1
