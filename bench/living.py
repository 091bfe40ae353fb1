"""Options go in; the figures of live programs come out: what a session costs a program, what a gateway takes."""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import measure
import systems
from figures import Row, figure, median, target
from live.gateway import BUSY, IDLE, RUN, gateway
from systems import Options

LIVE = Path(__file__).parent / "live"
ROOT = LIVE.parent.parent


def measure_living(options: Options) -> list[Row]:
    """Measure all of it; each figure has a gateway of its own, on loopback."""
    return [loop(options), learned(options), memory(options), ingest(options), remote(options), native(options),
            jobs(options), peers(options)]  # fmt: skip


def loop(options: Options) -> Row:
    """Figure 1: what act, record and send cost, in blocks that alternate with the bare loop of the same program."""
    rows: list[Row] = []
    for repetition in range(options.repeat):
        for name, settings, more in (
            ("native core, gateway and learner idle", IDLE, ["--core", "native"]),
            ("NumPy, gateway and learner idle", IDLE, ["--core", "numpy"]),
            ("native core, gateway and learner busy", BUSY, ["--core", "native"]),
            ("native core, busy, every act timed", BUSY, ["--core", "native", "--latency"]),
        ):
            with gateway(options.farfield, settings) as (address, _, _):
                line = _program(options, "loop.py", [address, RUN, *more, "--seconds", str(_seconds(options))])
            rows.append({"system": name, "repetition": repetition + 1, "value": line.get("ratio"), "unit": "× bare",
                         **line.pop("act_us", {}), **line})  # fmt: skip
    kept = median(rows, "native core, gateway and learner busy", "value")
    targets = [
        target("native core, idle: loop ÷ bare", median(rows, rows[0]["system"], "value"), 1.10, most=True, unit="×"),
        target("NumPy, idle: loop ÷ bare", median(rows, rows[1]["system"], "value"), 1.25, most=True, unit="×"),
        target("native core, busy: share of the bare rate", 1 / kept if kept else None, 0.60),
        *(target(f"act {name}, versions arriving", median(rows, rows[3]["system"], name), bound, most=True, unit="µs")
          for name, bound in (("p50", 4.0), ("p99", 50.0), ("p99.9", 1000.0))),
    ]  # fmt: skip
    return figure("L1", "LunarLander live, one thread: time of a step beside the bare loop", rows, targets)


def learned(options: Options) -> Row:
    """Figure 2: how many of a program's steps are learned from when it runs as fast as it can."""
    rows: list[Row] = []
    for repetition in range(options.repeat):
        with gateway(options.farfield, BUSY) as (address, folder, _):
            words = [address, RUN, "--alone", "--seconds", str(3 * _seconds(options))]
            line = _program(options, "loop.py", words)
            updates = _updates(folder)
        lags = sorted(update["lag_max"] for update in updates) or [None]
        rows.append({
            "system": "farfield", "repetition": repetition + 1, "unit": "%",
            "value": 100 * updates[-1]["steps"] / line["steps"] if updates and line.get("steps") else None,
            "lag_p99": lags[int(0.99 * (len(lags) - 1))], "lag": sum(u["lag"] for u in updates) / max(1, len(updates)),
            "updates": len(updates), "fresh_dropped": updates[-1]["dropped"] if updates else None, **line,
        })  # fmt: skip
    targets = [
        target("finished steps that were learned from", median(rows, "farfield", "value"), 95.0, unit="%"),
        target("versions between acting and learning, p99", median(rows, "farfield", "lag_p99"), 2, most=True),
    ]
    return figure("L2", "LunarLander live at full speed on the same two cores: steps learned from", rows, targets)


