"""Options go in; the figures of live programs come out: what a session costs a program, what a gateway takes."""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import systems
from figures import Row, figure, median, peer_median, target
from live.audit import audit
from live.gateway import BUSY, FULL, IDLE, RUN, Served, gateway
from systems import Options

LIVE = Path(__file__).parent / "live"
ROOT = LIVE.parent.parent
PEERS = {"rllib": "rllib_external", "torchrl": "torchrl_collector"}
CLIENTS = 1000  # that only listen
GATEWAY, REST = 0, 1  # cores: of the gateway, of everything else
PATIENCE = 60.0  # seconds until a learner has compiled
FAST = ["--alone", "--versions", "1", "--warm", "60"]  # at full speed, from the first version that was learned on
ACT = {"p50": 4.0, "p99": 50.0, "p99.9": 1000.0}  # microseconds


def loop(options: Options) -> list[Row]:
    """Figure L1: what act, record and send cost beside the bare loop of the same program."""
    idle, numpy = "native core, gateway and learner idle", "NumPy, gateway and learner idle"
    busy, full = "native core, gateway and learner busy", "native core, the learner fills a core"
    timed = "native core, busy, every act timed"
    ways: dict[str, tuple[Any, list[str]]] = {
        idle: (IDLE, ["--core", "native"]), numpy: (IDLE, ["--core", "numpy"]), busy: (BUSY, FAST), full: (FULL, FAST),
        timed: (BUSY, [*FAST, "--latency"]),
    }  # fmt: skip
    rows: list[Row] = []
    for repetition in range(options.repeat):
        for name, (settings, more) in ways.items():
            with gateway(options, settings) as served:
                if settings is IDLE:
                    _settled(options, served, "loop.py", "--seconds", "0.01", "--block", "200", "--warm", "0")
                line = _program(options, "loop.py", served, RUN, *more, "--seconds", _seconds(options))
            facts = {"system": name, "repetition": repetition + 1, "value": line.get("ratio"), "unit": "× bare"}
            rows.append({**line, **facts})
    shares = {name: _inverse(median(rows, name, "value")) for name in (busy, full)}
    targets = [
        target("native core, idle: a step ÷ a bare one", median(rows, idle, "value"), 1.10, most=True, unit="×"),
        target("NumPy, idle: a step ÷ a bare one", median(rows, numpy, "value"), 1.25, most=True, unit="×"),
        target("native core, busy: share of the bare rate", shares[busy], 0.60),
        target("native core, the learner fills a core: share of the bare rate", shares[full], 0.60),
        *(target(f"act {name}, versions arriving", median(rows, timed, name), bound, most=True, unit="µs")
          for name, bound in ACT.items()),
    ]  # fmt: skip
    return [figure("L1", "LunarLander live, one thread: time of a step beside the bare loop", rows, targets)]


def learned(options: Options) -> list[Row]:
    """Figure L2: how many of a program's steps are learned from when it runs as fast as it can."""
    rows: list[Row] = []
    seconds, batch = str(3 * float(_seconds(options))), BUSY["lanes.count"] * BUSY["lanes.steps"]
    for repetition in range(options.repeat):
        for name, cold in (("farfield, nothing compiled before", True), ("farfield", False)):
            with gateway(options, BUSY, cold=cold) as served:
                line = _program(options, "loop.py", served, RUN, "--alone", "--seconds", seconds)
                found = audit(served.folder, batch)
            if found["learned"] != found["said"] or found["twice"]:
                line["error"] = f"ledger and learner differ: {found}"
            share = 100 * found["learned"] / line["finished"] if line.get("finished") else None
            rows.append({**line, **found, "system": name, "repetition": repetition + 1, "value": share, "unit": "%"})
    targets = [
        target("finished steps that were learned from, by the ledger", median(rows, "farfield", "value"), 95, unit="%"),
        target("versions between acting and learning, p99", median(rows, "farfield", "lag_p99"), 2, most=True),
    ]
    return [figure("L2", "LunarLander live at full speed on the same two cores: steps learned from", rows, targets)]


def memory(options: Options) -> list[Row]:
    """Figure L3: memory of a client, and the size of the base wheel."""
    rows: list[Row] = []
    name = "a client, over a bare NumPy program"
    for repetition in range(options.repeat):
        with gateway(options, IDLE) as served:
            bare = _program(options, "memory.py").get("megabytes")
            line = _program(options, "memory.py", served, RUN, "--seconds", _seconds(options))
        live = line.get("megabytes")
        value = live - bare if bare and live else None
        rows.append({**line, "system": name, "repetition": repetition + 1, "value": value, "unit": "MB", "bare": bare})
    size, error = _wheel()
    rows.append({"system": "base wheel", "value": size, "unit": "MB", "error": error})
    targets = [target(f"memory of {name}", median(rows, name, "value"), 40, most=True, unit="MB"),
               target("base wheel", size, 1.0, most=True, unit="MB")]  # fmt: skip
    return [figure("L3", "What a client takes", rows, targets)]


