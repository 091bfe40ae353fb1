"""A partitioned log in files that survives any kill: payloads in, SQLite with full syncs, records for any process."""

from concurrent.futures import Future
from pathlib import Path
from threading import Condition, Lock
from time import monotonic
from urllib.parse import quote
from zlib import crc32

from msgspec import Struct

from farfield.errors import ConfigError, MissingError
from farfield.transports._table import Row, Table, create, said
from farfield.transports._writer import CLOSED, Limits, Writer
from farfield.types import ALL, Buffer, Cursor, Record, Share

DURABLE = True  # what was appended outlives the process
LARGEST = 512 << 20  # bytes of one payload; SQLite takes a little less than twice that
READ = 32 << 20  # bytes of one read, whatever its limit
SHORT = 0.0005  # seconds of the first pause between two looks
IDLE, PATIENT = 0.05, 0.01  # seconds of the longest pause, where nothing came for long; a pause's share of that time


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the log."""

    folder: str  # one file for each topic
    room: int = 4 << 30  # bytes of payload that a topic may hold
    wait: float = 10.0  # seconds that an append waits for room
    partitions: int = 1  # of each topic, for ever
    poll: float = 0.004  # seconds between two looks at what other processes wrote, while something comes


class Topic:
    """What one transport knows of a topic: its own connection to read by, and the writer where it appends."""

    def __init__(self, name: str, config: Config) -> None:
        self._name, self._config = name, config
        self.path = Path(config.folder) / f"{quote(name, safe=' ')}.db"
        self.news = Condition()
        self._commits = 0
        self._opening, self._reading, self._noting = Lock(), Lock(), Lock()
        self._writer: Writer | None = None
        self._reader: Table | None = None
        self._noter: Table | None = None
        self.closed = False
        self.came = monotonic()  # when a read found something last

    def append(self, payload: Buffer, key: str) -> "Future[None]":
        """Hand a record to the writer, which the first one brings to life."""
        kept = bytes(payload)  # no copy of what is bytes already, and nobody can change it on its way
        most = min(self._config.room, LARGEST)
        if len(kept) > most:
            raise ConfigError(
                f"topic {self._name!r}: a record of {len(kept)} bytes can never fit into {most}: use fewer steps or "
                "lanes in a fragment, or raise [transport] room"
            )
        partition = crc32(key.encode()) % self._config.partitions
        writer = self._writer
        if writer is None:
            with self._opening:
                if self.closed:
                    raise MissingError(CLOSED)
                limits = Limits(self._config.room, self._config.wait, self._config.partitions)
                writer = self._writer = self._writer or Writer(self.path, self._name, limits, self._tell)
        return writer.append(Row(partition, key, kept))

    def look(self, after: Cursor, share: Share, limit: int, seen: int) -> tuple[list[Record], Cursor, int]:
        """Read what is there; when nothing was committed since version `seen`, that is nothing."""
        with self._reading:
            if self._reader is None:
                if self.closed or not self.path.exists():
                    return [], after, -1
                self._reader = Table(self.path, durable=False)
            version = self._reader.version()
            if version == seen:
                return [], after, seen
            return *_read(self._reader, after, share, limit), version

    def note(self, group: str, cursor: Cursor) -> None:
        """Keep how far a group of readers is."""
        with self._noting:
            if self.closed:
                raise MissingError(CLOSED)
            if self._noter is None:
                create(self.path)
                self._noter = Table(self.path, durable=False)
            self._noter.note(group, cursor)

    def pause(self, commits: int, seconds: float, longest: float) -> None:
        """Wait for a commit after the first `commits` ones of this process; others' are found by looking again."""
        if self._writer is None:
            seconds = min(seconds, longest)
        with self.news:
            self.news.wait_for(lambda: self.closed or self._commits != commits, seconds)

    @property
    def commits(self) -> int:
        """How often this process has committed."""
        return self._commits

    def close(self) -> None:
        """Commit what has queued and wake whoever waits."""
        with self._opening:
            self.closed = True
        if self._writer is not None:
            self._writer.close()
        self._tell()
        with self._reading, self._noting:
            for table in (self._reader, self._noter):
                if table is not None:
                    table.close()
            self._reader = self._noter = None

    def _tell(self) -> None:
        with self.news:
            self._commits += 1
            self.news.notify_all()


