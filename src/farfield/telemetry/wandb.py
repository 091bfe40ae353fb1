"""Metric rows go in, a run at Weights & Biases comes out; its own variables (WANDB_MODE=offline) say where."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from farfield.telemetry.writers import Writer, options


class _Run:
    """Logs rows to one run."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def __call__(self, step: int, row: Mapping[str, float]) -> None:
        """Log one row."""
        self._run.log(dict(row), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


def make(folder: Path, run: str, config: Mapping[str, Any]) -> Writer:
    """Begin or continue the run of this name; [metrics.options.wandb] is handed to `wandb.init`."""
    own: dict[str, Any] = {"project": "farfield", "id": run, "name": run, "dir": str(folder), "resume": "allow"}
    return _Run(wandb.init(config=dict(config), **(own | options(config, "wandb"))))
