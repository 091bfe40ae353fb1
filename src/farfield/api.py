"""Training and evaluation from Python: what the command line does, without it."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from farfield import config as configs
from farfield import training, wiring
from farfield.errors import ConfigError
from farfield.telemetry import metrics
from farfield.types import Version, Weights


class Run(Struct, frozen=True):
    """A run that was trained: its summary, and where everything of it is."""

    name: str
    folder: Path
    summary: dict[str, Any]

    def metrics(self) -> list[dict[str, Any]]:
        """Give one row for every update."""
        return metrics.read(self.folder)

    def version(self) -> Version:
        """Give the newest version."""
        head = wiring.registry_of(wiring.read_config(self.folder), self.folder).head()
        assert head is not None, "a run publishes version 0 before anything else"
        return head

    def weights(self) -> Weights:
        """Give the newest version's tensors."""
        return wiring.registry_of(wiring.read_config(self.folder), self.folder).fetch(self.version())


def train(
    env: str = "",
    *,
    name: str = "",
    home: str = "",
    file: str = "",
    resume: bool = False,
    watch: training.Watch = lambda row: None,
    say: training.Say = lambda text: None,
    **settings: Any,
) -> Run:
    """Train and give the run. Settings are keys of the config: steps=100_000, algorithm={"clip": 0.1}, actors=0 …

    `watch` gets every metrics row; `say` gets what a person should know.
    """
    began = time.time()
    if resume:
        if not name or env or file:
            raise ConfigError("train(resume=True) takes the name of a run and what changes: leave env and file out")
        folder = wiring.run_folder(home, name)
        config = configs.continued(configs.read_toml(folder / "config.toml"), [settings])
    else:
        path = Path(file) if file else None
        chosen = chosen_name(env, name=name, file=path, home=home)
        config = configs.resolve(env, run=chosen, file=path, settings=(), options=settings)
        folder = wiring.home_folder(home) / "runs" / config.run
    summary = training.train(config, home=home, resume=resume, watch=watch, say=say, began=began)
    return Run(name=config.run, folder=folder, summary=summary)


def play(run: str, *, episodes: int = 10, home: str = "", **options: Any) -> Mapping[str, Any]:
    """Evaluate a run's newest version: mean, deviation and quantiles of its returns."""
    from farfield import evaluation

    return evaluation.evaluate(run, episodes=episodes, home=home, **options)


def chosen_name(env: str, *, name: str, file: Path | None, home: str) -> str:
    """Name a new run: as given, as its file says, or after its environment."""
    written = configs.read_toml(file) if file else {}
    return name or written.get("run", "") or fresh_name(env or written.get("env", ""), home)


def fresh_name(env: str, home: str = "") -> str:
    """Choose a name that no run of this home has: the environment's, then -2, -3 …"""
    stem = (
        "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in env.lower()).strip("-._") or "run"
    )
    taken = set(wiring.run_names(home))
    if stem not in taken:
        return stem
    return next(name for name in (f"{stem}-{n}" for n in range(2, 1_000_000)) if name not in taken)