def ingest(options: Options) -> list[Row]:
    """Figure L4: durable experience from 32 clients with the gateway on one core, and a thousand that only listen."""
    rows: list[Row] = []
    fragments, rounds = ("100", "4") if options.quick else ("1000", "10")
    name, listen = "32 clients", f"{CLIENTS:,} clients that listen"
    for repetition in range(options.repeat):
        with gateway(options, BUSY, core=GATEWAY) as served:
            _settled(options, served, "ingest.py", "--clients", "1", "--fragments", "1", core=REST)
            words = [RUN, "--fragments", fragments, "--rounds", rounds, "--pid", str(served.pid)]
            line = _program(options, "ingest.py", served, *words, core=REST)
            idle = _program(options, "idle.py", served, RUN, "--clients", str(CLIENTS), core=REST)
        held = line.get("megabytes") or []
        half = len(held) // 2  # the memory of the second half of the rounds over that of the first
        grown = statistics.mean(held[half:]) - statistics.mean(held[:half]) if half else None
        rows.append({**line, "system": name, "repetition": repetition + 1, "value": line.get("steps_per_second"),
                     "unit": "steps/s", "steps_per_second": None, "grown": grown})  # fmt: skip
        rows.append({**idle, "system": listen, "repetition": repetition + 1, "value": idle.get("connected"),
                     "unit": "connected"})  # fmt: skip
    text = f"gateway's memory: the last {int(rounds) // 2} rounds over the first ones"
    targets = [
        target("steps/s made durable, 32 clients, one core", median(rows, name, "value"), 300_000),
        target(text, median(rows, name, "grown"), 20, most=True, unit="MB"),
        target("clients connected that send nothing", median(rows, listen, "value"), CLIENTS),
    ]
    return [figure("L4", "The gateway takes experience", rows, targets)]


def remote(options: Options) -> list[Row]:
    """Figure L5: decisions made by the gateway, over streams and by single calls."""
    rows: list[Row] = []
    for repetition in range(options.repeat):
        with gateway(options, IDLE) as served:
            line = _program(options, "acting.py", served, RUN, "--seconds", "1" if options.quick else "4")
        rows += [{**line, "system": name, "repetition": repetition + 1, "value": line.get(way), "unit": "acts/s"}
                 for name, way in (("streams", "stream"), ("calls", "unary"))]  # fmt: skip
    targets = [target("streams ÷ unary calls, 64 clients", median(rows, "streams", "ratio"), 3.0, unit="×")]
    return [figure("L5", "Remote acting for 64 clients", rows, targets)]


def native(options: Options) -> list[Row]:
    """Figure L6: the C++ client, compiled from nothing, and its decisions while versions arrive."""
    measure.wait_for_quiet(options.quiet)
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        outcome = measure.run([sys.executable, str(LIVE / "cpp.py"), place], cwd=ROOT, timeout=1800)
    rows = [{"system": line["name"], **line, **outcome.facts()} for _, line in outcome.lines if "name" in line]
    values = {row["system"]: row["value"] for row in rows}
    targets = [
        target("act, 2 × 64, C++, p50", values.get("act p50"), 2.0, most=True, unit="µs"),
        target("the client compiles, 2 jobs", values.get("compile"), 60.0, most=True, unit="s"),
    ]
    return [figure("L6", "The C++ client", rows or [{"system": "C++ client", **outcome.facts()}], targets)]


def jobs(options: Options) -> list[Row]:
    """Figure L7: steps of the job-scheduling environment."""
    measure.wait_for_quiet(options.quiet)
    quick = ["--quick"] if options.quick else []
    outcome = measure.run([sys.executable, str(LIVE.parent / "jobs.py"), *quick], cwd=ROOT, timeout=600)
    try:
        found = json.loads("\n".join(outcome.texts))
    except ValueError as error:
        raise RuntimeError(outcome.error or "jobs.py printed no figures") from error
    outcome.error = ""
    rows = [row | outcome.facts() for row in found[0]["rows"]]
    return [found[0] | {"figure": "L7", "rows": rows}, *found[1:]]


