"""Options go in; the measured figures 1 to 5, each with its rows and its targets, come out as plain data."""

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import environments
import measure
import systems
from systems import Options

Row = dict[str, Any]
Side = Callable[[int], Row]  # a seed -> a row
# How two actors share the work of one learner: what each sends, and how far it may be ahead.
TURNS: dict[str, Row] = {
    "taking turns": {"window": 1},  # one samples 16 × 512 while the other's fragment is learned from
    "on policy": {"window": 1, "lanes.count": 8, "feed.fragments": 2},  # both sample half of a batch, then wait: no lag
    "ahead": {"window": 2},  # nobody waits for long
}


def cartpole(options: Options) -> list[Row]:
    """Figures 1 and 2: rate, and time from process start to solved, beside four peers."""
    env, steps = "CartPole-v1", 60_000 if options.quick else 2_000_000
    systems.prepare(options, environments.PEERS)
    rate: dict[str, Side] = {
        "farfield": lambda seed: systems.ours(options, env, seed, steps=steps),
        **{name: _peer(options, name, env, None, options.seconds) for name in environments.PEERS},
    }
    rows = interleave(options, rate)
    targets = [_ratio(rows, "farfield", peer, 10 if peer in ("sb3", "cleanrl") else 15)
               for peer in environments.PEERS]  # fmt: skip
    first = figure("1", "CartPole-v1, PPO: steps per second", rows, targets)
    goal, limit = (100.0, 30.0) if options.quick else (475.0, 180.0)
    solved: dict[str, Side] = {
        "farfield": lambda seed: systems.ours(options, env, seed, until=goal, steps=2_000_000),
        **{name: _peer(options, name, env, goal, limit) for name in environments.PEERS},
    }
    rows = interleave(options, solved)
    targets = [_fastest(rows, 0.5)]
    title = f"CartPole-v1: seconds from process start to a mean return of {goal:g}, nothing compiled before"
    return [first, figure("2a", title, rows, targets), _start(options)]


def lunar(options: Options) -> list[Row]:
    """Figure 3: rate and time to 200 beside Stable-Baselines3, on Gymnasium's environment and on EnvPool."""
    env, steps = "LunarLander-v3", 60_000 if options.quick else 800_000
    systems.prepare(options, ("sb3",))
    ours = {
        f"farfield, {name}, {way}": {"actors": 2, "more": {"lanes.backend": backend} | chosen}
        for name, backend in (("Gymnasium", "sync"), ("EnvPool", "envpool"))
        for way, chosen in TURNS.items()
    }
    rows = interleave(options, {
        "sb3": _peer(options, "sb3", env, None, options.seconds),
        **{name: _ours(options, env, name, {"steps": steps} | chosen) for name, chosen in ours.items()},
    })  # fmt: skip
    targets = [_ratio(rows, _best(rows, kind, "steps_per_second", max), "sb3", bound)
               for kind, bound in (("Gymnasium", 4), ("EnvPool", 6))]  # fmt: skip
    first = figure("3a", "LunarLander-v3, PPO: steps per second (render_mode=None everywhere)", rows, targets)
    goal, limit = (-150.0, 40.0) if options.quick else (200.0, 300.0)
    rows = interleave(options, {
        "sb3": _peer(options, "sb3", env, goal, limit),
        **{name: _ours(options, env, name, {"until": goal, "steps": 4_000_000} | chosen)
           for name, chosen in ours.items() if "ahead" not in name},
    })  # fmt: skip
    targets = [_share(rows, _best(rows, kind, "solved_seconds", min), "sb3", 0.25) for kind in ("Gymnasium", "EnvPool")]
    title = f"LunarLander-v3: seconds from process start to a mean return of {goal:g}, nothing compiled before"
    return [first, figure("3b", title, rows, targets)]


def _best(rows: list[Row], kind: str, key: str, better: Callable[..., str]) -> str:
    """Name the best of our ways to step this kind of environment; all of them are in the table."""
    medians = {name: median(rows, name, key) for name in {row["system"] for row in rows} if kind in name}
    known = {name: value for name, value in medians.items() if value is not None}
    return better(known, key=lambda name: known[name], default=f"farfield, {kind}")


def update(options: Options) -> list[Row]:
    """Figure 4: one update on one core, beside PyTorch in CleanRL's style."""
    systems.prepare(options, ("sb3",))
    torch = ["--torch-python", str(options.pythons["sb3"])] if "sb3" in options.pythons else []
    title = "One PPO update: 8,192 samples, 4 epochs, 2 × 64, one core, beside PyTorch eager in CleanRL's style"
    found = _script(options, "update.py", "4", title, torch)
    found["targets"] += [
        target(f"no PyTorch: {options.missing[name]}", None, 4.5) for name in options.missing if not torch
    ]
    return [found]


def wire(options: Options) -> list[Row]:
    """Figure 5: encoding, decoding and moving fragments."""
    return [_script(options, "wire.py", "5", "Encoding and moving fragments")]


