"""Figure 7: rate against lanes and actors, an update's cost against the network's width; a table and two plots."""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import systems
from figures import figure, target

LANES, ACTORS, WIDTHS = (1, 4, 16, 64, 256, 1024), (0, 1, 2, 4), (64, 128, 256, 512, 1024)
SAMPLES = 8192  # of one batch whatever the lanes, so that every point does equal work per step


def measure_growth(options: systems.Options, docs: Path) -> list[dict[str, Any]]:
    """Measure all three curves and draw them."""
    by_lanes = [_point(options, "lanes", lanes, lanes=lanes) for lanes in _some(options, LANES)]
    by_actors = [_point(options, "actors", actors, actors=actors) for actors in _some(options, ACTORS)]
    by_width = [_point(options, "width", width, width=width) for width in _some(options, WIDTHS)]
    _draw(by_lanes, by_actors, by_width, docs)
    targets = [
        _grows("time per step against lanes", by_lanes, lambda _: 1.0),
        _grows("time per update against width, per multiplication", by_width, lambda row: _products(row["x"])),
    ]
    return [
        figure("7", "Growth: CartPole-v1, batches of 8,192 steps, 4 epochs", by_lanes + by_actors + by_width, targets)
    ]


def _point(
    options: systems.Options, axis: str, x: int, *, lanes: int = 16, actors: int = 1, width: int = 64
) -> dict[str, Any]:
    work = 60_000 if options.quick else 400_000
    steps = max(5 * SAMPLES, int(work * min(1.0, 2 * _products(64) / _products(width))))
    more = {
        "lanes.count": lanes, "lanes.steps": SAMPLES // lanes, "algorithm.epochs": 4, "algorithm.minibatch": 2048,
        "network.hidden": [width, width], "lanes.backend": "vector",
    }  # fmt: skip
    if actors == 0:
        more["lanes.backend"] = "auto"  # with none of its own the environment must be repeatable: that chooses
    row = systems.ours(options, "CartPole-v1", 1, name=f"{axis} {x}", actors=actors, steps=steps, more=more)
    rate = row.get("steps_per_second")
    row |= {"axis": axis, "x": x, "microseconds_per_step": 1e6 / rate if rate else None, "width": width, "lanes": lanes}
    shown = {key: row.get(key) for key in ("steps_per_second", "lag", "dropped", "cores_of_others", "error")}
    print(f"  {axis} {x}: {json.dumps(shown)}", file=sys.stderr, flush=True)
    return row


def _products(width: int) -> float:
    """Count the multiplications of two networks of two such layers, for four inputs and three outputs."""
    return 2 * (4 * width + width * width) + 3 * width


def _grows(text: str, rows: list[dict[str, Any]], work: Any) -> dict[str, Any]:
    """Compare the last point's cost per unit of work with the first one's: 1 means that cost grows as work does."""
    costs = [row["microseconds_per_step"] / work(row) for row in rows if row["microseconds_per_step"]]
    worst = max((later / sooner for sooner, later in itertools.pairwise(costs)), default=None)
    return target(f"{text}: worst factor between neighbours", worst, 1.25, most=True, unit="×")


def _some(options: systems.Options, values: tuple[int, ...]) -> tuple[int, ...]:
    return (values[0], values[-2]) if options.quick else values


def _draw(by_lanes: list[Any], by_actors: list[Any], by_width: list[Any], docs: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawn, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    _curve(left, by_lanes, "steps_per_second", "lanes of one actor")
    left.set(xscale="log", ylabel="steps per second", title="More lanes")
    _curve(right, by_actors, "steps_per_second", "actor processes of 16 lanes")
    right.set(ylabel="steps per second", title="More actors (0: in the learner's process)")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
    drawn.savefig(docs / "growth-sampling.png", dpi=120)
    drawn, axes = plt.subplots(figsize=(5, 3.4), layout="constrained")
    _curve(axes, by_width, "microseconds_per_step", "width of both hidden layers")
    known = [row for row in by_width if row["microseconds_per_step"]]
    if known:
        last = known[-1]
        line = [last["microseconds_per_step"] * _products(row["x"]) / _products(last["x"]) for row in known]
        axes.plot([row["x"] for row in known], line, "--", color="0.6", label="multiplications")
        axes.legend()
    axes.set(xscale="log", yscale="log", ylabel="microseconds per step, all of it", title="Wider networks")
    drawn.savefig(docs / "growth-width.png", dpi=120)
    plt.close("all")


def _curve(axes: Any, rows: list[Any], key: str, label: str) -> None:
    known = [row for row in rows if row.get(key)]
    axes.plot([row["x"] for row in known], [row[key] for row in known], "o-")
    axes.set_xlabel(label)
    axes.grid(alpha=0.3)


if __name__ == "__main__":
    from run import options_of

    print(json.dumps(measure_growth(options_of(sys.argv[1:]), Path(__file__).parent.parent / "docs"), indent=1))
