"""The command that evaluates a version and shows what it does: play."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from farfield.cli.options import Home, Json, Run, VersionNumber
from farfield.cli.screen import console, emit, number, pairs, write

Episodes = Annotated[int, typer.Option("--episodes", "-n", min=1, help="How many whole episodes.")]
Who = Annotated[
    Literal["version", "random"],
    typer.Option(
        "--policy", help="The run's version, or random actions: the baseline; RUN may be an environment then."
    ),
]
Explore = Annotated[bool, typer.Option("--explore", help="Act with the noise of learning instead of greedily.")]
Seed = Annotated[
    int | None, typer.Option("--seed", min=0, help="Of episodes and noise; default: one never trained on.")
]
Film = Annotated[Path | None, typer.Option("--video", metavar="FILE", help="Film it: .mp4 or .gif.")]
Show = Annotated[
    bool, typer.Option("--render", help="Show it: in a window, or in the terminal where there is no screen.")
]


def play(
    run: Run,
    *,
    episodes: Episodes = 10,
    version: VersionNumber = None,
    policy: Who = "version",
    explore: Explore = False,
    seed: Seed = None,
    video: Film = None,
    render: Show = False,
    home: Home = "",
    json: Json = False,
) -> None:
    """Play whole episodes and say what they return: mean, deviation, quantiles, lengths.

    Example: farfield play CartPole-v1 --episodes 3 --video out.gif

    Example: farfield play CartPole-v1 --policy random
    """
    from farfield import evaluation
    from farfield.errors import ConfigError

    if video and render:
        raise ConfigError("--video and --render: one at a time; leave one out")
    how: evaluation.How = "random" if policy == "random" else "explore" if explore else "greedy"

    def go(watch: evaluation.Watch | None = None, mode: Any = "rgb_array") -> dict[str, Any]:
        return evaluation.evaluate(
            run, episodes=episodes, home=home, version=version, policy=how, seed=seed, watch=watch, mode=mode
        )

    if video:
        facts = _filmed(video, go)
    elif render:
        facts = _rendered(run, home, go)
    else:
        facts = go()
    if json:
        emit(facts)
    else:
        _show(facts)


Go = Callable[..., dict[str, Any]]


def _filmed(path: Path, go: Go) -> dict[str, Any]:
    """Play into a file."""
    from farfield.telemetry.video import Video

    opened: list[Video] = []

    def watch(stage: Any) -> None:
        if not opened:
            opened.append(Video(path, stage.rate))
        opened[0].add(stage.picture())

    if path.suffix.lower() not in (".gif", ".mp4"):
        from farfield.errors import ConfigError

        raise ConfigError(f"--video {path}: expected a name that ends in .mp4 or .gif")
    try:
        facts = go(watch)
    finally:
        for one in opened:
            one.close()
    return facts | {"video": str(path), "frames": opened[0].frames}


def _rendered(run: str, home: str, go: Go) -> dict[str, Any]:
    """Play before people's eyes: a window, coloured half blocks, or the environment's own text."""
    from farfield import evaluation

    offered = evaluation.render_modes(run, home)
    if "human" in offered and _screen():
        return go(lambda stage: None, mode="human")
    from farfield.cli.stage import clear, draw

    try:
        return go(draw(), mode="ansi" if "ansi" in offered and "rgb_array" not in offered else "rgb_array")
    finally:
        clear()


def _screen() -> bool:
    """Say whether a window can be opened."""
    import os

    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _show(facts: dict[str, Any]) -> None:
    """Print what came of it for people."""
    from farfield.telemetry.curves import histogram

    who = {"random": "random actions"}.get(facts["policy"]) or f"{facts['run']} version {facts['version']}"
    how = {"explore": ", exploring", "greedy": ", greedy"}.get(facts["policy"], "")
    screen = console()
    screen.print(f"[bold]{who}[/]{how} · {facts['env']} · {facts['episodes']:,} episode{'s' * (facts['episodes'] > 1)}")
    quantiles = "  ".join(f"{float(q):.0%} {number(value)}" for q, value in facts["return_quantiles"].items())
    said = {
        "return": f"{number(facts['return_mean'])} ± {number(facts['return_deviation'])}",
        "range": f"{number(facts['return_min'])} to {number(facts['return_max'])}",
        "quantiles": quantiles,
        "length": f"{number(facts['length_mean'])} steps, {facts['length_min']:,} to {facts['length_max']:,}",
        "time": f"{facts['seconds']:.2f} s for {facts['steps']:,} steps ({facts['backend']})",
    }
    if facts["episodes"] >= 5 and facts["return_max"] > facts["return_min"]:
        said["spread"] = f"{number(facts['return_min'])} {histogram(facts['returns'])} {number(facts['return_max'])}"
    screen.print(pairs(said))
    if "video" in facts:
        write(f"filmed {facts['frames']:,} pictures into {facts['video']}")
