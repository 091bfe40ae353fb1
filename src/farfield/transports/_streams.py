"""Takes messages to send and gives records that came, over streams that may break: queues with bounds, no SDK."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from threading import Condition, Lock, Thread
from typing import Any, NamedTuple

from farfield.codec import LIMIT
from farfield.errors import ConfigError, FarfieldError, FullError, MissingError
from farfield.types import Buffer, Cursor, Record, Share
from farfield.v1 import farfield_pb2 as wire

CHUNK = 1 << 20  # bytes of small messages that travel as one
MOST = 256  # messages in a chunk
_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)  # seconds before opening a stream again


class Stream(NamedTuple):
    """An open call: what comes, raising ConnectionError once it is lost, and how to end it."""

    replies: Iterator[Any]
    cancel: Callable[[], object]


class Message(NamedTuple):
    """One append that is not acknowledged yet."""

    topic: str
    key: str
    payload: bytes
    done: "Future[None]"


class Uplink:
    """Sends what is appended, in order, and again after a lost stream, until it is acknowledged."""

    def __init__(
        self, start: Callable[[Iterator[wire.AppendRequest]], Stream], *, to: str, wait: float, bound: int
    ) -> None:
        self._start, self._to, self._wait, self._bound = start, to, wait, bound
        lock = Lock()
        self._room, self._work = Condition(lock), Condition(lock)  # appenders wait for one, the stream for the other
        self._waiting: deque[Message] = deque()
        self._sent: deque[Message] = deque()
        self._held = 0  # bytes in both
        self._life = 0  # of the stream; requests of an earlier one end
        self._closing = self._dropped = False
        self._stream: Stream | None = None
        self._trouble = "no answer yet"
        self._thread = Thread(target=self._run, name="farfield-uplink", daemon=True)
        self._thread.start()

    def append(self, topic: str, payload: Buffer, key: str) -> "Future[None]":
        """Queue a message as soon as there is room."""
        message = Message(topic, key, bytes(payload), Future())
        message.done.set_running_or_notify_cancel()
        size = len(message.payload)
        if size > LIMIT:
            raise FullError(f"topic {topic!r}: {size} bytes are over the limit of {LIMIT}: use fewer steps or lanes")
        with self._room:
            if not self._room.wait_for(lambda: self._fits(size), self._wait):
                raise FullError(
                    f"topic {topic!r}: {self._to} has not acknowledged {self._held} bytes within {self._wait} s "
                    f"({self._trouble}): see that the learner runs and that its topic has room"
                )
            if self._closing:
                raise MissingError(f"the transport to {self._to} was closed: make a new one")
            self._waiting.append(message)
            self._held += size
            self._work.notify_all()
        return message.done

    def close(self) -> None:
        """Deliver what is queued, as long as that takes no longer than `wait`; fail the rest."""
        with self._work:
            self._closing = True
            self._room.notify_all()
            self._work.notify_all()
        self._thread.join(self._wait)
        with self._work:
            self._dropped = True
            self._work.notify_all()
            if self._stream is not None:
                self._stream.cancel()
        self._thread.join()
        while self._waiting:
            message = self._waiting.popleft()
            reason = f"closed before {self._to} acknowledged it ({self._trouble}): append it again"
            message.done.set_exception(MissingError(f"topic {message.topic!r}: {reason}"))

    def _fits(self, size: int) -> bool:
        return self._closing or self._held == 0 or self._held + size <= self._bound

    def _run(self) -> None:
        tries = 0
        while stream := self._begin():
            settled = 0
            try:
                for reply in stream.replies:
                    self._settle(reply, settled)
                    settled, tries = reply.settled, 0
            except (ConnectionError, ConfigError) as error:
                self._trouble = str(error)
            self._requeue(_PAUSES[min(tries, len(_PAUSES) - 1)])
            tries += 1

    def _begin(self) -> Stream | None:
        """Open a stream once there is something to send; none at the end."""
        with self._work:
            self._work.wait_for(lambda: self._waiting or self._closing)
            if self._dropped or not self._waiting:
                return None
            self._stream = self._start(self._requests(self._life))
            return self._stream

    def _requests(self, life: int) -> Iterator[wire.AppendRequest]:
        while True:
            with self._work:
                self._work.wait_for(lambda: self._waiting or self._closing or self._life != life)
                if self._life != life or not self._waiting:
                    return
                messages = self._chunk()
                self._sent.extend(messages)
            request = wire.AppendRequest()
            for message in messages:  # `add`, because a message that is put into another one is copied
                request.messages.add(topic=message.topic, key=message.key, payload=message.payload)
            yield request

    def _chunk(self) -> list[Message]:
        messages = [self._waiting.popleft()]
        size = len(messages[0].payload)
        while self._waiting and len(messages) < MOST and size + len(self._waiting[0].payload) <= CHUNK:
            messages.append(self._waiting.popleft())
            size += len(messages[-1].payload)
        return messages

    def _settle(self, reply: wire.AppendReply, before: int) -> None:
        with self._room:
            settled = [self._sent.popleft() for _ in range(min(reply.settled - before, len(self._sent)))]
            self._held -= sum(len(message.payload) for message in settled)
            self._room.notify_all()
        refused = {error.index - before: error for error in reply.errors}
        for number, message in enumerate(settled):
            if number in refused:
                message.done.set_exception(_error(refused[number].kind, refused[number].text))
            else:
                message.done.set_result(None)

    def _requeue(self, pause: float) -> None:
        """Put what was not acknowledged before what was not sent, and wait a little."""
        with self._work:
            self._life += 1
            self._waiting.extendleft(reversed(self._sent))
            self._sent.clear()
            self._work.notify_all()
            if self._waiting:
                self._work.wait_for(lambda: self._dropped, pause)


class Downlink:
    """Follows a share of a topic in the background, up to a bound ahead of its reader."""

    def __init__(
        self, start: Callable[[wire.ReadRequest], Stream], topic: str, share: Share, place: Cursor, bound: int
    ) -> None:
        self.place = place  # of the reader
        self._start, self._topic, self._share, self._bound = start, topic, share, bound
        self._changed = Condition()
        self._ahead = dict(place)
        self._found: deque[Record | Cursor] = deque()  # a cursor: the place changed without a record
        self._held = 0
        self._closed = False
        self._refused: ConfigError | None = None
        self._stream: Stream | None = None
        self._thread = Thread(target=self._run, name="farfield-downlink", daemon=True)
        self._thread.start()

    def take(self, limit: int, timeout: float) -> list[Record]:
        """Give what has come, moving the reader's place; wait for the first record."""
        records: list[Record] = []
        with self._changed:
            self._changed.wait_for(lambda: self._found or self._closed or self._refused, timeout)
            if self._refused:
                raise self._refused
            while self._found and len(records) < limit:
                item = self._found.popleft()
                if isinstance(item, Record):
                    records.append(item)
                    self.place[item.partition] = item.offset + 1
                else:
                    self.place |= item
            self._held -= sum(len(record.payload) for record in records)
            self._changed.notify_all()
        return records

    def close(self) -> None:
        """Stop following."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            if self._stream is not None:
                self._stream.cancel()
        self._thread.join()

    def _run(self) -> None:
        tries = 0
        while stream := self._begin():
            tries += 1
            try:
                for reply in stream.replies:
                    self._keep(reply)
                    tries = 0
            except ConnectionError:
                pause = _PAUSES[min(tries, len(_PAUSES) - 1)]
            except ConfigError as error:
                pause, self._refused = 0.0, error
            else:
                pause = _PAUSES[0]
            with self._changed:
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed, pause)

    def _begin(self) -> Stream | None:
        with self._changed:
            if self._closed or self._refused:
                return None
            request = wire.ReadRequest(topic=self._topic, after=self._ahead, part=self._share.part, of=self._share.of)
            self._stream = self._start(request)
            return self._stream

    def _keep(self, reply: wire.ReadReply) -> None:
        records = [Record(r.payload, r.key, r.partition, r.offset) for r in reply.records]
        moved = dict(reply.cursor)
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._held < self._bound)
            self._found.extend(records)
            if moved:
                self._found.append(moved)
            self._held += sum(len(record.payload) for record in records)
            self._ahead |= moved | {record.partition: record.offset + 1 for record in records}
            self._changed.notify_all()


def _error(kind: str, text: str) -> FarfieldError:
    known = {error.__name__: error for error in FarfieldError.__subclasses__()}
    return known.get(kind, FarfieldError)(text)
