"""A system, an environment and a seed go in; one row of figures comes out, ours by our public command line."""

import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import environments
import measure

BENCH = Path(__file__).parent
# One thread of arithmetic for each process, for everybody: more of them lose on two cores (SB3 by 1.3, CleanRL by 30).
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
SAME = {
    "algorithm.kind": "ppo", "algorithm.learning_rate": 1e-3, "algorithm.anneal": 0, "algorithm.clip": 0.2,
    "algorithm.value_clip": 0.0, "algorithm.value_coefficient": 0.5, "algorithm.max_grad_norm": 0.5,
    "algorithm.target_kl": 0.0, "network.kind": "mlp", "network.hidden": [64, 64], "network.shared": "false",
    "network.activation": "tanh", "network.normalise": "false",
}  # fmt: skip
EQUAL = {
    "CartPole-v1": SAME | {
        "lanes.count": 8, "lanes.steps": 128, "algorithm.minibatch": 256, "algorithm.epochs": 10,
        "algorithm.gamma": 0.98, "algorithm.lam": 0.95, "algorithm.entropy": 0.0,
    },
    "LunarLander-v3": SAME | {
        "lanes.count": 16, "lanes.steps": 512, "algorithm.minibatch": 512, "algorithm.epochs": 8,
        "algorithm.gamma": 0.999, "algorithm.lam": 0.98, "algorithm.entropy": 0.01,
    },
}  # fmt: skip
NEVER = 1e9  # a return that no episode reaches: do not stop early


@dataclass
class Options:
    """What the command line of the bench says."""

    farfield: list[str]
    cache: Path
    quick: bool = False
    repeat: int = 3
    quiet: float = 60.0
    seconds: float = 20.0
    missing: dict[str, str] = field(default_factory=dict)  # peer -> why it cannot run
    pythons: dict[str, Path] = field(default_factory=dict)


def prepare(options: Options, peers: tuple[str, ...]) -> None:
    """Install the peers that are asked for; what cannot be installed is remembered with its reason."""
    for peer in peers:
        try:
            options.pythons[peer] = environments.python_of(peer, options.cache)
        except Exception as error:  # noqa: BLE001 (a peer's trouble is a row of the table, never the end of the bench)
            options.missing[peer] = f"{error}"
            print(f"  {peer}: {error}", file=sys.stderr, flush=True)


def peer(options: Options, name: str, env: str, seed: int, *, until: float | None, seconds: float) -> dict[str, Any]:
    """Run a peer once."""
    if name in options.missing:
        return _row(name, env, seed, error=options.missing[name])
    measure.wait_for_quiet(options.quiet)
    command = [str(options.pythons[name]), "-P", "-m", f"peers.{name}_ppo", "--env", env, "--seed", str(seed)]
    command += ["--seconds", str(seconds), *(["--until", str(until)] if until is not None else [])]
    variables = ONE_THREAD | {"PYTHONPATH": str(BENCH), "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        outcome = measure.run(command, cwd=Path(folder), timeout=seconds + 180, env=variables)
    last = outcome.last if "system" in outcome.last else {}
    if not last and not outcome.error:
        outcome.error = "it ended without its last line"
    rates = [last.get("steps_per_second"), last.get("steps_per_second_after_first_update")]
    return _row(
        name, env, seed, outcome, goal=until,
        steps_per_second=max((rate for rate in rates if rate), default=None),  # whichever is better for the peer
        first_update_seconds=last.get("first_update_at_seconds"),
        solved_seconds=last.get("solved_at_seconds"),
        solved_steps=last.get("solved_at_steps"),
        steps=last.get("steps"), return_mean=last.get("return_mean"), library=last.get("library"),
    )  # fmt: skip


def ours(
    options: Options, env: str, seed: int, *, name: str = "farfield", actors: int = 1, until: float | None = None,
    steps: int | None = None, more: dict[str, Any] | None = None, compiled: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Train once by the public command line, in a home of its own, with nothing compiled before unless given."""
    measure.wait_for_quiet(options.quiet)
    settings = EQUAL[env] | (more or {})
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        home, warm = Path(folder) / "home", compiled or Path(folder) / "compiled"
        command = [*options.farfield, "train", env, "--json", "--seed", str(seed), "--actors", str(actors)]
        command += ["--home", str(home), "--until", str(NEVER if until is None else until)]
        command += ["--steps", str(steps or 20_000_000)]
        command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        variables = {"JAX_COMPILATION_CACHE_DIR": str(warm), "XDG_CACHE_HOME": str(warm), "JAX_PLATFORMS": "cpu"}
        outcome = measure.run(command, cwd=Path(folder), timeout=300 if until is None else 600, env=variables)
    last = outcome.last
    if last and "stopped_by" not in last:
        outcome.error, last = "it ended without its last line", {}
    rows = [(when, line) for when, line in outcome.lines[:-1] if line.get("update")]
    solved = next(
        (row for row in rows if until is not None and (row[1].get("return_mean") or -NEVER) >= until), (None, {})
    )
    return _row(
        name, env, seed, outcome, goal=until,
        steps_per_second=_lower(last.get("steps_per_second"), _rate(rows)),
        steps_per_second_said=last.get("steps_per_second"),
        first_update_seconds=rows[0][0] if rows and last else None,
        solved_seconds=solved[0], solved_steps=solved[1].get("steps"), seconds=last.get("seconds"),
        steps=last.get("steps"), return_mean=last.get("return_mean"), lag=last.get("lag"), dropped=last.get("dropped"),
        backend=last.get("backend"), stopped_by=last.get("stopped_by"), actors=actors, settings=settings,
    )  # fmt: skip


def default_command() -> list[str]:
    """Find the `farfield` command beside this Python."""
    beside = Path(sys.executable).parent / "farfield"
    return [str(beside)] if os.access(beside, os.X_OK) else [sys.executable, "-m", "farfield"]


def _lower(said: float | None, seen: float | None) -> float | None:
    """Believe the lower of what it says and what this clock saw."""
    return min(said, seen) if said is not None and seen is not None else said


def _rate(rows: list[tuple[float, dict[str, Any]]]) -> float | None:
    """Say the rate by this clock: steps of the updates after the first, over the time in which their lines came."""
    if len(rows) < 3:
        return None
    (begun, first), (ended, last) = rows[0], rows[-1]
    return (last["steps"] - first["steps"]) / max(ended - begun, 1e-9)


def _row(
    name: str, env: str, seed: int, outcome: measure.Outcome | None = None, *, error: str = "", **figures: Any
) -> dict[str, Any]:
    conditions = outcome.facts() if outcome else {"error": error}
    return {"system": name, "env": env, "seed": seed, **figures, **conditions}
