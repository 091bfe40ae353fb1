"""Learning curves of several runs go in, a picture with means and confidence bands comes out."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from farfield.errors import ConfigError, MissingError
from farfield.telemetry.curves import compact, duration
from farfield.types import Array

COLOURS = ("#2a6fdb", "#e0662f", "#1c9a6c", "#a2459c", "#b58900", "#c43b4d", "#4d7c8a", "#6b5bd2")
INK, FAINT = "#22303c", "#8a97a3"
POINTS = 400  # places at which curves are compared
LABELS = {"steps": "environment steps", "seconds": "time"}

Curve = tuple[Sequence[float], Sequence[float]]


class Group(NamedTuple):
    """Curves of equal runs with other seeds, brought to common places."""

    name: str
    x: Array  # [P]
    y: Array  # [R, P], one row for each run
    curves: tuple[Curve, ...]  # as they were, to their own ends


def group_of(name: str) -> str:
    """Name what runs of several seeds share: lander-1 and lander-2 are lander."""
    return re.sub(r"[-_.](?:seed[-_]?)?\d+$", "", name)


def groups(curves: Mapping[str, Curve], *, by: Literal["prefix", "none", "all"] = "prefix") -> list[Group]:
    """Put runs together by the prefix of their names, all into one, or each alone."""
    members: dict[str, list[str]] = {}
    for name in curves:
        members.setdefault({"prefix": group_of(name), "none": name, "all": "all runs"}[by], []).append(name)
    return [
        _aligned(names[0] if len(names) == 1 else name, [curves[run] for run in names])
        for name, names in members.items()
    ]


def band(y: Array, *, draws: int = 500, confidence: float = 0.95) -> tuple[Array, Array]:
    """Estimate by bootstrap where the mean of runs [R, P] lies; the same band for the same runs."""
    picks = np.random.default_rng(0).integers(0, len(y), (draws, len(y)))
    means = y[picks].mean(axis=1)  # [draws, P]
    tail = 50 * (1 - confidence)
    low, high = np.percentile(means, (tail, 100 - tail), axis=0)
    return low, high


def draw(curves: Mapping[str, Curve], path: Path, *, x: str = "steps", by: Any = "prefix", title: str = "") -> None:
    """Draw learning curves; the ending of `path` chooses PNG, SVG or PDF."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter
    except ImportError as error:
        raise MissingError('plots: matplotlib is not installed; pip install "farfield[train]"') from error
    figure = Figure(figsize=(8, 4.8), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    drawn = groups(curves, by=by)
    for number, group in enumerate(drawn):
        _draw_group(axes, group, COLOURS[number % len(COLOURS)])
    _dress(axes, title or "Learning curves", x)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, x)))
    axes.legend(loc="best", frameon=False, labelcolor=INK, fontsize=9, handlelength=1.4)
    try:
        figure.savefig(path)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}; a name that ends in .png is always right") from error


def _aligned(name: str, curves: Sequence[Curve]) -> Group:
    """Read curves at common places, as far as the shortest run went."""
    last = min(curve[0][-1] for curve in curves)
    first = min(max(curve[0][0] for curve in curves), last)
    x = np.linspace(first, last, POINTS)
    return Group(name, x, np.stack([np.interp(x, *curve) for curve in curves]), tuple(curves))


def _draw_group(axes: Any, group: Group, colour: str) -> None:
    """Draw a mean, its band, and each run faintly behind."""
    count = len(group.y)
    mean = group.y.mean(axis=0)
    label = f"{group.name}  ({count} runs)" if count > 1 else group.name
    axes.plot(group.x, mean, color=colour, linewidth=2.0, label=label, solid_capstyle="round", zorder=3)
    axes.plot(group.x[-1], mean[-1], "o", color=colour, markersize=4.5, zorder=4, clip_on=False)
    axes.annotate(
        f"{mean[-1]:.4g}",
        (group.x[-1], mean[-1]),
        xytext=(7, 0),
        textcoords="offset points",
        va="center",
        color=colour,
        fontsize=9,
        fontweight="bold",
        annotation_clip=False,
    )
    if count > 1:
        for curve in group.curves:
            axes.plot(*curve, color=colour, linewidth=0.7, alpha=0.28, zorder=1)
        axes.fill_between(group.x, *band(group.y), color=colour, alpha=0.16, linewidth=0, zorder=2)


def _dress(axes: Any, title: str, x: str) -> None:
    """Give the picture its words, a light grid, and no frame."""
    axes.set_title(title, loc="left", color=INK, fontsize=13, fontweight="bold", pad=12)
    axes.set_xlabel(LABELS.get(x, x), color=FAINT, fontsize=10)
    axes.set_ylabel("mean return of the last 100 episodes", color=FAINT, fontsize=10)
    axes.grid(axis="y", color="#e6ebef", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.01)
    axes.tick_params(colors=FAINT, length=0, labelsize=9)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color("#c9d2d9")


def _tick(value: float, x: str) -> str:
    """Write a place on the x axis."""
    return duration(value) if x == "seconds" else compact(value)
