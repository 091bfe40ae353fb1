"""The name of a run in, the run as clients use it out: found in the home, or made as a file or a client asks."""

import logging
import os
import re
from pathlib import Path
from typing import Any

import msgspec

from farfield import config as configs
from farfield import wiring
from farfield.config import RunConfig, Section
from farfield.errors import ConfigError, FullError, MissingError, nearest
from farfield.experience import noise
from farfield.gateway import trial
from farfield.gateway.learners import Learners, environment
from farfield.gateway.settings import Settings
from farfield.serving.hosted import Facts, Hosted, Limits
from farfield.types import Spec, Version, Weights
from farfield.weights import folder as files

# What a live run begins with: no environments of its own, no end, batches of 16 fragments of 128 rows.
LIVE: Section = {
    "env": "",
    "actors": 0,
    "steps": 0,
    "lanes": {"count": 16, "steps": 128},
    "transport": {"kind": "disk"},
}
# What clients may choose: nothing that names files, addresses or modules of the server.
CLIENTS = {
    "run": None, "seed": None, "steps": None, "until": None, "patience": None, "window": None, "credit_window": None,
    "algorithm": None, "network": None, "lanes": {"count", "steps"}, "feed": None, "checkpoint": None,
}  # fmt: skip
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
log = logging.getLogger("farfield.gateway")
CODE = "a client brings no code; name it in a run.toml on the server"
FINISHED = ("steps", "until", "patience")  # reasons to stop after which a learner is not started again
Row = dict[str, Any]


class Runs:
    """The runs of one home, each in its folder; opened once each, by any thread."""

    def __init__(self, home: Path, settings: Settings, learners: Learners) -> None:
        self.folder, self._settings, self._learners = home / "runs", settings, learners

    def names(self) -> list[str]:
        """List the live runs that exist."""
        return sorted(path.parent.name for path in self.folder.glob("*/config.toml") if _is_live(path))

    def take(self, file: Path) -> str:
        """Make the run that a file describes, or let the one that exists go on with what the file changes."""
        wanted = configs.read_toml(file)
        run = wanted.setdefault("run", file.stem)
        if wanted.get("env"):
            raise ConfigError(
                f"{file}: env = {wanted['env']!r}: a gateway keeps runs that live programs feed; leave env out, or "
                f"begin this one with farfield train --config {file}"
            )
        folder = self._place(run)
        try:
            if (folder / "config.toml").is_file():
                self._change(folder, wanted)
            else:
                self._create(folder, wanted)
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}") from error
        return run

    def open(self, run: str, asked: Row | None = None) -> Hosted:
        """Open a run that exists, or make it as a client asks; MissingError when there is none and nothing is asked."""
        folder = self._place(run)
        if not (folder / "config.toml").is_file():
            if asked is None:
                raise MissingError(self._missing(run))
            if len(self.names()) >= self._settings.runs:
                raise FullError(
                    f"run {run!r}: there are {self._settings.runs} runs, and no more are allowed (runs in server.toml)"
                )
            self._create(folder, permitted(run, asked))
            log.info("run %s was created by a client", run)
        config = wiring.read_config(folder)
        if config.env:
            raise ConfigError(
                f"run {run!r} steps {config.env} itself (farfield train): connect to a run of another name"
            )
        return self._hosted(folder, config)

    def _hosted(self, folder: Path, config: RunConfig) -> Hosted:
        run = config.run
        pinned = folder / "spec.json"
        spec = wiring.pinned_spec(folder) if pinned.is_file() else None
        # No append waits for room: the loop that serves everybody calls it.
        prompt = {"wait": 0.0} if config.transport["kind"] == "disk" else {}

        def pin(first: Spec) -> None:
            wiring.pin_spec(folder, first)
            _settle(pinned)
            log.info("run %s has its spec: %s", run, _outline(first))
            self._begin(run, folder)

        def newest() -> tuple[Version, Weights] | None:
            store = wiring.registry_of(config, folder)
            head = store.head()
            return None if head is None else (head, store.fetch(head))

        facts = Facts(
            seed=config.seed, steps=config.lanes.steps, window=config.window, credit_window=config.credit_window
        )
        limits = Limits(payload=self._settings.limit, quota=self._settings.quota)
        transport, _ = wiring.transport_of(msgspec.structs.replace(config, transport=config.transport | prompt), folder)
        try:
            hosted = Hosted(
                run, log=transport, spec=spec, pin=pin, facts=facts, limits=limits, newest=newest, draw=noise.draw
            )
        except BaseException:
            transport.close()
            raise
        self._learners.expect(run)
        if spec is not None:
            self._begin(run, folder)
        return hosted

    def _begin(self, run: str, folder: Path) -> None:
        reason = finished(folder)
        if reason:
            self._learners.finish(run, f"stopped by {reason}")
        else:
            self._learners.begin(run, folder)

    def _create(self, folder: Path, wanted: Section) -> None:
        """Write the config of a new run, once it is known that a learner can use it."""
        configs.decode(wanted)  # before anything looks into its sections
        section = configs.merge(configs.merge(LIVE, _suited(self._settings.defaults, wanted)), wanted)
        if "window" not in section:  # two batches of one client alone: with less it would wait for ever
            fragments = section.get("feed", {}).get("fragments", 1)
            section["window"] = 2 * section["lanes"]["count"] * fragments
        config = trial.attempt(section, environment=environment())
        with files.explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            wiring.write_config(folder, config)
            _settle(folder / "config.toml")

    def _change(self, folder: Path, wanted: Section) -> None:
        """Let a run go on with another config, where it may."""
        kept = configs.read_toml(folder / "config.toml")
        if configs.merge(kept, wanted) == kept:
            return
        config = trial.attempt(wanted, kept, environment=environment())
        if msgspec.to_builtins(config) == msgspec.to_builtins(configs.decode(kept)):
            return
        with files.explained(folder):
            wiring.write_config(folder, config)
            (folder / "summary.json").unlink(missing_ok=True)  # what was enough may not be now
            _settle(folder / "config.toml")
        log.info("run %s goes on with another config", folder.name)

    def _place(self, run: str) -> Path:
        """Give the folder of a name, which must be a name and no path."""
        if not NAME.fullmatch(run):
            raise ConfigError(
                f"run {run!r}: a name is 1 to 100 letters, digits, `.`, `_`, `-`, the first a letter or digit"
            )
        return self.folder / run

    def _missing(self, run: str) -> str:
        known = [] if self._settings.tokens else self.names()  # who needs a token need not hear of others' runs
        hint = f" {nearest(run, known)}" if known else ""
        cure = "connect with a config, so that it is created, or give its run.toml to farfield serve"
        return f"no run {run!r} here:{hint} {cure}"


