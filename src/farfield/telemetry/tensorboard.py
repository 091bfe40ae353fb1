"""Metric rows go in, TensorBoard's event files in a run's folder come out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from farfield.telemetry.writers import Writer, flat, options


class _Events:
    """Writes the numbers of rows as scalars."""

    def __init__(self, writer: SummaryWriter) -> None:
        self._writer = writer

    def __call__(self, step: int, row: Mapping[str, float]) -> None:
        """Write one scalar for each number."""
        for name, value in row.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()


def make(folder: Path, run: str, config: Mapping[str, Any]) -> Writer:
    """Open an event file under `folder`/tensorboard; the config is a text in it, indented to be shown as it is."""
    own: dict[str, Any] = {"logdir": str(folder / "tensorboard")} | options(config, "tensorboard")
    writer = SummaryWriter(**own)
    writer.add_text(run, "\n".join(f"    {name} = {value!r}" for name, value in flat(config).items()))
    return _Events(writer)
