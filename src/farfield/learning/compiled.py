"""An update that is compiled in the background: a Config goes in, the compiled function for it comes out when ready."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from msgspec import Struct

from farfield.learning import hyper

C = TypeVar("C", bound=Struct)
Update = Callable[..., Any]


class Compiled(Generic[C]):
    """The update in force, and its successor while that is compiled.

    `compile(config)` traces and compiles; it runs in a thread of its own, so that compiling overlaps with the
    start of actors and a change of shape never stops learning.
    """

    def __init__(self, config: C, compile: Callable[[C], Update]) -> None:  # noqa: A002 (it is what it does)
        self._compile = compile
        self._wanted = config
        self._running = config
        self._update = _begin(compile, config)
        self._next: Future[Update] | None = None

    @property
    def config(self) -> C:
        """What was asked for last."""
        return self._wanted

    @property
    def running(self) -> C:
        """What the next update uses unless a compilation finishes before it."""
        return hyper.mixed(self._wanted, self._running)

    @property
    def pending(self) -> tuple[str, ...]:
        """Name the fields whose new values wait for their compilation."""
        return hyper.differing(self._running, self._wanted)

    def tune(self, config: C) -> None:
        """Use `config`: live fields from the next update on, the others once compiled."""
        if hyper.differing(self._wanted, config):
            self._next = _begin(self._compile, config) if hyper.differing(self._running, config) else None
        self._wanted = config

    def restore(self, wanted: C, running: C) -> None:
        """Continue as a checkpoint says: with `running` at once, with `wanted` once compiled."""
        if hyper.differing(self._running, running):
            self._update = _begin(self._compile, running)
        self._running, self._next = running, None
        self._wanted = running
        self.tune(wanted)

    def ready(self) -> Update:
        """Give the update in force; wait for the first one, switch to a successor only when it is done."""
        if self._next is not None and self._next.done():
            self._update, self._next, self._running = self._next, None, self._wanted
        return self._update.result()


def _begin(compile: Callable[[C], Update], config: C) -> "Future[Update]":  # noqa: A002
    """Compile in a thread; not a daemon, since XLA must not be torn down under a compilation."""
    done: Future[Update] = Future()

    def work() -> None:
        try:
            done.set_result(compile(config))
        except Exception as error:  # noqa: BLE001 (whoever waits gets it)
            done.set_exception(error)

    threading.Thread(target=work, name="compile").start()
    return done
