"""A partitioned log inside one process: takes payloads as they are, gives the same objects to every reader."""

from concurrent.futures import Future
from threading import Condition
from time import monotonic
from zlib import crc32

from msgspec import Struct

from farfield.errors import ConfigError, FullError, MissingError
from farfield.types import ALL, Buffer, Cursor, Record, Share


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the log."""

    room: int = 256 << 20  # bytes of payload that a topic may hold
    wait: float = 10.0  # seconds that an append waits for room
    partitions: int = 1
    first: int = 0  # offset of the first record; a log that follows a lost one begins above its last


class Partition:
    """Records by offset: those from `start` on are kept, the next one gets `end`."""

    def __init__(self, first: int) -> None:
        self.records: dict[int, Record] = {}
        self.start = self.end = first


class Topic:
    """Partitions that share room, and how far each group of readers is."""

    def __init__(self, config: Config) -> None:
        self.changed = Condition()
        self.partitions = [Partition(config.first) for _ in range(config.partitions)]
        self.size = 0
        self.noted: dict[str, Cursor] = {}

    def free(self) -> None:
        """Forget what every group that was ever noted is done with."""
        for number, partition in enumerate(self.partitions):
            keep = min(cursor.get(number, 0) for cursor in self.noted.values())
            while partition.start < min(keep, partition.end):
                self.size -= _size(partition.records.pop(partition.start).payload)
                partition.start += 1


class MemoryTransport:
    """Implements Transport for threads of one process."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._topics: dict[str, Topic] = {}
        self._closed = False
        self._done: Future[None] = Future()  # whatever is appended here is owned at once
        self._done.set_result(None)

    def append(self, topic: str, payload: Buffer, *, key: str) -> "Future[None]":
        """Keep the payload itself; the caller must not change it afterwards."""
        log, size = self._topic(topic), _size(payload)
        if size > self._config.room:
            raise ConfigError(
                f"topic {topic!r}: a record of {size} bytes can never fit into room = {self._config.room}: "
                "use fewer steps or lanes in a fragment, or raise [transport] room"
            )
        number = crc32(key.encode()) % self._config.partitions
        with log.changed:
            if not log.changed.wait_for(
                lambda: self._closed or log.size + size <= self._config.room, self._config.wait
            ):
                raise FullError(self._crowd(topic, log, size))
            self._check_open()
            partition = log.partitions[number]
            partition.records[partition.end] = Record(payload, key, number, partition.end)
            partition.end += 1
            log.size += size
            log.changed.notify_all()
        return self._done

    def read(
        self, topic: str, *, after: Cursor, share: Share = ALL, limit: int, timeout: float
    ) -> tuple[list[Record], Cursor]:
        """Read what is there; when nothing is, wait up to `timeout` seconds for the first record."""
        if not 0 <= share.part < share.of or limit < 1:
            raise ConfigError(
                f"topic {topic!r}: expected 0 <= part < of and limit >= 1, came {share} and limit {limit}"
            )
        log, end = self._topic(topic), monotonic() + timeout
        mine = range(share.part, self._config.partitions, share.of)
        cursor = dict(after)
        with log.changed:
            while True:
                for number in mine:
                    # Beyond the end stood a log that is gone: this one is read from its start.
                    if cursor.get(number, 0) > log.partitions[number].end:
                        cursor[number] = log.partitions[number].start
                records = _take(log, mine, cursor, limit)
                left = end - monotonic()
                if records or left <= 0 or self._closed:
                    break
                log.changed.wait(left)
        return records, cursor | {record.partition: record.offset + 1 for record in records}

    def note(self, topic: str, group: str, cursor: Cursor) -> None:
        """Move a group forward and free what all groups are done with."""
        log = self._topic(topic)
        with log.changed:
            log.noted[group] = log.noted.get(group, {}) | cursor
            log.free()
            log.changed.notify_all()

    def close(self) -> None:
        """Wake everybody who waits and forget all records."""
        self._closed = True
        for log in list(self._topics.values()):
            with log.changed:
                log.changed.notify_all()
        self._topics.clear()

    def _topic(self, name: str) -> Topic:
        self._check_open()
        return self._topics.get(name) or self._topics.setdefault(name, Topic(self._config))

    def _check_open(self) -> None:
        if self._closed:
            raise MissingError("this memory transport was closed: make a new one")

    def _crowd(self, topic: str, log: Topic, size: int) -> str:
        ends = {number: partition.end for number, partition in enumerate(log.partitions)}
        readers = (
            ", ".join(f"{group!r} at {cursor}" for group, cursor in log.noted.items()) or "nobody ever noted a cursor"
        )
        return (
            f"topic {topic!r}: no room for {size} bytes within {self._config.wait} s ({log.size} of "
            f"{self._config.room} used, log ends at {ends}, readers: {readers}): see that its readers run "
            "and note their cursors, or raise [transport] room"
        )


def make(config: Config) -> MemoryTransport:
    """Open an empty log."""
    if config.room < 1 or config.wait < 0 or config.partitions < 1 or config.first < 0:
        raise ConfigError(f"[transport] memory: expected room and partitions >= 1, wait and first >= 0, came {config}")
    return MemoryTransport(config)


def _take(log: Topic, mine: range, cursor: Cursor, limit: int) -> list[Record]:
    """Share the limit between partitions, beginning with another one each time, so that none starves."""
    records: list[Record] = []
    turn = sum(cursor.get(number, 0) for number in mine)
    for place in range(len(mine)):
        number = mine[(turn + place) % len(mine)]
        partition = log.partitions[number]
        start = max(partition.start, cursor.get(number, 0))
        most = -(-(limit - len(records)) // (len(mine) - place))
        records += [partition.records[offset] for offset in range(start, min(partition.end, start + most))]
    return records


def _size(payload: Buffer) -> int:
    return len(payload) if isinstance(payload, bytes) else memoryview(payload).nbytes
