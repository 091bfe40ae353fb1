"""A RunConfig in, objects out: the only file that knows everybody; read it to see who gets what."""

import os
import secrets
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from farfield import config as configs
from farfield.canonical import from_json, spec_hash, to_json
from farfield.config import RunConfig, plugin, section_of
from farfield.errors import ConfigError, MissingError, nearest
from farfield.experience import lanes as lanes_module
from farfield.experience.actor import Actor
from farfield.experience.lanes import Lanes
from farfield.launch import processes
from farfield.learning import feeds, hyper, runtime
from farfield.learning.credits import CreditWindow
from farfield.learning.learner import Learner
from farfield.learning.sources import TopicSource
from farfield.protocols import Algorithm, Policy, Transport
from farfield.serving import policies
from farfield.types import Columns, Fragment, Network, Role, Scalar, Spec, Version
from farfield.weights import checkpoints, registry
from farfield.weights.outlet import Outlet

# One thread of arithmetic for each process, and an allocator that keeps large temporaries: a fault of a page is dear.
ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
}
EXPERIENCES, UPDATES, BEATS = "experiences", "model_updates", "metrics.actors"


def home_folder(home: str = "") -> Path:
    """Say where runs live: as given, as FARFIELD_HOME says, or the platform's folder for data."""
    named = home or os.environ.get("FARFIELD_HOME", "")
    if named:
        return Path(named).expanduser()
    from platformdirs import user_data_dir

    return Path(user_data_dir("farfield"))


def run_folder(home: str, run: str) -> Path:
    """Find an existing run."""
    folder = home_folder(home) / "runs" / run
    if not (folder / "config.toml").is_file():
        known = run_names(home)
        hint = nearest(run, known) if known else "there is none yet; begin one with: farfield train CartPole-v1"
        raise MissingError(f"no run {run!r} in {folder.parent}: {hint}")
    return folder


def run_names(home: str = "") -> list[str]:
    """List the runs of a home."""
    return sorted(path.parent.name for path in (home_folder(home) / "runs").glob("*/config.toml"))


def read_config(folder: Path) -> RunConfig:
    """Read the config of a run."""
    return configs.decode(configs.read_toml(folder / "config.toml"))


def write_config(folder: Path, config: RunConfig) -> None:
    """Keep the config with its run; a reader sees the old one or the new one."""
    plain = msgspec.to_builtins(config)
    temporary = folder / f".config.{os.getpid()}"
    temporary.write_text(configs.to_toml(plain))
    temporary.replace(folder / "config.toml")


def registry_of(config: RunConfig, folder: Path) -> registry.Registry:
    """Open what remembers the run's versions."""
    return registry.make(config.registry, folder)


def checkpoints_of(config: RunConfig, folder: Path) -> checkpoints.Checkpoints:
    """Open what a learner continues from."""
    return checkpoints.make(config.checkpoint, folder / "checkpoints")


def outlet_of(config: RunConfig, store: registry.Registry, learner: Learner, spec: Spec, parent: int | None) -> Outlet:
    """Make what publishes a learner's versions; `parent` is the version that a checkpoint was restored at."""
    network = learner.algorithm.network
    return Outlet(store, run=config.run, attempt=learner.attempt, spec=spec, network=network, parent=parent)


