"""`farfield train`: options in, a live view while it learns, one JSON line or a table out."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from farfield.cli.options import Home, Json, complete_algorithm, complete_env, complete_run


def train(
    env: Annotated[
        str,
        typer.Argument(help="A Gymnasium id such as CartPole-v1, or package:Env-v0.", autocompletion=complete_env),
    ] = "",
    *,
    algorithm: Annotated[
        str,
        typer.Option(help="ppo, dqn, reinforce, or a module of yours.", autocompletion=complete_algorithm),
    ] = "",
    config: Annotated[Path | None, typer.Option(help="A TOML file that describes the run.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="One setting, such as algorithm.clip=0.1; again for more.")
    ] = None,
    actors: Annotated[int | None, typer.Option(help="Processes that step; 0: this one, exactly repeatable.")] = None,
    steps: Annotated[int | None, typer.Option(help="Environment steps to learn from.")] = None,
    until: Annotated[float | None, typer.Option(help="Stop when the last 100 episodes return this on average.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything that is drawn.")] = None,
    name: Annotated[str, typer.Option(help="Name of the run; made from the environment's otherwise.")] = "",
    resume: Annotated[
        str,
        typer.Option(
            metavar="RUN",
            help="Go on with this run, exactly where its last checkpoint is.",
            autocompletion=complete_run,
        ),
    ] = "",
    home: Home = "",
    json: Json = False,
) -> None:
    """Train a policy, with no service to start. Ctrl-C stops with a checkpoint; --resume goes on.

    Example: farfield train LunarLander-v3 --until 200 --set algorithm.learning_rate=5e-4
    """
    began = process_start()
    from farfield import config as configs

    chosen = {"actors": actors, "steps": steps, "until": until, "seed": seed}
    options: dict[str, Any] = {key: value for key, value in chosen.items() if value is not None}
    if algorithm:
        options["algorithm"] = {"kind": algorithm}
    if resume:
        run_config = resumed(resume, home, env=env, file=config, name=name, settings=set_ or [], options=options)
    else:
        from farfield.api import chosen_name

        run = chosen_name(env, name=name, file=config, home=home)
        run_config = configs.resolve(env, run=run, file=config, settings=set_ or [], options=options)
    follow(run_config, home, resume=bool(resume), json=json, began=began)


def resumed(
    run: str, home: str, *, env: str, file: Path | None, name: str, settings: list[str], options: dict[str, Any]
) -> Any:
    """Read a run's config, with what this attempt changes; what would begin another run is refused."""
    from farfield import config as configs
    from farfield import wiring
    from farfield.errors import ConfigError

    given = [word for word, value in (("ENV", env), ("--config", file), ("--name", name)) if value]
    if given:
        raise ConfigError(
            f"--resume {run} goes on with the run's own config: leave {', '.join(given)} out, and change what may "
            "change with --set"
        )
    kept = configs.read_toml(wiring.run_folder(home, run) / "config.toml")
    return configs.continued(
        kept, [configs.from_environment(os.environ), *map(configs.parse_setting, settings), options]
    )


def follow(config: Any, home: str, *, resume: bool, json: bool, began: float) -> None:
    """Train, and show it."""
    from farfield import training

    if json:
        import msgspec

        heard = True

        def say(text: str) -> None:
            sys.stderr.write(f"{text}\n")

        def watch(row: dict[str, Any]) -> None:
            nonlocal heard
            try:
                sys.stdout.buffer.write(msgspec.json.encode(row) + b"\n")
                sys.stdout.buffer.flush()
            except BrokenPipeError:  # nobody reads on: stop as if asked to, with a checkpoint
                heard = False
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                signal.raise_signal(signal.SIGTERM)

        summary = training.train(config, home=home, resume=resume, watch=watch, say=say, began=began)
        watch(summary)
        if not heard:
            raise typer.Exit(1)
        return
    from rich.console import Console

    from farfield.cli.view import View
    from farfield.wiring import home_folder

    kind = config.algorithm.get("kind", "ppo")
    view = View(
        Console(), total_steps=config.steps, until=config.until, run=config.run, env=config.env, algorithm=kind,
        checkpoints=home_folder(home) / "runs" / config.run / "checkpoints",
    )  # fmt: skip
    summary: dict[str, Any] | None = None
    try:
        summary = training.train(config, home=home, resume=resume, watch=view.update, say=view.message, began=began)
    finally:
        view.close(summary)


def process_start() -> float:
    """Say when this process began, so that imports count as well."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return time.time()  # not Linux: from here on
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")
