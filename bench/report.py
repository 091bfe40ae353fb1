"""Results as plain data go in; their table goes into the docs between two markers, and on the screen."""

import statistics
from pathlib import Path
from typing import Any

import measure

Row = dict[str, Any]
BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
HEAD = """# Performance

Measured by `make bench`: ours and each peer in the same run on the same machine, one after the other in turns,
medians of the repetitions. How it is done and what is held equal: [bench/README.md](../bench/README.md).

"""
COLUMNS = {
    "steps_per_second": "steps/s", "solved_seconds": "s to solved", "solved_steps": "steps to solved",
    "first_update_seconds": "s to first update", "value": "value", "return_mean": "last return", "lag": "lag",
    "lag_p99": "lag p99", "dropped": "dropped", "bare_us": "µs bare", "live_us": "µs live", "versions": "versions",
    "p50": "act p50, µs", "p99": "p99", "p99.9": "p99.9", "finished": "steps finished", "learned": "steps learned",
    "grown": "MB grown", "peak_megabytes": "MB",
}  # fmt: skip


def write(results: Row, docs: Path) -> None:
    """Put the tables between the markers of docs/performance.md; what stands around them stays."""
    docs.mkdir(parents=True, exist_ok=True)
    page = docs / "performance.md"
    text = page.read_text() if page.exists() else HEAD + f"{BEGIN}\n{END}\n"
    if BEGIN not in text or END not in text:
        text = f"{text.rstrip()}\n\n{BEGIN}\n{END}\n"
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    page.write_text(f"{before}{BEGIN}\n{render(results)}\n{END}{after}")


def render(results: Row) -> str:
    """Write all figures as Markdown."""
    machine = results["machine"]
    lines = [
        f"Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gigabytes']} GB, Python "
        f"{machine['python']}, kernel {machine['kernel']}; {machine['time']}.",
        "",
    ]
    if results["quick"]:
        lines += ["**A quick run: short, with other goals. It shows that everything runs, not how fast.**", ""]
    for name, reason in results["missing"].items():
        lines += [f"**{name} was not measured:** {reason}", ""]
    lines += ["## Targets", "", "| figure | what | value | target | reached |", "|---|---|---:|---:|---|"]
    for figure in results["figures"]:
        lines += [_target(figure["figure"], target, _mark(target, figure, results)) for target in figure["targets"]]
    for figure in results["figures"]:
        lines += ["", f"## {figure['figure']}. {figure['title']}", "", *_table(figure["rows"])]
        lines += _plots(figure["figure"])
    return "\n".join(lines) + "\n"


def summary(results: Row) -> str:
    """Write the targets for the screen."""
    lines = []
    for figure in results["figures"]:
        for target in figure["targets"]:
            mark = _mark(target, figure, results)
            lines.append(f"{figure['figure']:>3}  {target['text']}: {_value(target)}, target {_bound(target)}: {mark}")
    return "\n".join(lines)


def _table(rows: list[Row]) -> list[str]:
    """One line for each system: medians over its repetitions, the spread of the first column, the conditions."""
    shown = [key for key in COLUMNS if any(isinstance(row.get(key), int | float) for row in rows)]
    lines = [
        f"| system | {' | '.join(COLUMNS[key] for key in shown)} | range | runs | remarks |",
        f"|---|{'---:|' * (len(shown) + 2)}---|",
    ]
    for system in dict.fromkeys(row["system"] for row in rows):
        mine = [row for row in rows if row["system"] == system]
        cells = [_median(mine, key) for key in shown]
        if "value" in shown and mine[0].get("unit"):
            cells[shown.index("value")] += f" {mine[0]['unit']}"
        first = next((key for key in shown if _numbers(mine, key)), "")
        lines.append(f"| {system} | {' | '.join(cells)} | {_range(mine, first)} | {len(mine)} | {_remarks(mine)} |")
    return lines


def _remarks(rows: list[Row]) -> str:
    """Say which library, which environments, what failed, and who disturbed the measurement."""
    words = [str(rows[0][key]) for key in ("library", "backend") if rows[0].get(key)]
    if rows[0].get("actors") is not None:
        words.append(f"actors: {rows[0]['actors']}")
    words += sorted({row["error"] for row in rows if row.get("error")})
    unsolved = sum(row.get("solved_seconds") is None for row in rows if not row.get("error"))
    if rows[0].get("goal") is not None and unsolved:
        words.append(f"not solved in {unsolved} of {len(rows)}, last return {_median(rows, 'return_mean')}")
    others = max((row.get("cores_of_others", 0.0) for row in rows), default=0.0)
    if others > measure.BUSY:
        words.append(f"**disturbed: others used up to {others:.2f} cores**")
    return "; ".join(word.replace("|", "/") for word in words)


def _plots(number: str) -> list[str]:
    if number != "7":
        return []
    return ["", "![Rate against lanes and actors](growth-sampling.png)", "", "![Cost against width](growth-width.png)"]


def _mark(target: Row, figure: Row, results: Row) -> str:
    """Judge a target; a quick run judges nothing, and a disturbed one says that it was."""
    if results["quick"]:
        return "not judged (quick)"
    disturbed = any(row.get("cores_of_others", 0.0) > measure.BUSY for row in figure["rows"])
    return ("yes" if target["reached"] else "**no**") + (", disturbed" if disturbed else "")


def _target(number: str, target: Row, mark: str) -> str:
    return f"| {number} | {target['text'].replace('|', '/')} | {_value(target)} | {_bound(target)} | {mark} |"


def _value(target: Row) -> str:
    return "not measured" if target["value"] is None else f"{_number(target['value'])} {target['unit']}".strip()


def _bound(target: Row) -> str:
    return f"{'≤' if target['most'] else '≥'} {_number(target['target'])} {target['unit']}".strip()


def _numbers(rows: list[Row], key: str) -> list[float]:
    return [row[key] for row in rows if isinstance(row.get(key), int | float)]


def _median(rows: list[Row], key: str) -> str:
    values = _numbers(rows, key)
    return _number(statistics.median(values)) if values else "–"


def _range(rows: list[Row], key: str) -> str:
    values = _numbers(rows, key)
    return f"{_number(min(values))} … {_number(max(values))}" if len(values) > 1 else ""


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