def actors_of(folder: Path, address: str, report: Callable[[str], None]) -> processes.Processes:
    """Make what starts actor processes; they find the run by its folder and the learner by its address."""

    def command(run: str, role: Role, index: int) -> list[str]:
        return [sys.executable, "-m", "farfield.acting", str(folder), address, str(index), str(os.getpid())]

    # Actors find the modules that this process finds, wherever its script and its working directory are.
    paths = {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    return processes.make(command, folder=folder / "logs", environment=ONE_THREAD | paths, report=report)


def lanes_of(config: RunConfig, count: int, *, seed: int, replayable: bool) -> Lanes:
    """Make the run's environments, side by side."""
    return lanes_module.make(config.env, count, config.lanes, seed=seed, replayable=replayable)


def policy_of(version: Version) -> Policy:
    """Make what decides with a version."""
    return policies.make(version.spec, version.network)


def actor_of(config: RunConfig, lanes: Lanes, network: Network, *, stream: str, label: str) -> Actor:
    """Make what turns lanes and a policy into fragments."""
    policy = policies.make(lanes.spec, network)
    return Actor(
        lanes, policy, run=config.run, stream=stream, seed=config.seed, steps=config.lanes.steps,
        label=label, spec=spec_hash(lanes.spec),
    )  # fmt: skip


class Learning(NamedTuple):
    """What a learner is made of."""

    config: RunConfig  # with every default written out
    algorithm: Algorithm
    feed: Any
    tunable: dict[str, Scalar]  # hyper-parameters that a run which goes on may have changed


def learning_of(config: RunConfig, spec: Spec, folder: Path) -> Learning:
    """Make the algorithm, which begins to compile at once, and the feed that suits it."""
    runtime.prepare(folder.parent.parent / "cache" / "jax", devices=config.devices)
    module = plugin("learning.algorithms", config.algorithm.get("kind", "ppo"))
    options = section_of(config.algorithm, module, "algorithm")
    kind = config.feed.get("kind") or module.FEED
    feed, steps, lanes, resolved = _feed_of(config, module, options, spec, folder, kind)
    algorithm = module.make(
        options, spec=spec, network=config.network, steps=steps, lanes=lanes, seed=config.seed, devices=config.devices
    )
    whole = msgspec.structs.replace(
        config,
        algorithm={"kind": config.algorithm.get("kind", "ppo")} | msgspec.to_builtins(options),
        feed={"kind": kind} | msgspec.to_builtins(resolved),
    )
    tunable = {name: getattr(options, name) for name, how in hyper.changes(type(options)).items() if how != "fixed"}
    return Learning(whole, algorithm, feed, tunable)


def _feed_of(
    config: RunConfig, module: Any, options: Any, spec: Spec, folder: Path, kind: str
) -> tuple[Any, int, int, Any]:
    """Give the feed, the steps and lanes of its batches, and its resolved config."""
    if kind != module.FEED:
        name = config.algorithm.get("kind", "ppo")
        raise ConfigError(
            f"[feed] kind = {kind!r}: {name} learns from kind = {module.FEED!r} alone; leave feed.kind out"
        )
    if kind == "fresh":
        fresh = section_of(config.feed, feeds, "feed")
        if config.actors and fresh.fragments > config.actors * config.window:
            raise ConfigError(
                f"feed.fragments = {fresh.fragments} fragments make a batch, but {config.actors} actors with window = "
                f"{config.window} stop after {config.actors * config.window}; raise window or actors, or lower it"
            )
        steps, lanes = config.lanes.steps, config.lanes.count * fresh.fragments
        feed = feeds.FreshFeed(spec, steps=steps, lanes=lanes, max_lag=fresh.max_lag, live=not config.env)
        return feed, steps, lanes, fresh
    if kind == "replay":
        from farfield.learning import replay

        options_of_feed = section_of(config.feed, replay, "feed")
        steps, lanes = module.window(options)
        reach = module.reach(options) if hasattr(module, "reach") else 0
        if reach and config.lanes.steps > reach:
            raise ConfigError(
                f"lanes.steps = {config.lanes.steps}, but sequences reach only the first {reach} steps of a fragment "
                f"(sequence - burn_in): set lanes.steps to at most {reach}, or make sequence longer"
            )
        feed = replay.make(
            options_of_feed, spec=spec, steps=steps, lanes=lanes, folder=folder / "replay", seed=config.seed
        )
        return feed, steps, lanes, options_of_feed
    raise ConfigError(f"[feed] kind = {kind!r}: {nearest(kind, ['fresh', 'replay'])}")


def transport_of(config: RunConfig, folder: Path) -> tuple[Transport, bool]:
    """Open the log that experience travels on, and say whether it outlives this process."""
    kind = config.transport.get("kind", "memory")
    module = plugin("transports", kind)
    section = config.transport
    if kind == "disk":
        section = {"folder": str(folder / "log")} | section
    return module.make(section_of(section, module, "transport")), bool(getattr(module, "DURABLE", False))


def topic_source(config: RunConfig, transport: Transport, spec: Spec, durable: bool) -> CreditWindow:
    """Read what other processes send: fragments, held as long as their rewards may come late, and these rewards."""
    source = TopicSource(transport, EXPERIENCES, spec=spec_hash(spec), durable=durable)
    return CreditWindow(source, window=config.credit_window, clock=time.monotonic)


def pinned_spec(folder: Path) -> Spec:
    """Read the spec that the first app of a live run brought."""
    path = folder / "spec.json"
    if not path.is_file():
        raise MissingError(f"{path} is not there: a live run learns once an app has told the gateway its spec")
    return from_json(path.read_bytes(), Spec)


def pin_spec(folder: Path, spec: Spec) -> None:
    """Keep the spec of a live run: whole, or not at all."""
    temporary = folder / f".spec.{os.getpid()}"
    temporary.write_bytes(to_json(spec))
    temporary.replace(folder / "spec.json")


class LanesSource:
    """Steps lanes in this process when the learner has nothing else to do: nothing is encoded, all is repeatable."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor

    def arrive(self, wait: bool) -> list[Fragment]:
        """Unroll one fragment with the newest weights, if there is time for it."""
        return [self.actor.unroll()] if wait else []

    def state(self) -> Columns:
        """Give where the lanes are."""
        return self.actor.state()

    def restore(self, state: Columns) -> None:
        """Bring the lanes back there."""
        self.actor.restore(state)

    def commit(self) -> None:
        """Nothing to let go of: nothing was logged."""


def repeatable_stream(config: RunConfig) -> str:
    """Name the stream of a run that steps in its own process: the same for the same seed, so that runs repeat."""
    return sha256(f"farfield in-process {config.seed}".encode()).hexdigest()[:32]


def random_stream() -> str:
    """Name one incarnation of a producer."""
    return secrets.token_hex(16)
