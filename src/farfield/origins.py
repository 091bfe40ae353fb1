"""A run's config in, where its experience comes from out: this process's lanes, actors that it starts, or live apps."""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from farfield import wiring
from farfield.codec import decode_heartbeat
from farfield.config import RunConfig
from farfield.launch import processes
from farfield.protocols import Transport
from farfield.types import Cursor, Network, Role, Spec
from farfield.weights.outlet import Follow

SPARE = 8  # threads of the server for notes, and for actors that replace others
Say = Callable[[str], None]


class Beats:
    """Looks after actors: who died, who is stuck."""

    def __init__(self, transport: Transport, actors: processes.Processes, patience: float) -> None:
        self._transport, self._actors, self._patience = transport, actors, patience
        self._cursor: Cursor = {}

    def look(self, now: float, say: Say) -> None:
        """Restart the dead, replace the stuck; an actor that cannot live ends the run with its own error."""
        records, self._cursor = self._transport.read(wiring.BEATS, after=self._cursor, limit=1000, timeout=0.0)
        if records:
            self._transport.note(wiring.BEATS, "learner", self._cursor)
        for record in records:
            self._actors.beat(decode_heartbeat(record.payload), now)
        for death in self._actors.watch(now):
            say(str(death))
        for index in self._actors.stuck(now, self._patience):
            say(f"actor {index} made no step for {self._patience:g} s: replaced")
            self._actors.replace(index)


class Origin(NamedTuple):
    """Where fragments come from, and whom versions go to."""

    spec: Spec
    backend: str
    transport: Transport | None  # versions are announced on it
    source: Callable[[Network], tuple[Any, Follow | None]]  # what is read; and who in this process hears of versions
    beats: Beats | None = None


def of(config: RunConfig, folder: Path, stack: ExitStack, say: Say) -> Origin:
    """Open what the config says; `stack` closes it."""
    if not config.env:
        return from_apps(config, folder, stack)
    return from_actors(config, folder, stack, say) if config.actors else from_lanes(config)


def from_lanes(config: RunConfig) -> Origin:
    """Step environments in this process: nothing is encoded, all is repeatable."""
    lanes = wiring.lanes_of(config, config.lanes.count, seed=config.seed, replayable=True)

    def source(network: Network) -> tuple[Any, Follow]:
        stream = wiring.repeatable_stream(config)
        actor = wiring.actor_of(config, lanes, network, stream=stream, label="0")
        return wiring.LanesSource(actor), actor.load

    return Origin(lanes.spec, lanes.backend, None, source)


def from_actors(config: RunConfig, folder: Path, stack: ExitStack, say: Say) -> Origin:
    """Serve a log on a unix socket and start the actors, before slow imports begin."""
    from farfield.transports import grpc

    transport, durable = wiring.transport_of(config, folder)
    place = stack.enter_context(tempfile.TemporaryDirectory(prefix="farfield-"))
    streams = 2 * config.actors  # an actor appends with one and reads with another, each in a thread here
    server = grpc.serve(transport, f"unix:{place}/learner.sock", threads=streams + SPARE)
    stack.callback(server.stop)
    actors = wiring.actors_of(folder, server.address, say)
    stack.callback(actors.stop)
    actors(config.run, Role.ACTOR, config.actors)
    lanes = wiring.lanes_of(config, config.lanes.count, seed=config.seed, replayable=False)
    spec, backend = lanes.spec, lanes.backend
    lanes.close()
    beats = Beats(transport, actors, config.stuck)
    return Origin(
        spec, backend, transport, lambda _: (wiring.topic_source(config, transport, spec, durable), None), beats
    )


def from_apps(config: RunConfig, folder: Path, stack: ExitStack) -> Origin:
    """Read what a gateway took from live programs, and announce versions where it hears of them."""
    transport, durable = wiring.transport_of(config, folder)
    stack.callback(transport.close)
    spec = wiring.pinned_spec(folder)
    source = wiring.topic_source(config, transport, spec, durable)
    return Origin(spec, "apps", transport, lambda _: (source, None))
