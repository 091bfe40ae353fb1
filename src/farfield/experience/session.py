"""A live program's connection: episodes to act in, late rewards, delivery, and counts of everything."""

import atexit
import os
from collections.abc import Callable, Sequence
from time import monotonic
from types import TracebackType
from typing import Any, Literal
from weakref import WeakSet

from farfield.errors import ConfigError, MissingError, SpecError
from farfield.experience import counters as counting
from farfield.experience.counters import Counters
from farfield.experience.episode import Episode, Manner
from farfield.experience.intake import MOST
from farfield.experience.outbox import Remaining
from farfield.experience.parts import Part
from farfield.types import Decision, Version

IDS = 4096  # of late rewards that are remembered, so that the same one counts once
AT_EXIT = 1.0  # seconds that a program's end waits for delivery where nobody closed the session
_OPEN: "WeakSet[Session]" = WeakSet()


class Session:
    """Made by `farfield.connect`; any thread may call anything."""

    def __init__(
        self, make_part: Callable[[str], Part], *, policy: str, manner: Manner, labels: dict[str, str],
        close_gate: Callable[[], None],
    ) -> None:  # fmt: skip
        self._make_part, self._policy, self._manner, self._labels = make_part, policy, manner, labels
        self._close_gate = close_gate
        self._parts: dict[str, Part] = {policy: make_part(policy)}
        self._episodes: WeakSet[Episode] = WeakSet()
        self._credited: dict[str, None] = {}
        self._refusal = ""
        self._left = Remaining(0, 0, 0)
        _OPEN.add(self)

    @property
    def version(self) -> Version | None:
        """Give the newest version that came."""
        newest = self._part(self._policy).newest
        return newest[0] if newest else None

    @property
    def trouble(self) -> str:
        """Say why the server will not let us in or, where it may yet, what went wrong last; empty while all is well."""
        part = self._part(self._policy)
        if part.link.refusal:
            return str(part.link.refusal)
        return "" if part.link.connected else part.link.trouble

    def episode(self, policy: str = "", *, lanes: int = 0, greedy: bool = False) -> Episode:
        """Begin an episode; with `lanes`, so many side by side, everything [lanes, …]."""
        self._check()
        if lanes < 0:
            raise ConfigError(f"lanes: expected 0 or more, came {lanes}")
        part = self._part(policy or self._policy)
        episode = Episode(part, lanes, self._manner._replace(greedy=greedy), self._episodes.discard)
        self._episodes.add(episode)
        return episode

    def credit(
        self,
        decision: Decision | Sequence[Any] | str,
        reward: float,
        mode: Literal["add", "set"] = "add",
        id: str | None = None,  # noqa: A002 - what the wire calls it
        policy: str = "",
    ) -> bool:
        """Give a decision a reward later, from any process; `id` makes repeating it harmless.

        A decision is what `episode.decision` gave, or as text its stream, a colon and its number.
        False: there was no room for it, which is counted too.
        """
        self._check()
        stream, n = _parsed(decision)
        if mode not in ("add", "set"):
            raise SpecError(f"credit: mode: expected 'add' or 'set', came {mode!r}")
        if not -MOST <= (amount := float(reward)) <= MOST:
            raise SpecError(f"credit: reward: expected a finite 32-bit number, came {reward!r}")
        if id is not None:
            if id in self._credited:
                return True
            self._credited[id] = None
            while len(self._credited) > IDS:
                self._credited.pop(next(iter(self._credited)), None)
        owners = [part for part in self._parts.values() if part.owns(stream)]
        part = owners[0] if owners and not policy else self._part(policy or self._policy)
        return part.credit(stream, n, amount, mode, id or os.urandom(8).hex())

    def wait(self, timeout: float = 60.0, policy: str = "") -> bool:
        """Wait for the first version; false when none came in time."""
        self._check()
        part, deadline = self._part(policy or self._policy), monotonic() + timeout
        with part.changed:
            while not part.ready and not part.closed and (left := deadline - monotonic()) > 0:
                if part.link.refusal:
                    raise part.link.refusal
                part.changed.wait(min(left, 0.1))
        return part.ready

    def flush(self, timeout: float = 10.0) -> Remaining:
        """Deliver all rows that are closed, also those of open episodes; gives what is left after `timeout` seconds."""
        self._check()
        deadline = monotonic() + timeout
        for part in self._parts.values():
            part.cut()
        for part in self._parts.values():
            part.outbox.wait(deadline, lambda part=part: part.link.refusal is not None)
        return _sum([part.outbox.remaining() for part in self._parts.values()])

    def close(self, timeout: float = 10.0) -> Remaining:
        """End all episodes as cut off, deliver, and say what remains: on disk, for the next process, or nowhere."""
        if self._refusal:
            return self._left
        for episode in list(self._episodes):
            episode.close(truncated=True)
        self.flush(timeout)
        self._refusal = "this session was closed: connect again"
        _OPEN.discard(self)
        for part in self._parts.values():
            part.end()
            part.link.close()
        self._left = _sum([part.outbox.close() for part in self._parts.values()])
        self._close_gate()
        return self._left

    async def aclose(self, timeout: float = 10.0) -> Remaining:
        """Close without holding up an event loop."""
        import asyncio

        return await asyncio.to_thread(self.close, timeout)

    def counters(self) -> Counters:
        """Count everything since the start, over all policies."""
        self._check_fork()
        return counting.total([part.counters() for part in self._parts.values()])

    def prometheus(self) -> str:
        """Give all counts as Prometheus reads them, policy by policy."""
        self._check_fork()
        return counting.prometheus({name: part.counters() for name, part in self._parts.items()}, self._labels)

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> "Session":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def forked(self) -> None:
        """Refuse everything in a forked child, which has none of our threads; the parent goes on."""
        self._refusal = "this session belongs to the process that was forked: connect again in the child"
        for part in self._parts.values():
            part.closed = True
            part.outbox.spool.abandon()
        for episode in list(self._episodes):
            episode.forbid(self._refuse)

    def _part(self, policy: str) -> Part:
        part = self._parts.get(policy)
        if part is None:
            self._check()
            part = self._make_part(policy)
            kept = self._parts.setdefault(policy, part)
            if kept is not part:  # another thread was faster
                part.end()
                part.link.close()
                part.outbox.close()
            return kept
        return part

    def _check(self) -> None:
        if self._refusal:
            raise MissingError(self._refusal)

    def _check_fork(self) -> None:
        if self not in _OPEN and "forked" in self._refusal:
            raise MissingError(self._refusal)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise MissingError(self._refusal)


def _parsed(given: Sequence[Any] | str) -> Decision:
    parts = given.split(":") if isinstance(given, str) else [str(part) for part in given]
    if len(parts) == 2:
        stream, n = parts
        if len(stream) == 32 and not set(stream) - set("0123456789abcdef") and n.isdecimal():
            return Decision(stream, int(n))
    raise SpecError(f"decision {given!r}: expected a Decision, or text such as {'0' * 31}1:17 (its stream and number)")


def _sum(parts: list[Remaining]) -> Remaining:
    return Remaining(*(sum(numbers) for numbers in zip(*parts, strict=True)))


def _forked() -> None:
    for session in list(_OPEN):
        session.forked()
    _OPEN.clear()


def _at_exit() -> None:
    for session in list(_OPEN):
        session.close(AT_EXIT)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
atexit.register(_at_exit)
