"""Metric rows go in, a run of MLflow comes out; MLFLOW_TRACKING_URI says where."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from farfield.telemetry.writers import Writer, flat, options


class _Run:
    """Logs rows to one run through a client of its own, since MLflow's active run belongs to a thread."""

    def __init__(self, client: Any, run: str) -> None:
        self._client = client
        self._run = run

    def __call__(self, step: int, row: Mapping[str, float]) -> None:
        """Log one row."""
        for name, value in row.items():
            self._client.log_metric(self._run, name, value, step=step)

    def close(self) -> None:
        """Finish the run."""
        self._client.set_terminated(self._run)


def make(folder: Path, run: str, config: Mapping[str, Any]) -> Writer:
    """Begin a run of this name; [metrics.options.mlflow] may say `experiment` and `tracking_uri`."""
    own = options(config, "mlflow")
    experiment = own.pop("experiment", "farfield")
    client = MlflowClient(**own)
    found = client.get_experiment_by_name(experiment)
    number = found.experiment_id if found else client.create_experiment(experiment)
    begun = client.create_run(number, run_name=run, tags={"folder": str(folder)})
    for name, value in flat(config).items():
        client.log_param(begun.info.run_id, name, str(value)[:500])
    return _Run(client, begun.info.run_id)