def interleave(options: Options, sides: dict[str, Side]) -> list[Row]:
    """Measure every side once, then every side again: what disturbs the machine for a while disturbs all of them."""
    rows: list[Row] = []
    for repetition in range(options.repeat):
        for name, side in sides.items():
            row = side(repetition + 1) | {"system": name, "repetition": repetition + 1}
            rows.append(row)
            shown = {key: row.get(key) for key in ("steps_per_second", "solved_seconds", "cores_of_others", "error")}
            print(f"  {repetition + 1} {name}: {json.dumps(shown)}", file=sys.stderr, flush=True)
    return rows


def median(rows: list[Row], system: str, key: str) -> float | None:
    """Give the median of our repetitions; None when any of them has no figure."""
    values = [row.get(key) for row in rows if row["system"] == system]
    if not values or any(value is None for value in values):
        return None
    return statistics.median(values)


def peer_median(rows: list[Row], peer: str, key: str) -> float | None:
    """Give the median of a peer's repetitions that ran; where it did not get there its time is the limit's."""
    mine = [row for row in rows if row["system"] == peer and not row["error"]]
    values = [row.get(key) or (row["wall_seconds"] if key == "solved_seconds" else None) for row in mine]
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def figure(number: str, title: str, rows: list[Row], targets: list[Row]) -> Row:
    """Put a figure together."""
    return {"figure": number, "title": title, "rows": rows, "targets": targets}


def target(text: str, value: float | None, bound: float, *, most: bool = False, unit: str = "") -> Row:
    """Compare a value with its target; a value that could not be measured has reached nothing."""
    reached = value is not None and (value <= bound if most else value >= bound)
    return {"text": text, "value": value, "target": bound, "most": most, "unit": unit, "reached": reached}


def _peer(options: Options, name: str, env: str, until: float | None, seconds: float) -> Side:
    return lambda seed: systems.peer(options, name, env, seed, until=until, seconds=seconds)


def _ours(options: Options, env: str, name: str, chosen: dict[str, Any]) -> Side:
    return lambda seed: systems.ours(options, env, seed, name=name, **chosen)


def _ratio(rows: list[Row], ours: str, peer: str, bound: float) -> Row:
    mine, theirs = median(rows, ours, "steps_per_second"), peer_median(rows, peer, "steps_per_second")
    return target(f"{ours} ÷ {peer}, steps/s", mine / theirs if mine and theirs else None, bound, unit="×")


def _share(rows: list[Row], ours: str, peer: str, bound: float) -> Row:
    mine, theirs = median(rows, ours, "solved_seconds"), peer_median(rows, peer, "solved_seconds")
    value = mine / theirs if mine and theirs else None
    return target(f"{ours} ÷ {peer}, seconds", value, bound, most=True, unit="×")


def _fastest(rows: list[Row], bound: float) -> Row:
    """Compare with the peer that is solved first; one that cannot run does not make us look better or worse."""
    times = {peer: peer_median(rows, peer, "solved_seconds") for peer in environments.PEERS}
    found = {peer: time for peer, time in times.items() if time is not None}
    return _share(rows, "farfield", min(found, key=lambda peer: found[peer], default="any peer"), bound)


def _start(options: Options) -> Row:
    """Measure when the first update is finished, with nothing compiled before and with all of it kept."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        kept = Path(folder)
        systems.ours(options, "CartPole-v1", 99, steps=20_000, compiled=kept)
        sides: dict[str, Side] = {
            "farfield, cold": lambda seed: systems.ours(options, "CartPole-v1", seed, steps=20_000),
            "farfield, warm": lambda seed: systems.ours(options, "CartPole-v1", seed, steps=20_000, compiled=kept),
        }
        rows = interleave(options, sides)
    key = "first_update_seconds"
    targets = [
        target("first update after a cold start", median(rows, "farfield, cold", key), 5.0, most=True, unit="s"),
        target("first update, warm cache", median(rows, "farfield, warm", key), 2.5, most=True, unit="s"),
    ]
    return figure("2b", "Seconds from process start to the first finished update", rows, targets)


def _script(options: Options, name: str, number: str, title: str, more: Sequence[str] = ()) -> Row:
    """Run a bench of its own: lines of JSON with name, value, unit, target."""
    measure.wait_for_quiet(options.quiet)
    script = systems.BENCH / name
    quick = ["--quick"] if options.quick and script.exists() and '"--quick"' in script.read_text() else []
    command = [sys.executable, str(script), "--json", *quick, *more]
    outcome = measure.run(command, cwd=systems.BENCH.parent, timeout=600)
    lines = [line for _, line in outcome.lines if "name" in line]
    rows = [{"system": line["name"], **line, **outcome.facts()} for line in lines] or [
        {"system": name, **outcome.facts()}
    ]
    targets = [_judged(line) for line in lines if line.get("target") not in (None, "")]
    if outcome.error:
        targets.append(target(f"{name}: {outcome.error}", None, 0))
    return figure(number, title, rows, targets)


def _judged(line: Row) -> Row:
    """Read a target: "≤ 25" or "≥ 500", or a number, which is a bound from above for times and sizes."""
    text = str(line["target"])
    number = float("".join(letter for letter in text if letter.isdigit() or letter == "."))
    most = "≤" in text or "<" in text
    if not most and "≥" not in text and ">" not in text:
        most = line.get("unit", "") in {"s", "ms", "us", "µs", "ns", "MB", "bytes"}
    return target(line["name"], line["value"], number, most=most, unit=line.get("unit", ""))
