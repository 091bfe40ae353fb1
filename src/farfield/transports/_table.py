"""One topic as an SQLite file: records in and out, how far its readers are, and what went wrong in our own words."""

import os
import secrets
import sqlite3
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from farfield.errors import ConfigError, ConflictError, CorruptError, FarfieldError, FullError
from farfield.types import Cursor, Record

PAGE = 32 << 10  # bytes; several fragments share one, and large ones need few
PATIENCE = 30.0  # seconds that a note waits for its turn to write
PAUSE = 0.001  # between two tries: the appender leaves only short gaps when it is busy
_BITS = 48  # a record's row number is its partition, then its offset in so many bits
_OFFSETS = (1 << _BITS) - 1
_SCHEMA = (
    "CREATE TABLE records (place INTEGER PRIMARY KEY, key TEXT NOT NULL, payload BLOB NOT NULL) STRICT",
    # `first` and `next` are kept beside the records, so that offsets never go back when all of those are gone.
    "CREATE TABLE partitions (number INTEGER PRIMARY KEY, first INTEGER NOT NULL, next INTEGER NOT NULL, "
    "size INTEGER NOT NULL) STRICT",
    "CREATE TABLE notes (reader TEXT PRIMARY KEY, cursor TEXT NOT NULL) STRICT",
)
_cursors = msgspec.json.Decoder(Cursor)


class Extent(NamedTuple):
    """Where a partition's records begin, where the next one goes, and how many bytes of payload are kept."""

    first: int
    next: int
    size: int


class Row(NamedTuple):
    """A record that gets its place."""

    partition: int
    key: str
    payload: bytes


