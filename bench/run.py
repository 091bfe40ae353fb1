"""The bench in one command: measures ours beside peers, keeps the results, writes the table into the docs.

Usage: run.py [--only cartpole,lunar,update,wire,startup,examples,growth,live] [--quick] [--repeat 3] [--cache DIR]
[--farfield CMD]. A name stands for all parts that begin with it: live for live-loop, live-ingest and so on.
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import environments
import examples
import figures
import growth
import living
import measure
import report
import startup
import systems

ROOT = Path(__file__).parent.parent
PARTS: dict[str, Callable[[systems.Options], list[dict[str, Any]]]] = {
    "cartpole": figures.cartpole,
    "lunar": figures.lunar,
    "update": figures.update,
    "wire": figures.wire,
    "startup": startup.measure_startup,
    "examples": examples.measure_examples,
    "growth": lambda options: growth.measure_growth(options, ROOT / "docs"),
} | living.PARTS


def options_of(words: list[str], parser: argparse.ArgumentParser | None = None) -> systems.Options:
    """Read the command line."""
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a few seconds each: shows that all of it runs")
    parser.add_argument("--repeat", type=int, help="repetitions of each side (3; quick: 1)")
    parser.add_argument("--seconds", type=float, help="of each peer's run for its rate (20; quick: 5)")
    parser.add_argument("--quiet", type=float, help="longest wait for a quiet machine before each run (30; quick: 0)")
    parser.add_argument("--cache", type=Path, default=environments.CACHE, help="where peers are installed")
    parser.add_argument("--farfield", help="the command to measure as ours, by default the one beside this Python")
    given, _ = parser.parse_known_args(words)
    quick = given.quick
    return systems.Options(
        farfield=shlex.split(given.farfield) if given.farfield else systems.default_command(),
        cache=given.cache.expanduser().resolve(),
        quick=quick,
        repeat=given.repeat or (1 if quick else 3),
        quiet=given.quiet if given.quiet is not None else (0.0 if quick else 30.0),
        seconds=given.seconds or (5.0 if quick else 20.0),
    )


def main() -> int:
    """Measure what is asked for; parts that were measured before and are not asked for keep their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--results", type=Path, default=ROOT / "bench/results/latest.json")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of performance.md")
    options = options_of(sys.argv[1:], parser)
    given = parser.parse_args()
    asked = {name: _parts(name) for name in given.only.split(",") if name}
    unknown = [name for name, parts in asked.items() if not parts]
    if unknown:
        parser.error(f"unknown part {', '.join(unknown)}; known: {', '.join(PARTS)}")
    chosen = [part for part in PARTS if any(part in parts for parts in asked.values())]
    PARTS["growth"] = lambda options: growth.measure_growth(options, given.docs)
    kept = _kept(given.results, quick=options.quick)
    for name in chosen:
        print(f"{name} …", file=sys.stderr, flush=True)
        begun = time.monotonic()
        kept[name] = _measured(name, options)
        print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
        _write(given.results, given.docs, kept, options)  # after each part: nothing measured is lost
    results = _write(given.results, given.docs, kept, options)
    print(report.summary(results))
    return 0


def _parts(name: str) -> list[str]:
    """Give the part of this name, or all that begin with it."""
    return [part for part in PARTS if part == name or part.startswith(f"{name}-")]


def _measured(name: str, options: systems.Options) -> list[dict[str, Any]]:
    try:
        return PARTS[name](options)
    except Exception as error:  # noqa: BLE001 (one part's trouble is shown in its place; the rest goes on)
        text = f"{name} could not be measured: {type(error).__name__}: {error}"
        print(f"  {text}", file=sys.stderr, flush=True)
        return [
            figures.figure(
                name, "not measured", [{"system": "farfield", "error": text}], [figures.target(text, None, 0)]
            )
        ]


def _kept(path: Path, *, quick: bool) -> dict[str, list[dict[str, Any]]]:
    """Read earlier parts; quick and whole results never mix."""
    if not path.exists():
        return {}
    before = json.loads(path.read_text())
    return before["parts"] if before["quick"] == quick else {}


def _write(path: Path, docs: Path, parts: dict[str, Any], options: systems.Options) -> dict[str, Any]:
    machine = measure.machine()
    results = {"quick": options.quick, "machine": machine, "missing": options.missing, "parts": parts}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    ordered = [figure for name in PARTS if name in parts for figure in parts[name]]
    whole = results | {"figures": ordered}
    report.write(whole, docs)
    return whole


if __name__ == "__main__":
    sys.exit(main())