def peers(options: Options) -> list[Row]:
    """Figure L0: the same task through the doors that others have for programs outside of them."""
    systems.prepare(options, tuple(PEERS))
    rows: list[Row] = []
    bare, ours, compat = "bare loop", "farfield, session", "farfield, RL4Sys's API"
    for repetition in range(options.repeat):
        turn = {"repetition": repetition + 1}
        with gateway(options, BUSY) as served:
            line = _program(options, "loop.py", served, RUN, "--alone", "--seconds", _seconds(options))
        facts = {key: value for key, value in line.items() if key not in ("bare_us", "live_us", "ratio")}
        rows.append({"system": bare, **turn, "steps_per_second": _rate(line.get("bare_us")), "error": line["error"]})
        rows.append({**facts, "system": ours, **turn, "steps_per_second": _rate(line.get("live_us"))})
        rows += [{**_peer(options, name), "system": module, **turn} for name, module in PEERS.items()]
        with gateway(options, None) as served:
            line = _program(options, "compat.py", served, "--seconds", _seconds(options))
        rows.append({"steps_per_second": None, **line, "system": compat, **turn})
    mine = median(rows, ours, "steps_per_second")
    targets = []
    for module in PEERS.values():
        theirs = peer_median(rows, module, "steps_per_second")
        targets.append(target(f"{ours} ÷ {module}, steps/s", mine / theirs if mine and theirs else None, 1, unit="×"))
    return [figure("L0", "LunarLander from a program outside: steps per second", rows, targets)]


def _peer(options: Options, name: str) -> Row:
    if name in options.missing:
        return {"error": options.missing[name]}
    measure.wait_for_quiet(options.quiet)
    command = [str(options.pythons[name]), "-P", "-m", f"peers.{PEERS[name]}", "--seconds", str(options.seconds)]
    variables = systems.ONE_THREAD | {"PYTHONPATH": str(systems.BENCH), "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        outcome = measure.run(command, cwd=Path(folder), timeout=options.seconds + 240, env=variables)
    last = outcome.last
    rates = [last.get("steps_per_second"), last.get("steps_per_second_after_first_update")]
    best = max((rate for rate in rates if rate), default=None)  # whichever is better for the peer
    print(f"  {PEERS[name]}: {best} steps/s {outcome.error}", file=sys.stderr, flush=True)
    return {"library": last.get("library"), "steps_per_second": best, "steps": last.get("steps"), **outcome.facts()}


def _program(options: Options, name: str, served: Served | None = None, *words: str, core: int | None = None) -> Row:
    """Run one of the programs of this bench, and give its line."""
    measure.wait_for_quiet(options.quiet)
    pinned = ["taskset", "-c", str(core)] if core is not None else []
    command = [*pinned, sys.executable, str(LIVE / name), *([served.address] if served else []), *words]
    with tempfile.TemporaryDirectory(prefix="bench-") as spool:
        variables = {"FARFIELD_SPOOL": spool}
        outcome = measure.run(command, cwd=ROOT, timeout=300, env=variables, beside=served.token if served else "")
    print(f"  {name} {' '.join(words)}: {json.dumps(outcome.last)} {outcome.error}", file=sys.stderr, flush=True)
    return {**outcome.last, **outcome.facts()}


def _settled(options: Options, served: Served, name: str, *words: str, core: int | None = None) -> None:
    """Let a short program bring the spec, and wait until the learner has compiled; it is moved to `core`."""
    _program(options, name, served, RUN, *words)
    end = time.monotonic() + PATIENCE
    while (pid := served.learner()) is None and time.monotonic() < end:
        time.sleep(0.05)
    if pid is None:
        raise RuntimeError("the learner was not started")
    if core is not None:
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), {core})
    before = -1.0
    while (used := measure.seconds_of(pid)) - before > 0.1 and time.monotonic() < end:
        before = used
        time.sleep(1.0)


def _wheel() -> tuple[float | None, str]:
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        words = ["-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "-w", place, str(ROOT)]
        outcome = measure.run([sys.executable, *words], cwd=Path(place), timeout=900)
        sizes = [file.stat().st_size / 1e6 for file in Path(place).glob("*.whl")]
    return (sizes[0], "") if sizes else (None, outcome.error)


def _rate(microseconds: float | None) -> float | None:
    return 1e6 / microseconds if microseconds else None


def _inverse(value: float | None) -> float | None:
    return 1 / value if value else None


def _seconds(options: Options) -> str:
    return "3" if options.quick else "10"


PARTS: dict[str, Callable[[Options], list[Row]]] = {
    "live-peers": peers, "live-loop": loop, "live-learned": learned, "live-memory": memory, "live-ingest": ingest,
    "live-remote": remote, "live-cpp": native, "live-jobs": jobs,
}  # fmt: skip