def memory(options: Options) -> Row:
    """Figure 3: memory of a client, and the size of the base wheel."""
    rows: list[Row] = []
    with gateway(options.farfield, IDLE) as (address, _, _):
        for repetition in range(options.repeat):
            bare = _program(options, "memory.py", []).get("megabytes")
            live = _program(options, "memory.py", [address, RUN]).get("megabytes")
            value = live - bare if bare and live else None
            rows.append({"system": "a client over a bare NumPy program", "repetition": repetition + 1, "unit": "MB",
                         "value": value, "bare": bare, "live": live})  # fmt: skip
    rows.append({"system": "base wheel", "value": _wheel(), "unit": "MB"})
    targets = [target(f"memory of {rows[0]['system']}", median(rows, rows[0]["system"], "value"), 40, most=True,
                      unit="MB"), target("base wheel", rows[-1]["value"], 1.0, most=True, unit="MB")]  # fmt: skip
    return figure("L3", "What a client takes", rows, targets)


def ingest(options: Options) -> Row:
    """Figure 4: durable experience from 32 clients with the gateway on one core, and a thousand that only listen."""
    rows: list[Row] = []
    pin = [shutil.which("taskset") or "taskset", "-c"]
    for repetition in range(options.repeat):
        with gateway([*pin, "0", *options.farfield], IDLE) as (address, _, pid):
            before = measure_resident(pid)
            words = [address, RUN, "--fragments", "100" if options.quick else "1000"]
            line = _program(options, "ingest.py", words, before=[*pin, "1"])
            grown = measure_resident(pid) - before
            idle = _program(options, "idle.py", [address, RUN, "--clients", "1000"], before=[*pin, "1"])
        rows.append({"system": "farfield", "repetition": repetition + 1, "value": line.get("steps_per_second"),
                     "unit": "steps/s", "grown_megabytes": grown, "idle": idle.get("connected"),
                     "error": line.get("error", "") or idle.get("error", "")})  # fmt: skip
    targets = [
        target("steps/s made durable, 32 clients, one core", median(rows, "farfield", "value"), 300_000),
        target("clients connected that send nothing", median(rows, "farfield", "idle"), 1000),
    ]
    return figure("L4", "The gateway takes experience", rows, targets)


def remote(options: Options) -> Row:
    """Figure 5: decisions made by the gateway, over streams and by single calls."""
    rows: list[Row] = []
    for repetition in range(options.repeat):
        with gateway(options.farfield, IDLE) as (address, _, _):
            line = _program(options, "acting.py", [address, RUN, "--seconds", "1" if options.quick else "4"])
        rows += [{"system": name, "repetition": repetition + 1, "value": line.get(way), "unit": "acts/s",
                  "ratio": line.get("ratio")} for name, way in (("streams", "stream"), ("calls", "unary"))]  # fmt: skip
    targets = [target("streams ÷ unary calls, 64 clients", median(rows, "streams", "ratio"), 3.0, unit="×")]
    return figure("L5", "Remote acting for 64 clients", rows, targets)


def native(options: Options) -> Row:
    """Figure 6: the C++ client, compiled from nothing, and its decisions."""
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        begun = time.perf_counter()
        outcome = measure.run([sys.executable, str(LIVE / "cpp.py"), place], cwd=ROOT, timeout=900)
    rows = [{"system": line["name"], **line} for _, line in outcome.lines if "name" in line]
    values = {row["system"]: row["value"] for row in rows}
    targets = [
        target("act, 2 × 64, C++, p50", values.get("act p50"), 2.0, most=True, unit="µs"),
        target("the client compiles, 2 jobs", values.get("compile"), 60.0, most=True, unit="s"),
    ]
    error = {"error": outcome.error, "seconds": time.perf_counter() - begun}
    return figure("L6", "The C++ client", rows or [{"system": "C++ client", **error}], targets)