def _is_live(path: Path) -> bool:
    """Say whether a config is of a live run; one that cannot be read will say so when it is opened."""
    try:
        return not configs.read_toml(path).get("env")
    except ConfigError:
        return True


def _suited(defaults: Section, wanted: Section) -> Section:
    """Leave out of the defaults what belongs to another algorithm than the one that is wanted."""
    kinds = [section.get("algorithm", {}).get("kind", "ppo") for section in (defaults, wanted)]
    if not wanted.get("algorithm", {}).get("kind") or kinds[0] == kinds[1]:
        return defaults
    return {name: value for name, value in defaults.items() if name not in ("algorithm", "feed")}


def permitted(run: str, asked: Row) -> Section:
    """Look at a config that came from a client; what it may not choose is refused, by name."""
    for name, value in asked.items():
        if name not in CLIENTS:
            may = ", ".join(sorted(CLIENTS))
            raise ConfigError(
                f"config: a client may not choose {name!r}: it may choose {may}; the rest belongs into a run.toml that "
                "farfield serve is given"
            )
        inner = CLIENTS[name]
        if inner and isinstance(value, dict) and (beyond := sorted(set(value) - inner)):
            raise ConfigError(f"config: of {name!r} a client may choose {', '.join(sorted(inner))}, not {beyond[0]!r}")
    if asked.get("run", run) != run:
        raise ConfigError(
            f"config: its run is {asked['run']!r}, but the call is for run {run!r}: leave `run` out of it"
        )
    for section in ("algorithm", "network", "lanes", "feed", "checkpoint"):
        if not isinstance(asked.get(section, {}), dict):
            raise ConfigError(f"config: {section} = {asked[section]!r}: expected a table of settings")
    known = configs.kinds("learning.algorithms")
    algorithm, network = (asked.get(section, {}).get("kind", "") for section in ("algorithm", "network"))
    if algorithm not in ("", *known):
        raise ConfigError(f"config: algorithm.kind = {algorithm!r}: {nearest(str(algorithm), known)}; {CODE}")
    if ":" in str(network):
        raise ConfigError(f"config: network.kind = {network!r}: {CODE}")
    return asked | {"run": run}


def finished(folder: Path) -> str:
    """Say why a run has reached its end; empty while it has not, also where its learner was told to stop."""
    try:
        summary = msgspec.json.decode((folder / "summary.json").read_bytes(), type=Row)
    except (OSError, msgspec.DecodeError):
        return ""
    reason = summary.get("stopped_by")
    return reason if reason in FINISHED else ""


def _settle(path: Path) -> None:
    """Make a file that was just written survive a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    files.sync(path.parent)


def _outline(spec: Spec) -> str:
    fields = ", ".join(f"{field.name} {field.dtype} {list(field.shape)}" for field in spec.observations)
    return f"{fields} -> {', '.join(field.name for field in spec.actions)}"
