"""The process of one actor: versions in, fragments out, until its learner stops it. Run: python -m farfield.acting."""

import os
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from farfield import wiring
from farfield.codec import decode_announcement, encode_fragment, encode_heartbeat
from farfield.config import RunConfig
from farfield.errors import FarfieldError, FullError, SpecError
from farfield.experience.actor import Actor
from farfield.launch.processes import bind_to_parent
from farfield.protocols import Transport
from farfield.transports import grpc
from farfield.types import Cursor, Heartbeat, Spec, Version, Weights

BEAT = 0.5  # seconds between signs of life
LOOK = 0.002  # seconds between two looks for a newer version while stepping
WAIT = 0.2  # seconds to wait for news at a time

Underway = tuple[bytes, "Future[None]"]  # a fragment, and whether the transport owns it


class Follower:
    """Reads announcements and keeps what acting needs of the newest version."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._cursor: Cursor = {}
        self._weights: Weights = {}
        self._given = -1  # number of the version that was given last
        self._looked = 0.0
        self.version: Version | None = None
        self.settled: dict[str, int] = {}

    def follow(self, timeout: float) -> None:
        """Take what was announced since the last look."""
        topic = wiring.UPDATES
        records, self._cursor = self._transport.read(topic, after=self._cursor, limit=256, timeout=timeout)
        for record in records:
            announced = decode_announcement(record.payload)
            self.settled = announced.settled
            if announced.full or self.version:  # without a full one before it a partial one is no use
                self._weights |= announced.weights
                self.version = announced.version

    def newer(self) -> tuple[Version, Weights] | None:
        """Give the newest version with its tensors, once; asked for every step, it looks only now and then."""
        now = time.monotonic()
        if now - self._looked >= LOOK:
            self._looked = now
            self.follow(0.0)
        if self.version is None or self.version.number == self._given:
            return None
        self._given = self.version.number
        return self.version, dict(self._weights)


def act(config: RunConfig, transport: Transport, label: str) -> None:
    """Unroll fragments with the newest weights, never more than `window` ahead of what is settled."""
    stream = wiring.random_stream()
    seed = config.seed ^ int(stream[:15], 16)  # a restarted actor meets other episodes than its forerunner
    lanes = wiring.lanes_of(config, config.lanes.count, seed=seed, replayable=False)
    follower = Follower(transport)
    while (found := follower.newer()) is None:
        follower.follow(WAIT)
    compare(lanes.spec, found[0].spec)
    actor = wiring.actor_of(config, lanes, found[0].network, stream=stream, label=label)
    actor.load(*found)
    waiting = threading.Event()
    beat = threading.Thread(target=_beat, args=(actor, transport, waiting), daemon=True, name="heartbeat")
    beat.start()
    underway: list[Underway] = []
    while True:
        fragment = actor.unroll(follower.newer)
        waiting.set()
        underway = unowned(transport, [*underway, send(transport, encode_fragment(fragment), key=stream)], key=stream)
        follower.follow(0.0)
        while actor.seq - follower.settled.get(stream, 0) >= config.window:
            underway = unowned(transport, underway, key=stream)
            follower.follow(WAIT)
        waiting.clear()


def send(transport: Transport, payload: bytes, *, key: str) -> Underway:
    """Begin to hand a fragment over; as long as there is no room to begin with, try again."""
    while True:
        try:
            return payload, transport.append(wiring.EXPERIENCES, payload, key=key)
        except FullError:
            continue  # the learner is busy; an append waits before it says so


def unowned(transport: Transport, underway: list[Underway], *, key: str) -> list[Underway]:
    """Give what the transport does not own yet, sent again where there was no room in time; raise what it refuses."""
    left: list[Underway] = []
    for payload, done in underway:
        error = done.exception() if done.done() else None
        if isinstance(error, FullError):
            left.append(send(transport, payload, key=key))
        elif error:
            raise error
        elif not done.done():
            left.append((payload, done))
    return left


def compare(ours: Spec, learners: Spec) -> None:
    """Refuse to act for a learner whose spaces differ, naming the first field that does."""
    for kind in ("observations", "actions"):
        here = {field.name: field for field in getattr(ours, kind)}
        there = {field.name: field for field in getattr(learners, kind)}
        for name in sorted(here.keys() | there.keys()):
            if here.get(name) != there.get(name):
                raise SpecError(
                    f"{kind} {name!r}: the learner expects {there.get(name)}, this actor has {here.get(name)}; "
                    "use the same environment and the same options on both sides"
                )


def _beat(actor: Actor, transport: Transport, waiting: threading.Event) -> None:
    """Send a sign of life twice a second; it stops when the interpreter is stuck, which is the point."""
    pause = threading.Event()
    while not pause.wait(BEAT):
        beat = Heartbeat(
            actor=actor.label, pid=os.getpid(), stream=actor.stream, steps=actor.stepped, fragments=actor.seq,
            version=actor.version, waiting=waiting.is_set(), backend=actor.lanes.backend,
        )  # fmt: skip
        with suppress(FullError):  # a sign of life that finds no room is out of date
            transport.append(wiring.BEATS, encode_heartbeat(beat), key=actor.stream)


def main() -> None:
    """Act for the run in a folder: python -m farfield.acting FOLDER ADDRESS LABEL PARENT."""
    folder, address, label, parent = sys.argv[1:]
    bind_to_parent(int(parent))
    try:
        config = wiring.read_config(Path(folder))
        act(config, grpc.make(grpc.Config(address=address)), label)
    except FarfieldError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