class Table:
    """One connection to a topic's file; used by one thread at a time."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        self.path = path
        with said(path):
            self._base = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False,
                timeout=PATIENCE, cached_statements=32,
            )  # fmt: skip
            self._base.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._base.execute("PRAGMA wal_autocheckpoint = 0")  # the appender alone does it, between its commits
            self._base.execute("PRAGMA cache_size = -16384")

    def version(self) -> int:
        """Give a number that changes when another connection has committed something."""
        with said(self.path):
            return self._base.execute("PRAGMA data_version").fetchone()[0]

    def extents(self) -> dict[int, Extent]:
        """Give the partitions; none before somebody appends."""
        with said(self.path):
            rows = self._base.execute("SELECT number, first, next, size FROM partitions ORDER BY number").fetchall()
        return {number: Extent(*extent) for number, *extent in rows}

    def divide(self, partitions: int) -> None:
        """Settle for ever how many partitions there are."""
        with said(self.path):
            rows = [(number,) for number in range(partitions)]
            if not self.extents():
                self._base.executemany("INSERT OR IGNORE INTO partitions VALUES (?, 0, 0, 0)", rows)
        found = len(self.extents())
        if found != partitions:
            raise ConfigError(
                f"{self.path}: its records are in {found} partitions, the config says {partitions}: set [transport] "
                f"partitions = {found}, or begin in another folder"
            )

    def insert(self, rows: Sequence[Row]) -> None:
        """Keep records behind the others of their partitions; when this returns they are on the disk."""
        with self._change():
            extents = self.extents()
            placed: list[tuple[int, str, bytes]] = []
            for row in rows:
                first, place, size = extents[row.partition]
                extents[row.partition] = Extent(first, place + 1, size + len(row.payload))
                placed.append((row.partition << _BITS | place, row.key, row.payload))
            self._base.executemany("INSERT INTO records VALUES (?, ?, ?)", placed)
            self._settle(extents)

    def free(self, noted: dict[str, Cursor], most: int) -> bool:
        """Delete up to `most` records that every group which ever noted is done with; says whether more can go."""
        if not noted:
            return False
        left = most
        with self._change():
            extents = self.extents()
            for number, (first, after, size) in extents.items():
                keep = min(after, *(cursor.get(number, 0) for cursor in noted.values()))
                stop = min(keep, first + left)
                if first < stop:
                    where = (number << _BITS | first, number << _BITS | stop)
                    found = self._base.execute(
                        "SELECT coalesce(sum(length(payload)), 0) FROM records WHERE place >= ? AND place < ?", where
                    ).fetchone()[0]
                    self._base.execute("DELETE FROM records WHERE place >= ? AND place < ?", where)
                    extents[number] = Extent(stop, after, size - found)
                    left -= stop - first
            if left < most:
                self._settle(extents)
        return left == 0

    def read(self, partition: int, start: int, *, limit: int, size: int) -> list[Record]:
        """Give up to `limit` records from an offset on; stops after the one that makes them `size` bytes."""
        records: list[Record] = []
        with said(self.path):
            rows = self._base.execute(
                "SELECT place, key, payload FROM records WHERE place >= ? AND place <= ? ORDER BY place LIMIT ?",
                (partition << _BITS | start, partition << _BITS | _OFFSETS, limit),
            )
            for place, key, payload in rows:
                records.append(Record(payload, key, partition, place & _OFFSETS))
                size -= len(payload)
                if size <= 0:
                    break
            rows.close()
        return records

    def note(self, reader: str, cursor: Cursor) -> None:
        """Move a group of readers forward, in a transaction so small that it fits between two of the appender's."""
        self._base.execute("PRAGMA busy_timeout = 0")  # SQLite's own pauses grow until they meet no gap
        end = time.monotonic() + PATIENCE
        given = msgspec.json.encode(cursor).decode()
        while True:
            try:
                self._base.execute(
                    "INSERT INTO notes VALUES (?1, ?2) "
                    "ON CONFLICT (reader) DO UPDATE SET cursor = json_patch(cursor, ?2)",
                    (reader, given),
                )
            except sqlite3.OperationalError as error:
                if not _busy(error) or time.monotonic() > end:
                    raise _ours(error, self.path) from error
                time.sleep(PAUSE)
            else:
                return

    def notes(self) -> dict[str, Cursor]:
        """Give how far each group of readers is."""
        with said(self.path):
            return {reader: _cursors.decode(text) for reader, text in self._base.execute("SELECT * FROM notes")}

    def checkpoint(self, most: int) -> None:
        """Move what is in the write-ahead log into the file; wait for readers only when it is over `most` bytes."""
        with said(self.path):
            _, frames, _ = self._base.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            if frames * PAGE > most:
                self._base.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def close(self) -> None:
        """Give the file back."""
        with suppress(sqlite3.Error):  # a full disk only means that the log is moved by whoever opens it next
            self._base.close()

    def _settle(self, extents: dict[int, Extent]) -> None:
        rows = [(*extent, number) for number, extent in extents.items()]
        self._base.executemany("UPDATE partitions SET first = ?, next = ?, size = ? WHERE number = ?", rows)

    @contextmanager
    def _change(self) -> Generator[None]:
        """Do all or nothing of what is inside."""
        with said(self.path):
            try:
                self._base.execute("BEGIN IMMEDIATE")
                yield
                self._base.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._base.execute("ROLLBACK")
                raise


def create(path: Path) -> None:
    """Make an empty topic unless there is one; others see all of it or nothing."""
    if path.exists():
        return
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with said(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        base = sqlite3.connect(fresh, isolation_level=None)
        try:
            base.execute(f"PRAGMA page_size = {PAGE}")
            base.execute("PRAGMA journal_mode = WAL")
            for statement in _SCHEMA:
                base.execute(statement)
        finally:
            base.close()
        with suppress(FileExistsError):
            os.link(fresh, path)
        fresh.unlink()
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def said(path: Path) -> Generator[None]:
    """Say in our words what SQLite or the disk refused."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise _ours(error, path) from error


def _ours(error: sqlite3.Error | OSError, path: Path) -> FarfieldError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB} or (isinstance(error, sqlite3.Error) and not code):
        return CorruptError(
            f"{path}: {error}; what is in it cannot be trusted: move it away together with {path.name}-wal and "
            "begin again, or bring back a copy"
        )
    if isinstance(error, sqlite3.Error) and _busy(error):
        return ConflictError(
            f"{path}: another process keeps it from being written for more than {PATIENCE:g} s ({error}): "
            "see which program has the file open, and stop it"
        )
    return FullError(
        f"{path}: cannot be written or read ({error}): make room on the disk and allow access; what comes "
        "afterwards is kept again"
    )


def _busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
