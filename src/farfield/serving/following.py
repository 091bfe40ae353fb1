"""A run's log in, its newest version out: one thread that reads announcements and tells whoever listens."""

import time
from collections.abc import Callable
from threading import Event, Lock, Thread

from farfield.errors import FarfieldError, MissingError
from farfield.protocols import Transport
from farfield.serving.releases import Releases
from farfield.types import Cursor, Version, Weights

READ = 64  # records at a time
BUSY = 10.0  # seconds after an announcement in which the log is watched closely
WATCH, PAUSE = 0.25, 0.05  # seconds of one close look; between two looks when nothing has come for long
TIDY = 1.0  # seconds between two times of tidying up
RECOVER = 1.0  # seconds after the log could not be read

Newest = Callable[[], tuple[Version, Weights] | None]


class Following:
    """Follows `model_updates` from its construction, which reads what is there, until it is closed."""

    def __init__(self, log: Transport, topic: str, newest: Newest, *, tidy: Callable[[], None], name: str) -> None:
        self.releases = Releases()
        self.announced = 0.0  # seconds since 1970 when something came last
        self._log, self._topic, self._tidy = log, topic, tidy
        self._listeners: tuple[Callable[[], None], ...] = ()
        self._lock = Lock()
        self._place = self._catch_up(newest)
        self._closing = Event()
        self._thread = Thread(target=self._run, name=f"follow {name}", daemon=True)
        self._thread.start()

    def listen(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Have `changed` called after each change; gives what ends that."""
        with self._lock:
            self._listeners += (changed,)
        return lambda: self._ignore(changed)

    def stop(self) -> None:
        """Follow no longer, and have those who listen look; where the log is closed next, its thread ends at once."""
        self._closing.set()
        self._tell()

    @property
    def stopped(self) -> bool:
        """Whether nothing new will come."""
        return self._closing.is_set()

    def join(self) -> None:
        """Wait for the thread to end."""
        self._thread.join()

    def _ignore(self, changed: Callable[[], None]) -> None:
        with self._lock:
            self._listeners = tuple(each for each in self._listeners if each is not changed)

    def _catch_up(self, newest: Newest) -> Cursor:
        """Read what is there; where that makes no version, take the registry's."""
        records, place = self._log.read(self._topic, after={}, limit=READ, timeout=0.0)
        while records:
            self.releases.take([record.payload for record in records])
            records, place = self._log.read(self._topic, after=place, limit=READ, timeout=0.0)
        if self.releases.newest is None and (found := newest()) is not None:
            self.releases.seed(*found)
        return place

    def _run(self) -> None:
        news = tidied = time.monotonic()
        while not self._closing.is_set():
            now = time.monotonic()
            close = now - news < BUSY
            try:
                if self._look(WATCH if close else 0.0):
                    news = now
                elif not close:
                    self._closing.wait(PAUSE)
                if now - tidied > TIDY:
                    tidied = now
                    self._tidy()
            except MissingError:  # the log was closed
                return
            except FarfieldError as error:
                self.releases.trouble = str(error)
                self._closing.wait(RECOVER)

    def _look(self, timeout: float) -> bool:
        records, self._place = self._log.read(self._topic, after=self._place, limit=READ, timeout=timeout)
        if not records:
            return False
        self.announced = time.time()
        if self.releases.take([record.payload for record in records]):
            self._tell()
        return True

    def _tell(self) -> None:
        for changed in self._listeners:
            changed()
