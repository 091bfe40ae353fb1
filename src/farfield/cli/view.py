"""Rows of metrics go in as they come; the terminal shows how training goes, at most four times a second."""

import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from farfield.telemetry.curves import chart, compact, duration

REFRESH = 4  # pictures a second
PLAIN = 5.0  # seconds between lines where there is no terminal
POINTS = 512  # of the curve that are kept; every second one is left out when there are more
EPISODES = 100
OURS = "update attempt version steps seconds steps_per_second episodes returns lengths return_mean lag lag_max dropped"
LIVE = "off_policy credits credits_late credits_unknown credits_repeated hurried unreadable"
KNOWN = frozenset(f"{OURS} {LIVE}".split())

Row = Mapping[str, Any]


class View:
    """Shows one training run; held by whoever trains it, one thread."""

    def __init__(
        self,
        console: Console,
        *,
        total_steps: int,
        until: float | None,
        run: str,
        env: str,
        algorithm: str,
        backend: str = "",
        checkpoints: Path | None = None,
    ) -> None:
        """Begin to show; `checkpoints` is their folder, to tell how old the newest is."""
        self._console, self._total, self._until = console, total_steps, until
        self._run, self._title, self._checkpoints = (
            run,
            " · ".join(filter(None, (env, algorithm, backend))),
            checkpoints,
        )
        self._row: Row = {}
        self._recent: deque[float] = deque(maxlen=EPISODES)
        self._points: list[tuple[float, float, float]] = []  # seconds, steps, mean return
        self._every, self._skipped = 1, 0  # one row in so many becomes a point
        self._began = time.monotonic()
        self._due = 0.0  # when the next plain line is
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(console=console, refresh_per_second=REFRESH, get_renderable=self.render)
            self._live.start()

    def update(self, row: Row) -> None:
        """Take the newest row; it is drawn later, by another thread."""
        self._row = row
        mean = row.get("return_mean")
        if mean is None:
            self._recent.extend(row.get("returns", ()))
            mean = sum(self._recent) / len(self._recent) if self._recent else None
        self._skipped += 1
        if mean is not None and self._skipped >= self._every:
            self._keep(row, mean)
        if self._live is None and time.monotonic() >= self._due:
            self._due = time.monotonic() + PLAIN
            self._console.print(self._line(), soft_wrap=True, highlight=False, markup=False)

    def message(self, text: str) -> None:
        """Say something that stays above the view."""
        self._console.print(Text(text, style="yellow"), soft_wrap=True, highlight=False)

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Stop drawing and say how it ended; without a summary the last picture stays."""
        if self._live is not None:
            self._live.transient = summary is not None
            self._live.stop()
            self._live = None
        if summary is not None:
            self._console.print(self._ended(summary))

    def render(self) -> RenderableType:
        """Draw what is known now; one text in one frame, since laying out tables costs ten times as much."""
        row = self._row
        width = max(40, min(self._console.width, 100))
        lines = [Text.assemble((self._run, "bold"), " · ", (self._title, "dim"))]
        if not row:
            waited = duration(time.monotonic() - self._began)
            lines.append(Text(f"compiling and playing the first steps … {waited}", style="dim"))
        else:
            lines += self._bars(row, width - 4)
            lines += _curve(self._points, width - 4)
            lines += _flowed(self._facts(row), width - 4)
            lines += _flowed(_losses(row), width - 4)
        return Panel(Text("\n").join(lines), width=width)

    def _keep(self, row: Row, mean: float) -> None:
        """Add a point to the curve, and thin the curve out when it is long."""
        self._skipped = 0
        self._points.append((float(row["seconds"]), float(row["steps"]), mean))
        if len(self._points) >= POINTS:
            self._points = self._points[::2]
            self._every *= 2

    def _bars(self, row: Row, width: int) -> list[Text]:
        """Draw how far it is in steps and, where there is a goal, in return."""
        done = min(1.0, row["steps"] / self._total)
        said = f"{compact(row['steps'])} of {compact(self._total)} · {done:.0%} · ETA {duration(self._eta(row))}"
        bars = [_bar("steps", done, said, "cyan", width)]
        if self._until is not None and self._points:
            first, now = self._points[0][2], self._points[-1][2]
            way = (now - first) / (self._until - first) if self._until > first else 1.0
            bars.append(_bar("return", way, f"{now:.4g} of {self._until:.4g}", "green", width))
        return bars

    def _facts(self, row: Row) -> dict[str, str]:
        """Say what concerns the machinery."""
        facts = {
            "steps/s": compact(row["steps_per_second"]),
            "episodes": f"{row['episodes']:,}",
            "lag": f"{row['lag']:.2g} (≤ {row['lag_max']:g})",
            "dropped": f"{row['dropped']:,}",
            "version": f"{row['version']:,}",
            "time": duration(row["seconds"]),
        }
        age = self._checkpoint_age()
        return facts if age is None else facts | {"checkpoint": f"{duration(age)} ago"}

    def _checkpoint_age(self) -> float | None:
        """Say how many seconds ago the newest checkpoint was written."""
        if self._checkpoints is None:
            return None
        try:
            times = [path.stat().st_mtime for path in self._checkpoints.glob("[0-9]*.safetensors")]
        except FileNotFoundError:  # pruned between the two; the next picture tells
            return None
        return max(0.0, time.time() - max(times)) if times else None

    def _eta(self, row: Row) -> float:
        """Guess the seconds that are left: until the steps are done, or the goal is met if that is sooner."""
        rate = row["steps_per_second"]
        left = (self._total - row["steps"]) / rate if rate > 0 else float("inf")
        points = self._points
        if self._until is not None and len(points) > 8:
            (t0, _, r0), (t1, _, r1) = points[-(len(points) // 3)], points[-1]
            climb = (r1 - r0) / (t1 - t0) if t1 > t0 else 0.0
            left = min(left, max(0.0, self._until - r1) / climb) if climb > 0 else left
        return max(0.0, left)

    def _line(self) -> str:
        """Say it all in one line of text."""
        row = self._row
        mean = f"{self._points[-1][2]:.4g}" if self._points else "–"
        goal = f" of {self._until:.4g}" if self._until is not None else ""
        steps = f"{compact(row['steps'])} of {compact(self._total)} steps"
        return (
            f"{duration(row['seconds'])}  {steps}  return {mean}{goal}  "
            f"{compact(row['steps_per_second'])} steps/s  lag {row['lag']:.2g}  ETA {duration(self._eta(row))}"
        )

    def _ended(self, summary: Mapping[str, Any]) -> RenderableType:
        """Say how it ended, and what to do next."""
        by = summary.get("stopped_by") or "?"
        words = {
            "until": ("solved", "green"),
            "steps": ("all steps done", "cyan"),
            "patience": ("stopped: no better return for long", "yellow"),
        }
        said, colour = words.get(by, (f"stopped by {by}", "yellow"))
        mean = summary.get("return_mean")
        if mean is None and self._points:
            mean = self._points[-1][2]
        facts = {
            "return": f"{mean:.4g}, the mean of the last {EPISODES} episodes" if mean is not None else "–",
            "steps": f"{summary.get('steps', 0):,} at {compact(summary.get('steps_per_second') or 0.0)}/s",
            "time": f"{duration(summary.get('seconds') or 0.0)} from the start of the process",
            "episodes": f"{summary.get('episodes', 0):,}",
            "lag": f"{summary.get('lag') or 0.0:.2g}, {summary.get('dropped', 0):,} fragments dropped",
            "version": f"{summary.get('version', '–')}",
        }
        width = max(40, min(self._console.width, 100))
        lines = [Text.assemble((said, f"bold {colour}"), f" · {self._run} · {self._title}")]
        lines += _curve(self._points, width - 4)
        lines += [Text.assemble((f"{name:<10}", "dim"), value) for name, value in facts.items()]
        lines.append(Text(f"next: farfield play {self._run}  ·  farfield show {self._run}", style="dim"))
        return Panel(Text("\n").join(lines), border_style=colour, width=width)


def _bar(name: str, share: float, said: str, colour: str, width: int) -> Text:
    """Draw one bar between its name and its words."""
    room = max(4, width - 8 - len(said) - 1)
    filled = round(max(0.0, min(1.0, share)) * room)
    return Text.assemble(
        (f"{name:<8}", "dim"), ("━" * filled, colour), ("━" * (room - filled), "bright_black"), " ", said
    )


def _curve(points: list[tuple[float, float, float]], width: int) -> list[Text]:
    """Draw the curve with its scale beside it; nothing while there is no line to draw."""
    points = points[:]  # the learner's thread goes on adding
    if len(points) < 2:
        return []
    means = [mean for *_, mean in points]
    lines = chart([steps for _, steps, _ in points], means, width=width - 8, height=6)
    labels = [f"{max(means):.4g}", *[""] * (len(lines) - 2), f"{min(means):.4g}"]
    return [Text.assemble((f"{label:<8}", "dim"), (line, "green")) for label, line in zip(labels, lines, strict=True)]


def _losses(row: Row) -> dict[str, str]:
    """Show what the algorithm says of itself."""
    found = [name for name, value in row.items() if name not in KNOWN and isinstance(value, int | float)]
    found.sort(key=lambda name: (not name.startswith("loss"), name not in ("entropy", "kl"), name))
    return {name: f"{row[name]:.3g}" for name in found[:10]}


def _flowed(facts: Mapping[str, str], width: int) -> list[Text]:
    """Set names and values one after another, on as many lines as they take."""
    lines: list[Text] = []
    for name, value in facts.items():
        if not lines or lines[-1].cell_len + len(name) + len(value) + 4 > width:
            lines.append(Text())
        lines[-1].append("   " if lines[-1].plain else "").append(f"{name} ", "dim").append(value)
    return lines