def jobs(options: Options) -> Row:
    """Figure 7: steps of the job-scheduling environment."""
    outcome = measure.run([sys.executable, str(LIVE.parent / "jobs.py"), "--json"], cwd=ROOT, timeout=600)
    rows = [{"system": line["name"], **line} for _, line in outcome.lines if "name" in line]
    value = rows[0]["value"] if rows else None
    return figure(
        "L7", "Job scheduling: steps with observation and mask", rows or [{"system": "jobs", "error": outcome.error}],
        [target("farfield ÷ RL4Sys (1,603 steps/s)", value / 1603 if value else None, 3.0, unit="×")],
    )  # fmt: skip


def peers(options: Options) -> Row:
    """Figure 0: the same task through the doors that others have for programs outside of them."""
    systems.prepare(options, ("rllib", "torchrl"))
    rows: list[Row] = []
    for repetition in range(options.repeat):
        with gateway(options.farfield, BUSY) as (address, _, _):
            words = [address, RUN, "--alone", "--seconds", str(_seconds(options))]
            line = _program(options, "loop.py", words)
        rate = 1e6 / line["live_us"] if line.get("live_us") else None
        rows.append({"system": "farfield, session", "repetition": repetition + 1, "steps_per_second": rate, **line})
        for name, module in (("rllib", "rllib_external"), ("torchrl", "torchrl_collector")):
            rows.append({"system": module, "repetition": repetition + 1} | _peer(options, name, module))
        with gateway(options.farfield, BUSY) as (address, _, _):
            line = _program(options, "compat.py", [address, "--seconds", str(_seconds(options))])
            rows.append({"system": "farfield, RL4Sys's API", "repetition": repetition + 1, **line})
    targets = [
        target(f"farfield ÷ {name}, steps/s", _over(rows, name), 1.0, unit="×")
        for name in ("rllib_external", "torchrl_collector")
    ]
    return figure("L0", "LunarLander from a program outside, gateway or trainer busy: steps per second", rows, targets)


def measure_resident(pid: int) -> float:
    """Give the resident megabytes of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1024


def _over(rows: list[Row], name: str) -> float | None:
    mine, theirs = median(rows, "farfield, session", "steps_per_second"), median(rows, name, "steps_per_second")
    return mine / theirs if mine and theirs else None


def _peer(options: Options, name: str, module: str) -> Row:
    if name in options.missing:
        return {"error": options.missing[name]}
    measure.wait_for_quiet(options.quiet)
    command = [str(options.pythons[name]), "-P", "-m", f"peers.{module}", "--seconds", str(_seconds(options))]
    variables = systems.ONE_THREAD | {"PYTHONPATH": str(systems.BENCH), "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        outcome = measure.run(command, cwd=Path(folder), timeout=300, env=variables)
    return {**outcome.last, **outcome.facts()}


def _program(options: Options, name: str, words: Sequence[str], *, before: Sequence[str] = ()) -> Row:
    measure.wait_for_quiet(options.quiet if name == "loop.py" else 0.0)
    outcome = measure.run([*before, sys.executable, str(LIVE / name), *words], cwd=ROOT, timeout=300)
    shown = {key: value for key, value in outcome.last.items() if key not in ("counters", "left")}
    print(f"  {name}: {json.dumps(shown)} {outcome.error}", file=sys.stderr, flush=True)
    return {**outcome.last, **outcome.facts()}


def _updates(folder: Path) -> list[Row]:
    """Give the metrics of a run once its learner has used what it can."""
    path, before = folder / "metrics.jsonl", -1
    while path.stat().st_size != before:
        before = path.stat().st_size
        time.sleep(3.0)
    return [json.loads(line) for line in path.read_text().splitlines()]


def _wheel() -> float | None:
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", place, str(ROOT)]
        outcome = measure.run([*words], cwd=Path(place), timeout=600)
        sizes = [file.stat().st_size / 1e6 for file in Path(place).glob("*.whl")]
    if not sizes:
        print(f"  no wheel: {outcome.error}", file=sys.stderr)
    return sizes[0] if sizes else None


def _seconds(options: Options) -> float:
    return 3.0 if options.quick else 10.0
