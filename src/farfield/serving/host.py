"""All runs of a gateway: who calls and with which token in, the run that it may use out."""

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Protocol
from weakref import WeakValueDictionary

from msgspec import structs

from farfield.errors import ConfigError, ConflictError, FullError, MissingError
from farfield.serving.hosted import Hosted
from farfield.types import Hello, Welcome

PROTOCOL = 1
_STOPPING = "this gateway is stopping: try again"
RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # as in config.py: it is the name of a folder
POLICY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # without a dot, which separates it from its run

OpenRun = Callable[[str, dict[str, Any] | None], Hosted]


class Tokens(Protocol):
    """Who may do what; serving/tokens.py is one."""

    def check(self, secret: str, run: str, scope: str) -> None:
        """Raise PermissionError, unless the token is good for this run and scope."""
        ...


class Host:
    """Opens each run once, however many ask at the same time, and one run's opening does not hold another's."""

    def __init__(self, open_run: OpenRun, tokens: Tokens, *, clients: int = 4096) -> None:
        """`open_run(run, config)` raises MissingError where there is no such run and config is None.

        It is asked with None first, and with the client's config only where that found nothing and the client's token
        has the scope `create`.
        """
        self._open_run, self._tokens, self._most = open_run, tokens, clients
        self._runs: dict[str, Hosted] = {}
        self._opening: WeakValueDictionary[str, Lock] = WeakValueDictionary()  # while somebody waits
        self._lock = Lock()
        self._closed = False
        self.clients = 0  # that hold a connection for experience

    def check(self, token: str, run: str, scopes: str) -> None:
        """Raise PermissionError, unless the token has one of the scopes (several with spaces between) for this run."""
        first: PermissionError | None = None
        for scope in scopes.split():
            try:
                return self._tokens.check(token, run, scope)
            except PermissionError as error:
                first = first or error
        if first is not None:
            raise first
        return None

    def greet(self, hello: Hello, token: str, scope: str = "ingest") -> tuple[Hosted, Welcome]:
        """Check token, protocol and spec; open the run or, with `hello.config`, create it. May take as long as that."""
        run = name_of(hello)
        self.check(token, run, scope)
        if old := outdated(hello):
            raise ConfigError(old)
        hosted, created = self._open(run, hello.config, lambda: self.check(token, run, "create"))
        return hosted, structs.replace(hosted.welcome(hello), created=created)

    def open(self, run: str) -> Hosted:
        """Open a run that exists, for whoever was let in already. May take as long as that."""
        return self._open(run, None, lambda: None)[0]

    def find(self, run: str) -> Hosted | None:
        """Give a run that is open."""
        return self._runs.get(run)

    def open_runs(self) -> dict[str, Hosted]:
        """Give all runs that are open."""
        with self._lock:
            return dict(self._runs)

    @contextmanager
    def seat(self) -> Generator[None]:
        """Hold one of the places for clients."""
        with self._lock:
            if self.clients >= self._most:
                raise FullError(
                    f"this gateway has {self.clients} clients, which is its limit: raise clients, or add one"
                )
            self.clients += 1
        try:
            yield
        finally:
            with self._lock:
                self.clients -= 1

    def drop(self, run: str) -> None:
        """Close a run; the next client opens it again."""
        with self._lock:
            hosted = self._runs.pop(run, None)
        if hosted is not None:
            hosted.close()

    def close(self) -> None:
        """Close all runs, and open no more."""
        with self._lock:
            self._closed = True
        for run in self.open_runs():
            self.drop(run)

    def _open(self, run: str, config: dict[str, Any] | None, permit: Callable[[], None]) -> tuple[Hosted, bool]:
        with self._lock:
            if run in self._runs:
                return self._runs[run], False
            opening = self._opening.get(run) or self._opening.setdefault(run, Lock())
        with opening:
            with self._lock:
                if self._closed:
                    raise ConflictError(_STOPPING)
                if run in self._runs:
                    return self._runs[run], False
            created = False
            try:
                hosted = self._open_run(run, None)
            except MissingError:
                if config is None:
                    raise
                permit()
                hosted, created = self._open_run(run, config), True
            with self._lock:
                if not self._closed:
                    self._runs[run] = hosted
                    return hosted, created
            hosted.close()
            raise ConflictError(_STOPPING)


def name_of(hello: Hello) -> str:
    """Name the run that a client means: that of one policy of several is `<run>.<policy>`."""
    if not RUN.fullmatch(hello.run):
        raise ConfigError(f"run {hello.run[:100]!r}: expected letters, digits, '.', '_' and '-', at most 100 of them")
    if hello.policy == "main":
        return hello.run
    if not POLICY.fullmatch(hello.policy):
        raise ConfigError(f"policy {hello.policy[:64]!r}: expected letters, digits, '_' and '-', at most 64 of them")
    return f"{hello.run}.{hello.policy}"


def outdated(hello: Hello) -> str:
    """Say what is wrong with a client's protocol, if anything."""
    if hello.protocol == PROTOCOL:
        return ""
    whose = "the client is too old" if hello.protocol < PROTOCOL else "this gateway is too old"
    return (
        f"protocol: expected {PROTOCOL}, came {hello.protocol} from {hello.library[:64]!r}: {whose}; "
        "install the same farfield on both sides"
    )
