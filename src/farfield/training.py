"""A RunConfig in, a trained run out: claims the run, starts its actors, learns, publishes, keeps checkpoints, stops."""

import errno
import os
import shutil
import socket
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from farfield import origins, wiring
from farfield.config import RunConfig
from farfield.errors import ConfigError, ConflictError, FarfieldError, FullError
from farfield.launch import attempt
from farfield.learning import ledger
from farfield.learning.learner import Learner, Update
from farfield.telemetry import metrics, writers
from farfield.telemetry.lines import Lines
from farfield.types import Scalar
from farfield.weights.registry import Registry

LOOK = 0.5  # seconds between two looks after the actors
OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
Row = dict[str, Any]
Watch = Callable[[Row], None]
Say = Callable[[str], None]


def train(config: RunConfig, *, home: str = "", resume: bool = False, watch: Watch, say: Say, began: float) -> Row:
    """Train a run from its config, or go on with it; gives the summary, which is also kept in its folder."""
    folder = _folder(config, home, resume=resume)
    with ExitStack() as stack:
        stack.enter_context(attempt.lock(folder))
        if not resume:
            stack.callback(_forget_unbegun, folder)
        stopping = stack.enter_context(attempt.signals(say))
        before = wiring.read_config(folder) if resume else None
        wiring.write_config(folder, config)
        try:
            run = _prepared(lambda: _Run(config, folder, stack, watch, say, began), folder, before)
            return run.until_stopped(stopping)
        except OSError as error:
            if error.errno not in OF_THE_DISK:
                raise
            cure = f"make room or allow writing there, then: farfield train --resume {config.run}"
            raise FullError(f"{error.filename or folder}: {error.strerror}; {cure}") from error