class DiskTransport:
    """Implements Transport for the processes of one machine: one of them appends to a topic, any may read it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._topics: dict[str, Topic] = {}
        self._lock = Lock()
        self._closed = False

    def append(self, topic: str, payload: Buffer, *, key: str) -> "Future[None]":
        """Hand over a payload; it is on the disk when its future is done."""
        return self._topic(topic).append(payload, key)

    def read(
        self, topic: str, *, after: Cursor, share: Share = ALL, limit: int, timeout: float
    ) -> tuple[list[Record], Cursor]:
        """Read what is there; when nothing is, wait up to `timeout` seconds for the first record."""
        if not 0 <= share.part < share.of or limit < 1:
            raise ConfigError(
                f"topic {topic!r}: expected 0 <= part < of and limit >= 1, came {share} and limit {limit}"
            )
        log, end = self._topic(topic), monotonic() + timeout
        cursor, seen, pause = dict(after), -1, SHORT
        longest = max(self._config.poll, min(IDLE, PATIENT * (monotonic() - log.came)))
        if longest > self._config.poll:  # nothing came for long: nobody minds a few milliseconds
            pause = longest
        while True:
            commits = log.commits
            records, cursor, seen = log.look(cursor, share, limit, seen)
            now = monotonic()
            if records:
                log.came = now
            if records or now >= end or self._closed:
                return records, cursor
            log.pause(commits, end - now, pause)
            pause = min(longest, 2 * pause)

    def note(self, topic: str, group: str, cursor: Cursor) -> None:
        """Say how far a group of readers is; the appender deletes what all groups are done with."""
        self._topic(topic).note(group, cursor)

    def close(self) -> None:
        """Put on the disk what was appended, then give all files back."""
        with self._lock:
            self._closed = True
            topics = list(self._topics.values())
        for topic in topics:
            topic.close()

    def _topic(self, name: str) -> Topic:
        with self._lock:
            if self._closed:
                raise MissingError(CLOSED)
            return self._topics.get(name) or self._topics.setdefault(name, Topic(name, self._config))


def make(config: Config) -> DiskTransport:
    """Open a folder of topics; files come with their first record."""
    if config.room < 1 or config.wait < 0 or config.partitions < 1 or config.poll <= 0 or not config.folder:
        raise ConfigError(
            f"[transport] disk: expected a folder, room and partitions >= 1, wait >= 0, poll > 0, came {config}"
        )
    with said(Path(config.folder)):
        Path(config.folder).mkdir(parents=True, exist_ok=True)
    return DiskTransport(config)


def _read(table: Table, after: Cursor, share: Share, limit: int) -> tuple[list[Record], Cursor]:
    """Share the limit between partitions, beginning with another one each time, so that none starves."""
    extents = table.extents()
    mine = range(share.part, len(extents), share.of)
    cursor = dict(after)
    for number in mine:
        # Beyond the end stood a log that is gone: this one is read from its start.
        if cursor.get(number, 0) > extents[number].next:
            cursor[number] = extents[number].first
    records: list[Record] = []
    turn = sum(cursor.get(number, 0) for number in mine)
    for place in range(len(mine)):
        number = mine[(turn + place) % len(mine)]
        most = -(-(limit - len(records)) // (len(mine) - place))
        if most:
            start = max(extents[number].first, cursor.get(number, 0))
            records += table.read(number, start, limit=most, size=READ // len(mine))
    return records, cursor | {record.partition: record.offset + 1 for record in records}
