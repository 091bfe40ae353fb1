"""The commands that look at what runs have done: runs, show, plot."""

import fcntl
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from farfield.cli.options import Home, Json, Run, Runs
from farfield.cli.screen import console, emit, number, pairs, table, when, write

COLOURS = {"running": "cyan", "solved": "green", "stopped": "yellow", "failed": "red", "unreadable": "red"}


def runs(home: Home = "", json: Json = False) -> None:
    """List the runs: what they learn, how far they are, and how they ended.

    Example: farfield runs
    """
    from rich.text import Text

    from farfield import wiring
    from farfield.telemetry.curves import compact

    folder = wiring.home_folder(home) / "runs"
    found = [facts_of(folder / name) for name in wiring.run_names(home)]
    found.sort(key=lambda facts: facts["when"])
    if json:
        for facts in found:
            emit(facts)
        return
    if not found:
        write(f"no runs in {folder}; begin one with: farfield train CartPole-v1")
        return
    rows = [
        (
            facts["run"],
            facts["env"],
            facts["algorithm"],
            compact(facts["steps"]),
            number(facts["return_mean"]),
            Text(facts["state"], style=COLOURS[facts["state"]]),
            when(facts["when"]),
        )
        for facts in found
    ]
    heads = ("run", "environment", "algorithm", "steps", "return", "state", "last seen")
    console().print(table(heads, rows, right=("steps", "return")))


def show(run: Run, home: Home = "", json: Json = False) -> None:
    """Show one run: its config with every default, its newest version, network, checkpoints and learning curve.

    Example: farfield show cartpole-v1
    """
    import msgspec

    from farfield import wiring
    from farfield.telemetry import metrics

    folder = wiring.run_folder(home, run)
    config = wiring.read_config(folder)
    registry = wiring.registry_of(config, folder)
    head = registry.head()
    facts = facts_of(folder)
    facts["folder"] = str(folder)
    facts["config"] = msgspec.to_builtins(config)
    facts["checkpoints"] = wiring.checkpoints_of(config, folder).numbers()
    facts["versions"] = {"kept": registry.numbers(), "left_behind": registry.orphans()}
    facts["version"] = _version(head) if head else None
    facts["last"] = metrics.newest(folder)
    if json:
        emit(facts)
        return
    _show(facts, (folder / "config.toml").read_text(), metrics.read(folder) if facts["last"] else [])


def plot(
    runs: Runs,
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture: .png, .svg or .pdf.")] = Path(
        "curves.png"
    ),
    x: Annotated[Literal["steps", "seconds"], typer.Option("--x", help="What the x axis counts.")] = "steps",
    group: Annotated[
        Literal["prefix", "none", "all"],
        typer.Option("--group", help="Which runs share a mean: name-1 and name-2 (prefix), none, or all."),
    ] = "prefix",
    title: Annotated[str, typer.Option("--title", help="Words above the picture.")] = "",
    home: Home = "",
    json: Json = False,
) -> None:
    """Draw learning curves of several runs; runs of several seeds become a mean with a 95 % confidence band.

    Example: farfield plot lander-1 lander-2 lander-3 -o curves.png
    """
    from farfield import wiring
    from farfield.errors import MissingError
    from farfield.telemetry import metrics, plots

    curves: dict[str, plots.Curve] = {}
    envs: set[str] = set()
    for name in runs:
        folder = wiring.run_folder(home, name)
        curve = metrics.curve(metrics.read(folder), x)
        if not curve[0]:
            raise MissingError(f"run {name!r} has not finished an episode yet; let it train on, or leave it out")
        curves[name] = curve
        envs.add(wiring.read_config(folder).env)
    plots.draw(curves, output, x=x, by=group, title=title or ", ".join(sorted(envs)))
    if json:
        emit(
            {
                "output": str(output),
                "groups": [one.name for one in plots.groups(curves, by=group)],
                "runs": list(curves),
            }
        )
    else:
        write(f"drew {len(curves)} run{'s' if len(curves) > 1 else ''} into {output}")


