"""Records in, commits out: the one appender of a topic, whose thread puts on the disk together what has queued."""

import fcntl
import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from threading import Condition, RLock, Thread
from typing import IO, NamedTuple

from farfield.errors import ConflictError, FarfieldError, FullError, MissingError
from farfield.transports._table import Row, Table, create, said
from farfield.types import Cursor

QUEUED = 64 << 20  # bytes that may wait for their commit
BATCH = 16 << 20  # bytes of one commit, so that its first record does not wait long
RECORDS = 4096  # of one commit, and deleted at once
MOVED = 64 << 20  # bytes after which the write-ahead log is moved into the file
LONGEST = 512 << 20  # bytes of write-ahead log that readers may keep alive
CLOSED = "this disk transport was closed: make a new one"
POLL = 0.004  # seconds between two looks at notes of other processes while there is no room


class Limits(NamedTuple):
    """What a writer is told by the transport's config."""

    room: int
    wait: float
    partitions: int


class Item(NamedTuple):
    """A record on its way to the disk."""

    row: Row
    done: "Future[None]"


class Writer:
    """The one appender of a topic: its thread commits together whatever has queued meanwhile."""

    def __init__(self, path: Path, topic: str, limits: Limits, told: Callable[[], None]) -> None:
        self._path, self._topic, self._limits, self._told = path, topic, limits, told
        self._lock = _locked(path.with_suffix(".lock"), topic)
        try:
            self._table: Table | None = self._open()
        except BaseException:
            self._lock.close()
            raise
        lock = RLock()
        self._work, self._space = Condition(lock), Condition(lock)
        self._queue: deque[Item] = deque()
        self._queued = self._waiting = self._moved = 0
        self._notes: dict[str, Cursor] = {}
        self._seen = -1  # version of the file when notes were looked at last
        self._more = self._stopping = False  # more: there is something left to free
        self._thread = Thread(target=self._run, name=f"disk {topic}", daemon=True)
        self._thread.start()

    def append(self, row: Row) -> "Future[None]":
        """Queue a record, waiting for room."""
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()  # what is on its way cannot be called back
        size = len(row.payload)
        with self._space:
            if not self._fits(size) and not self._wait(size):
                raise FullError(self._crowd(size))
            if self._stopping:
                raise MissingError(CLOSED)
            self._queue.append(Item(row, done))
            self._queued += size
            self._work.notify()
        return done

    def close(self) -> None:
        """Commit what has queued, then stop."""
        with self._work:
            self._stopping = True
            self._work.notify_all()
            self._space.notify_all()
        self._thread.join()
        if self._table is not None:
            self._table.close()
        self._lock.close()

    def _open(self) -> Table:
        create(self._path)
        table = Table(self._path, durable=True)
        try:
            table.divide(self._limits.partitions)
            self._measure(table)
        except BaseException:
            table.close()
            raise
        return table

    def _measure(self, table: Table) -> None:
        extents = table.extents()
        self._size = sum(extent.size for extent in extents.values())
        self._ends = {number: extent.next for number, extent in extents.items()}

    def _fits(self, size: int) -> bool:
        held = self._size + self._queued + size <= self._limits.room
        return self._stopping or (held and (self._queued + size <= QUEUED or not self._queue))

    def _wait(self, size: int) -> bool:
        self._waiting += 1
        self._work.notify()
        try:
            return self._space.wait_for(lambda: self._fits(size), self._limits.wait)
        finally:
            self._waiting -= 1

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        finally:  # by closing, or by an error that nobody foresaw: then no one may wait for ever
            with self._space:
                self._stopping = True
                left, self._queue = self._queue, deque[Item]()
                self._space.notify_all()
            _finish(left, FullError(f"topic {self._topic!r}: its writer has stopped; its log says why: start again"))

    def _turn(self) -> bool:
        """Commit what has queued, or wait for it; says whether to go on."""
        with self._work:
            if not self._queue and not self._stopping and not self._more:
                self._work.wait(POLL if self._waiting else None)
            if not self._queue and self._stopping:
                return False
            batch = self._take()
        failure: FarfieldError | None = None
        try:
            self._commit([item.row for item in batch])
        except FarfieldError as error:
            failure = error
        with self._space:
            if failure is not None:
                batch += self._queue  # what queued behind would overtake it
                self._queue.clear()
            self._queued -= sum(len(item.row.payload) for item in batch)
            self._space.notify_all()
        if batch:
            self._told()
        _finish(batch, failure)
        self._tidy()
        return True

    def _take(self) -> list[Item]:
        batch: list[Item] = []
        size = 0
        while self._queue and size < BATCH and len(batch) < RECORDS:
            batch.append(self._queue.popleft())
            size += len(batch[-1].row.payload)
        return batch

    def _commit(self, rows: list[Row]) -> None:
        """Put records on the disk; after a failure the file is opened again, to see what it holds."""
        try:
            self._table = self._table or self._open()
            if rows:
                self._table.insert(rows)
                self._measure(self._table)
                self._moved += sum(len(row.payload) for row in rows)
        except FarfieldError:
            self._forget()
            raise

    def _tidy(self) -> None:
        """Free what readers noted, and move the write-ahead log on, while nobody waits for a commit."""
        table = self._table
        if table is None:
            return
        try:
            version = table.version()
            if version != self._seen:
                self._notes = table.notes()
                self._more = table.free(self._notes, RECORDS)
                self._seen = -1 if self._more else version
                self._measure(table)
            if self._moved > MOVED:
                self._moved = 0
                table.checkpoint(LONGEST)
        except FarfieldError:
            self._forget()  # the next append says what is wrong
        with self._space:
            self._space.notify_all()

    def _forget(self) -> None:
        if self._table is not None:
            self._table.close()
        self._table, self._seen, self._more = None, -1, False

    def _crowd(self, size: int) -> str:
        readers = ", ".join(f"{name!r} at {cursor}" for name, cursor in self._notes.items())
        return (
            f"topic {self._topic!r}: no room for {size} bytes within {self._limits.wait} s ({self._size} of "
            f"{self._limits.room} used, {self._queued} on their way, log ends at {self._ends}, readers: "
            f"{readers or 'nobody ever noted a cursor'}): "
            "see that its readers run and note their cursors, or raise [transport] room"
        )


def _finish(items: Iterable[Item], failure: FarfieldError | None) -> None:
    for item in items:
        if failure is None:
            item.done.set_result(None)
        else:
            item.done.set_exception(failure)


def _locked(path: Path, topic: str) -> IO[str]:
    """Be the only process that appends, for as long as this one lives."""
    with said(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            file.close()
            raise ConflictError(
                f"topic {topic!r} in {path.parent}: process {owner} appends to it already; stop that one first, or use "
                "another folder"
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        return file
