"""A call that may break in; a thread that opens it again for ever, until it is closed or refused for good, out."""

from collections.abc import Callable, Iterator
from threading import Condition, Thread
from typing import Any, NamedTuple

from farfield.errors import FarfieldError

PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)  # seconds before opening a call again


class Stream(NamedTuple):
    """An open call: what comes, raising ConnectionError once it is lost, and how to end it."""

    replies: Iterator[Any]
    cancel: Callable[[], object]


class Lifeline:
    """Runs `once` again and again. It opens a call with `hold`, says `well` when answers make sense, and never returns

    while they do. What it raises is counted: ConnectionError as a loss, anything else as rubbish from the server.
    """

    def __init__(self, name: str, once: Callable[[], None]) -> None:
        self.refusal: FarfieldError | None = None  # why it will not be tried again
        self.trouble = "no answer yet"  # what went wrong last
        self.connects = self.rubbish = 0
        self.connected = False
        self._name, self._once = name, once
        self._changed = Condition()
        self._cancel: Callable[[], object] | None = None
        self._closed = False
        self._tries = 0
        self._thread: Thread | None = None

    @property
    def closed(self) -> bool:
        """Say whether it was told to end."""
        return self._closed

    def start(self) -> None:
        """Begin, in a thread of its own."""
        self._thread = Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def hold(self, stream: Stream) -> Iterator[Any]:
        """Give the replies of a call that has just been opened, and cancel it when everything ends."""
        with self._changed:
            self._cancel = stream.cancel
            if self._closed:
                stream.cancel()
        return stream.replies

    def drop(self) -> None:
        """End the call that is open: it is opened again."""
        with self._changed:
            if self._cancel is not None:
                self._cancel()

    def well(self) -> None:
        """Note an answer that makes sense."""
        self._tries = 0
        if not self.connected:
            self.connected = True
            self.connects += 1

    def refuse(self, error: FarfieldError) -> None:
        """Try no more."""
        self.refusal = error

    def close(self, timeout: float = 5.0) -> None:
        """End the call and the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            if self._cancel is not None:
                self._cancel()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._closed and self.refusal is None:
            try:
                self._once()
                self.trouble = "the server ended the call"
            except ConnectionError as error:
                self.trouble = str(error)
            except Exception as error:  # noqa: BLE001 - whatever a server sends must not end the thread
                self.rubbish += 1
                self.trouble = f"it answered rubbish: {type(error).__name__}: {error}"
            self.connected = False
            with self._changed:
                cancel, self._cancel = self._cancel, None
                if cancel is not None:
                    cancel()
                self._changed.wait_for(lambda: self._closed, PAUSES[min(self._tries, len(PAUSES) - 1)])
            self._tries += 1