def facts_of(folder: Path) -> dict[str, Any]:
    """Say what a run is and how far it came."""
    from farfield import wiring
    from farfield.errors import FarfieldError
    from farfield.telemetry import metrics

    last = metrics.newest(folder) or {}
    facts: dict[str, Any] = {"run": folder.name, "env": "?", "algorithm": "?"}
    state = state_of(folder, last.get("update", 0))
    try:
        config = wiring.read_config(folder)
        facts |= {"env": config.env, "algorithm": config.algorithm.get("kind", "ppo"), "seed": config.seed}
    except FarfieldError as error:
        state = "unreadable"
        facts["error"] = str(error)
    mean = last.get("return_mean")
    if mean is None and last:
        mean = next(iter(metrics.curve(metrics.read(folder))[1][-1:]), None)
    file = folder / metrics.FILE
    seen = (file if file.exists() else folder / "config.toml").stat().st_mtime
    return facts | {
        "steps": last.get("steps", 0),
        "updates": last.get("update", 0),
        "return_mean": mean,
        "attempt": last.get("attempt", 0),
        "state": state,
        "stopped_by": summary_of(folder).get("stopped_by"),
        "when": seen,
    }


def state_of(folder: Path, updates: int = 0) -> str:
    """Say whether a run is running, or how it ended; `updates` is how many its metrics know of."""
    if held(folder / "lock"):
        return "running"
    summary = summary_of(folder)
    if not summary or updates > summary.get("updates", updates):
        return "failed"  # its last attempt ended without a word: killed, or by an error
    return "solved" if summary.get("stopped_by") == "until" else "stopped"


def summary_of(folder: Path) -> dict[str, Any]:
    """Read what a run's last attempt said at its end; nothing where it did not come to that."""
    import msgspec

    try:
        return msgspec.json.decode((folder / "summary.json").read_bytes(), type=dict[str, Any])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


def held(lock: Path) -> bool:
    """Say whether a learner holds a run's lock."""
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _version(head: Any) -> dict[str, Any]:
    """Give a version's facts and its network's tensors."""
    import math

    from farfield.types import acting

    needed = acting(head.network)
    tensors = [
        {
            "name": name,
            "shape": list(tensor.shape),
            "dtype": tensor.dtype,
            "parameters": math.prod(tensor.shape),
            "trainable": tensor.trainable,
            "acting": name in needed,
        }
        for name, tensor in head.network.tensors.items()
    ]
    return {
        "number": head.number,
        "attempt": head.attempt,
        "parent": head.parent,
        "steps": head.steps,
        "observations": [f"{field.name} {field.dtype}{list(field.shape)}" for field in head.spec.observations],
        "actions": [f"{field.name} {field.kind}{list(field.sizes or field.shape)}" for field in head.spec.actions],
        "parameters": sum(math.prod(one.shape) for one in head.network.tensors.values() if one.trainable),
        "tensors": tensors,
    }


def _show(facts: dict[str, Any], toml: str, rows: list[dict[str, Any]]) -> None:
    """Print a run for people."""
    from rich.text import Text

    from farfield.telemetry import metrics
    from farfield.telemetry.curves import chart, compact

    screen, version = console(), facts["version"]
    colour = COLOURS[facts["state"]]
    screen.print(f"[bold]{facts['run']}[/] · {facts['env']} · {facts['algorithm']} · [{colour}]{facts['state']}[/]\n")
    said = {"folder": facts["folder"], "steps": f"{facts['steps']:,} in {facts['updates']:,} updates"}
    said["return"] = number(facts["return_mean"])
    said["checkpoints"] = ", ".join(map(str, facts["checkpoints"])) or "none"
    kept = facts["versions"]["kept"]
    said["versions"] = f"{len(kept)} kept" + (f", {kept[0]} to {kept[-1]}" if kept else "")
    if version:
        said["newest"] = f"version {version['number']} of attempt {version['attempt']}, {version['steps']:,} steps"
        said["sees"] = ", ".join(version["observations"])
        said["does"] = ", ".join(version["actions"])
    screen.print(pairs(said))
    x, y = metrics.curve(rows)
    if y:
        screen.print(f"\n[bold]return[/]  {number(min(y))} to {number(max(y))} over {compact(x[-1])} steps")
        screen.print(Text("\n".join(chart(x, y, width=60, height=6)), style="green"))
    if version:
        tensors = [
            (
                tensor["name"],
                "×".join(map(str, tensor["shape"])) or "1",
                tensor["dtype"],
                f"{tensor['parameters']:,}",
                "acting" if tensor["acting"] else "learning only",
            )
            for tensor in version["tensors"]
        ]
        title = f"network: {version['parameters']:,} parameters"
        heads = ("tensor", "shape", "type", "parameters", "needed for")
        screen.print()
        screen.print(table(heads, tensors, right=("shape", "parameters"), title=title))
    screen.print(Text(f"# config.toml\n{toml.rstrip()}"))
