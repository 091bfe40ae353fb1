"""One policy of a session: versions and welcomes in, tracks to act with and what they have finished out."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Condition
from time import monotonic
from typing import Any, NamedTuple, Protocol

import numpy as np
from msgspec import Struct

from farfield.canonical import spec_hash, to_json
from farfield.codec import encode_credit
from farfield.errors import CorruptError, FarfieldError, MissingError
from farfield.experience.counters import Counters
from farfield.experience.intake import Intake
from farfield.experience.outbox import Outbox, Parcel
from farfield.experience.spool import Spool
from farfield.types import Columns, Credit, Memory, Spec, Version, Weights, Welcome

STEPS = 128  # rows of a fragment until the server says how many suit it
AROUND = 64 << 10  # bytes of a fragment besides its rows, at most


class Link(Protocol):
    """What carries things to the server and back: transports/link has it."""

    @property
    def refusal(self) -> FarfieldError | None:
        """Say why the server will never let us in."""
        ...

    @property
    def connected(self) -> bool:
        """Say whether experience can be sent now."""
        ...

    @property
    def trouble(self) -> str:
        """Say what went wrong last."""
        ...

    @property
    def reconnects(self) -> int:
        """Count calls that were opened again."""
        ...

    @property
    def rubbish(self) -> int:
        """Count answers that made no sense."""
        ...

    @property
    def sent(self) -> int:
        """Count payloads that were sent."""
        ...

    def send(self, parcel: Parcel) -> None:
        """Deliver in order."""
        ...

    def ask(self, observations: Columns, memory: Memory, *, stream: str, decision: int, timeout: float) -> Any:
        """Let the server decide; None: not in time."""
        ...

    def close(self) -> None:
        """End all calls."""
        ...


class Machine(NamedTuple):
    """What decides and records: the native core, or NumPy."""

    name: str
    slot: Callable[[], Any]
    snapshot: Callable[[bytes, Weights], Any]
    track: Callable[..., Any]
    advise: Callable[..., list[tuple[Any, float, float | None]]]


class Settings(Struct, frozen=True, kw_only=True):
    """What all policies of a session share."""

    run: str
    client: str
    spool: Path | None
    quota: int
    memory: int
    flush: float


class Part:
    """What a session has for one policy. Its methods may be called from any thread."""

    def __init__(self, policy: str, spec: Spec | None, settings: Settings, machine: Machine) -> None:
        self.policy, self.settings, self.machine = policy, settings, machine
        self.spec: Any = spec  # of the run, as soon as it is known
        self.slot = machine.slot()
        self.welcome: Welcome | None = None
        self.ready = False  # whether there is a version, and we were let in
        self.newest: tuple[Version, Weights] | None = None
        self.link: Any = None
        self.fallbacks = self.late = self.episodes = self.versions = self.rubbish = 0
        self.changed = Condition()  # welcome, version, marks, end
        self.closed = False
        self._marks: dict[str, int] = {}  # stream -> fragments that are settled
        self._tracks: dict[str, Any] = {}  # by stream: all that may still get rows or rewards
        self._lanes: dict[str, int] = {}  # of each, at least 1
        self._free: dict[int, list[Any]] = {}  # lanes -> tracks of episodes that are over
        self.outdated: set[str] = set()  # streams that get no more episodes
        self._since: dict[str, tuple[int, float]] = {}  # stream -> next fragment, since when it is that
        name = settings.run if policy == "main" else f"{settings.run}.{policy}"
        spool = Spool(settings.spool / name if settings.spool else None, settings.quota)
        pause = min(max(settings.flush / 4, 0.01), 0.25)
        self.outbox = Outbox(
            spool, memory=settings.memory, send=self._send, lost=self._lost, tick=self._tick, pause=pause
        )

    def start(self, link: Link) -> None:
        """Begin to deliver."""
        self.link = link
        self.outbox.start()

    def welcomed(self, welcome: Welcome) -> None:
        """Hear that the server let us in."""
        self._agree(welcome.spec, "the welcome")
        with self.changed:
            before, self.welcome = self.welcome, welcome
            if before is None or (before.seed, before.steps) != (welcome.seed, welcome.steps):
                self.outdated |= set(self._tracks)
            self.ready = self.newest is not None
            self.changed.notify_all()

    def arrived(self, version: Version, weights: Weights) -> None:
        """Hear of a newer version."""
        self._agree(version.spec, f"version {version.number}")
        self.slot.put(self.machine.snapshot(to_json(version), weights))
        with self.changed:
            self.newest, self.ready = (version, weights), self.welcome is not None
            self.versions += 1
            self.changed.notify_all()

    def settled(self, marks: dict[str, int]) -> None:
        """Hear how many fragments of streams the learner is done with."""
        with self.changed:
            for stream in marks.keys() & self._tracks.keys():
                self._marks[stream] = max(marks[stream], self._marks.get(stream, 0))
            self.changed.notify_all()

    def take(self, lanes: int) -> Any:
        """Give a track to write an episode with."""
        with self.changed:
            free = self._free.setdefault(lanes, [])
            while free:
                track = free.pop()
                if track.stream not in self.outdated:
                    return track
                self._retire(track)
            return self._begin(lanes)

    def give(self, track: Any, lanes: int) -> None:
        """Take a track back, for the next episode."""
        with self.changed:
            if track.stream in self.outdated:
                self._retire(track)
            else:
                self._free.setdefault(lanes, []).append(track)

    def intake(self, lanes: int) -> Intake:
        """Give what reads observations where no track does."""
        return Intake(self.spec, lanes)

    def yield_turn(self, track: Any) -> None:
        """Wait while more of a track is not settled than the run's window allows."""
        if track.seq - self._marks.get(track.stream, 0) <= self._window():
            return
        with self.changed:
            while track.seq - self._marks.get(track.stream, 0) > self._window():
                if self.closed or self.link.refusal or track.stream in self.outdated:
                    return
                self.changed.wait(0.25)

    def credit(self, stream: str, n: int, reward: float, mode: Any, name: str) -> bool:
        """Give a late reward to a row that is here, or send it; false where there is no room for it."""
        track = self._tracks.get(stream)
        if track is not None and track.credit(n, reward, mode):
            return True
        run = self.settings.run
        return self.outbox.credit(encode_credit(Credit(run, stream, n, reward, mode, name)))

    def owns(self, stream: str) -> bool:
        """Say whether a stream is one of ours."""
        return stream in self._tracks

    def advise(self, columns: Columns, memory: Memory, best: int) -> list[tuple[Any, float, float | None]]:
        """Give the best actions for one observation; none while there is no version."""
        newest = self.newest
        return self.machine.advise(*newest, columns, memory, best) if newest else []

    def cut(self) -> None:
        """Send what is closed, in however short fragments."""
        for track in list(self._tracks.values()):
            track.cut()

    def counters(self) -> Counters:
        """Count everything."""
        tally, link, left = self.outbox.tally, self.link, self.outbox.remaining()
        with self.changed:
            tracks = list(self._tracks.values())
            rows = sum(track.rows * self._lanes[track.stream] for track in tracks)
            ahead = sum(
                max(0, track.seq - self._marks.get(track.stream, 0))
                for track in tracks
                if track.stream not in self.outdated
            )
        version = max([track.version for track in tracks], default=-1)
        newest = self.newest[0].number if self.newest else -1
        return Counters(
            acted=tally.steps + rows, fallbacks=self.fallbacks, late=self.late, episodes=self.episodes,
            fragments=tally.fragments, steps=tally.steps, credits=tally.credits, sent=link.sent, owned=tally.owned,
            refused=tally.refused, adopted=tally.adopted, dropped_fragments=tally.dropped_fragments,
            dropped_steps=tally.dropped_steps, damaged_bytes=self.outbox.spool.damaged, waiting=left.payloads,
            waiting_bytes=left.bytes,
            memory_bytes=self.outbox.held, spooled_bytes=self.outbox.spool.held, ahead=ahead, versions=self.versions,
            version=version, newest=newest, lag=max(0, newest - version) if version >= 0 else 0,
            reconnects=link.reconnects, rubbish=link.rubbish + self.rubbish, connected=link.connected,
        )  # fmt: skip

    def end(self) -> None:
        """Let nobody wait any longer."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def _begin(self, lanes: int) -> Any:
        if self.spec is None:
            raise MissingError("there is no spec yet: wait for the server, or give one to connect")
        welcome, stream = self.welcome, os.urandom(16).hex()
        track = self.machine.track(
            self.slot, to_json(self.spec), run=self.settings.run, policy=self.policy, actor=self.settings.client,
            stream=stream, seed=welcome.seed if welcome else 0, steps=self._steps(lanes), lanes=lanes,
            emit=partial(self.outbox.put, stream),
        )  # fmt: skip
        self._lanes[stream] = max(lanes, 1)
        self._tracks[stream] = track
        if welcome is None:
            self.outdated.add(stream)  # the next episode writes as the server likes it
        return track

    def _steps(self, lanes: int) -> int:
        """Say how many rows a fragment gets: so many that it stays below the limit of one payload."""
        if self.welcome is None:
            return STEPS
        fields = (*self.spec.observations, *self.spec.actions)
        row = max(lanes, 1) * (16 + sum(np.dtype(f.dtype).itemsize * int(np.prod(f.shape)) for f in fields))
        return max(1, min(self.welcome.steps, (self.welcome.limit - AROUND) // row - 1))

    def _retire(self, track: Any) -> None:
        track.cut()
        for known in (self._tracks, self._marks, self._since, self._lanes):
            known.pop(track.stream, None)
        self.outdated.discard(track.stream)

    def _agree(self, spec: Spec, whose: str) -> None:
        with self.changed:
            if self.spec is None:
                self.spec = spec
        if spec_hash(spec) != spec_hash(self.spec):
            raise CorruptError(f"the spec of {whose} is another one than this session's")

    def _window(self) -> int:
        return self.welcome.window if self.welcome else 2

    def _send(self, parcel: Parcel) -> None:
        self.link.send(parcel)

    def _lost(self, stream: str) -> None:
        """Begin a new stream with the next episode: the learner counts from the first to the first that is missing."""
        if stream in self._tracks:  # without a lock: the stream's track may be locked by who tells this
            self.outdated.add(stream)

    def _tick(self) -> None:
        """Cut what has waited for long enough."""
        now, flush = monotonic(), self.settings.flush
        for stream, track in list(self._tracks.items()):
            seq, since = self._since.get(stream, (-1, now))
            if track.rows == 0 or track.seq != seq:
                self._since[stream] = (track.seq, now)
            elif flush > 0 and now - since >= flush:
                track.cut()


def memory_of(track: Any) -> Memory:
    """Give what a track would remember, where it says so."""
    memory = getattr(track, "memory", None)
    return memory() if memory is not None else {}
