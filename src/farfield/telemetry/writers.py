"""Metric rows go in without waiting; TensorBoard, W&B, MLflow or your own writer gets at most two a second."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from farfield.errors import EXTRAS, ConfigError, MissingError, nearest

PACKAGES = {"mlflow": "mlflow", "tensorboard": "tensorboardX", "wandb": "wandb"}  # ours -> what it needs
PERIOD = 0.5  # seconds between two rows that writers see
ROOM = 64  # rows that may wait for slow writers before new ones are left out

log = logging.getLogger(__name__)

Row = Mapping[str, Any]


class Writer(Protocol):
    """Shows numbers elsewhere; held by one background thread."""

    def __call__(self, step: int, row: Mapping[str, float]) -> None:
        """Show the numbers of one update, `step` environment steps in."""
        ...

    def close(self) -> None:
        """Deliver what is left."""
        ...


Open = Callable[[], Writer]


class Writers:
    """Feeds writers from one background thread, so that no learner ever waits for them."""

    def __init__(
        self, opens: Mapping[str, Open], *, period: float = PERIOD, report: Callable[[str], None] = log.warning
    ) -> None:
        """Start the thread, which also opens the writers: their packages take long to import."""
        self.left_out = 0  # rows that came while the queue was full
        self.failed: dict[str, str] = {}  # writer -> why it is not used any more
        self._opens = dict(opens)
        self._period = period
        self._report = report
        self._next = 0.0
        self._held: tuple[int, Row] | None = None  # the newest row that thinning holds back
        self._queue: queue.Queue[tuple[int, Row] | None] = queue.Queue(ROOM)
        self._thread = threading.Thread(target=self._work, name="metric-writers", daemon=True)
        self._thread.start()

    def __call__(self, step: int, row: Row) -> None:
        """Offer a row; returns at once."""
        now = time.monotonic()
        if now < self._next:
            self._held = step, row
            return
        self._next = now + self._period
        self._held = None
        try:
            self._queue.put_nowait((step, row))
        except queue.Full:
            self.left_out += 1

    def close(self, timeout: float = 10.0) -> None:
        """Deliver the newest row and close the writers, within `timeout` seconds."""
        end = time.monotonic() + timeout
        try:
            if self._held:
                self._queue.put(self._held, timeout=timeout)
            self._queue.put(None, timeout=max(0.0, end - time.monotonic()))
        except queue.Full:
            self._report(f"metrics: writers did not take their last rows within {timeout:g} s")
            return
        self._thread.join(max(0.0, end - time.monotonic()))

    def _work(self) -> None:
        """Hand rows on until the end."""
        writers: dict[str, Writer] = {}
        for kind, opened in self._opens.items():
            self._try(kind, lambda kind=kind, opened=opened: writers.update({kind: opened()}))
        while (item := self._queue.get()) is not None:
            step, values = item[0], numbers(item[1])
            for kind in [kind for kind in writers if kind not in self.failed]:
                self._try(kind, lambda kind=kind, step=step, values=values: writers[kind](step, values))
        for kind, writer in writers.items():
            self._try(kind, writer.close)

    def _try(self, kind: str, action: Callable[[], None]) -> None:
        """Let one writer act; its first failure is reported and its last."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 – no failure of a foreign package may end the run
            if kind not in self.failed:
                self.failed[kind] = f"{type(error).__name__}: {error}"
                self._report(f"metrics no longer go to {kind}: {self.failed[kind]}")


def start(
    kinds: Sequence[str],
    *,
    folder: Path,
    run: str,
    config: Mapping[str, Any],
    report: Callable[[str], None] = log.warning,
) -> Writers | None:
    """Start the named writers with the run's whole config as plain data; None when none is named."""
    opens = {kind: _opening(kind, folder, run, config) for kind in kinds}
    return Writers(opens, report=report) if opens else None


def numbers(row: Row) -> dict[str, float]:
    """Give what a chart can show of a row: its numbers."""
    return {name: float(value) for name, value in row.items() if isinstance(value, int | float)}


def options(config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Give one writer's own options: the section [metrics.options.<kind>]."""
    return dict(config.get("metrics", {}).get("options", {}).get(kind, {}))


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Give a config's settings by dotted names."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def _opening(kind: str, folder: Path, run: str, config: Mapping[str, Any]) -> Open:
    """Say how to open one of ours, or the `make` of any module named by a dotted path; refuse what cannot be there."""
    package = PACKAGES.get(kind, kind.partition(".")[0])
    if "." not in kind and kind not in PACKAGES:
        raise ConfigError(f"[metrics] writers: {kind!r} is not known; {nearest(kind, PACKAGES)}")
    if find_spec(package) is None:
        cure = f"pip install {EXTRAS[package]!r}" if kind in PACKAGES else "install it or correct the name"
        raise MissingError(f"[metrics] writers: {kind!r} needs the package {package}, which is not installed; {cure}")
    path = kind if "." in kind else f"farfield.telemetry.{kind}"
    return lambda: import_module(path).make(folder, run, config)