class _Run:
    """One attempt at a run: everything that lives while it does."""

    def __init__(self, config: RunConfig, folder: Path, stack: ExitStack, watch: Watch, say: Say, began: float) -> None:
        self.folder, self.watch, self.say, self.began = folder, watch, say, began
        self.log = stack.enter_context(_closing(Lines(folder / metrics.FILE)))
        origin = origins.of(config, folder, stack, say)
        self.spec, self.backend, self.beats = origin.spec, origin.backend, origin.beats
        parts = wiring.learning_of(config, self.spec, folder)
        self.config = parts.config
        wiring.write_config(folder, self.config)
        registry = wiring.registry_of(config, folder)
        facts = {"pid": os.getpid(), "host": socket.gethostname(), "time": time.time(), "backend": self.backend}
        number = registry.claim(facts)
        self.source, follow = origin.source(parts.algorithm.network)
        self.learner = Learner(parts.algorithm, parts.feed, self.source, attempt=number, enough=self._reason)
        self.checkpoints = wiring.checkpoints_of(config, folder)
        self._restore(registry, parts.tunable)
        self.outlet = wiring.outlet_of(self.config, registry, self.learner, self.spec, self.restored)
        if origin.transport:
            self.outlet.announce_to(origin.transport, wiring.UPDATES)
        if follow:
            self.outlet.tell(follow)
        self.ledger = stack.enter_context(_closing(Lines(folder / ledger.FILE)))
        plain = msgspec.to_builtins(self.config)
        started = writers.start(config.metrics.writers, folder=folder, run=config.run, config=plain, report=say)
        self.writers = stack.enter_context(_closing(started)) if started else None
        self.saved, self.saved_steps, self.looked = time.monotonic(), self.learner.counters.steps, 0.0
        self.last: Row = {}

    def until_stopped(self, stopping: list[str]) -> Row:
        """Take updates until a reason to stop comes, then leave everything as `--resume` wants it."""
        counters = self.learner.counters
        self.outlet.publish(
            counters.version, self.learner.algorithm.weights(), steps=counters.steps, settled=self.learner.used.below
        )
        stopped = ""
        for update in self.learner.updates():
            if update is not None:
                self._account(update)
                stopped = stopped or (stopping[0] if stopping else "") or self._reason(update.row)
            else:
                stopped = stopped or (stopping[0] if stopping else "")
                self.outlet.settle(self.learner.used.below)
            self._look()
            due = bool(stopped) or self._due()
            self.learner.hold = due
            if due and self.learner.quiet:
                self._save()
                self.learner.hold = False
                if stopped:
                    break
        return self._summary(stopped)

    def _restore(self, registry: Registry, tunable: dict[str, Scalar]) -> None:
        """Go on from the newest checkpoint that is whole, above every version that was ever numbered."""
        self.restored: int | None = None
        found = self.checkpoints.newest(self.say)
        if found is not None:
            self.learner.restore(found.state, found.facts["learner"])
            if tunable:
                self.learner.algorithm.tune(tunable)  # as the config says now
            self.restored = self.learner.counters.version
        registry.orphan(-1 if self.restored is None else self.restored, self.learner.attempt)
        self.learner.begin(max(self.learner.counters.version, registry.highest() + 1))

    def _account(self, update: Update) -> None:
        self.outlet.publish(update.version, update.weights, steps=update.row["steps"], settled=update.settled)
        self.outlet.lags.append(update.row["lag"])
        self.ledger.append(ledger.entry(update.number, self.learner.attempt, update.names))
        self.log.append(update.row)
        if self.writers:
            self.writers(update.row["steps"], update.row)
        self.last = update.row
        self.watch(update.row)

    def _reason(self, row: Row) -> str:
        """Say why to stop after this update, if there is a reason."""
        config, mean = self.config, row["return_mean"]
        if config.until is not None and mean is not None and mean >= config.until:
            return "until"
        if config.steps and row["steps"] >= config.steps:
            return "steps"
        if config.patience and row["steps"] - self.learner.counters.best_at >= config.patience:
            return "patience"
        return ""

    def _look(self) -> None:
        now = time.monotonic()
        if self.beats and now - self.looked >= LOOK:
            self.looked = now
            self.beats.look(now, self.say)

    def _due(self) -> bool:
        every = self.config.checkpoint
        by_steps = every.steps > 0 and self.learner.counters.steps // every.steps > self.saved_steps // every.steps
        return by_steps or time.monotonic() - self.saved >= every.interval

    def _save(self) -> None:
        """Commit the version that the checkpoint belongs to, then write the checkpoint."""
        self.outlet.commit()
        self.learner.feed.sync()
        state, facts = self.learner.state()
        self.checkpoints.write(self.learner.counters.updates, state, {"learner": facts})
        self.source.commit()
        self.outlet.collect()
        self.saved, self.saved_steps = time.monotonic(), self.learner.counters.steps

    def _summary(self, stopped: str) -> Row:
        counters, version = self.learner.counters, self.outlet.version
        assert version is not None, "the first thing that is published is a version"
        digest = sha256("".join(f"{n}:{ref.sha256}\n" for n, ref in sorted(version.tensors.items())).encode())
        summary = {
            "run": self.config.run,
            "env": self.config.env,
            "backend": self.backend,
            "steps": counters.steps,
            "seconds": time.time() - self.began,
            "steps_per_second": self.last.get("steps_per_second", 0.0),
            "lag": sum(self.outlet.lags) / max(1, len(self.outlet.lags)),
            "dropped": self.learner.feed.dropped,
            "duplicates": counters.duplicates,
            "episodes": counters.episodes,
            "return_mean": self.learner.mean(),
            "updates": counters.updates,
            "stopped_by": stopped,
            "version": version.number,
            "sha256": digest.hexdigest(),
        }
        (self.folder / "summary.json").write_bytes(msgspec.json.encode(summary) + b"\n")
        return summary


@contextmanager
def _closing(thing: Any) -> Generator[Any]:
    try:
        yield thing
    finally:
        thing.close()


def _prepared(run: Callable[[], _Run], folder: Path, before: RunConfig | None) -> _Run:
    """Make an attempt; where its settings cannot be used, the run keeps those that it had."""
    try:
        return run()
    except FarfieldError:
        if before:
            wiring.write_config(folder, before)
        raise


def _forget_unbegun(folder: Path) -> None:
    """Leave nothing of a run that did not come to its first attempt: its name stays free."""
    if not (folder / "attempts").exists():
        shutil.rmtree(folder, ignore_errors=True)


def _folder(config: RunConfig, home: str, *, resume: bool) -> Path:
    """Make the folder of a new run, or find that of an old one."""
    if resume:
        return wiring.run_folder(home, config.run)
    folder = wiring.home_folder(home) / "runs" / config.run
    if (folder / "config.toml").exists():
        raise ConflictError(
            f"there is a run {config.run!r} in {folder.parent} already: go on with it by farfield train --resume "
            f"{config.run}, or choose another --name"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}; choose a folder that can be written with --home") from error
    return folder
