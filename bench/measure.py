"""A command goes in; what it printed with arrival times, its peak memory and what others did meanwhile come out."""

import json
import os
import platform
import resource
import secrets
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
TOKEN = "FARFIELD_BENCH_TOKEN"  # in the environment of all that a measured command starts, however deep
BUSY = 0.3  # cores used by others above which a row says so


@dataclass
class Outcome:
    """One measured run of a command."""

    lines: list[tuple[float, dict[str, Any]]] = field(default_factory=list)  # seconds since its start, JSON line
    texts: list[str] = field(default_factory=list)  # all lines
    error: str = ""
    seconds: float = 0.0
    peak_megabytes: float = 0.0
    processes: int = 0  # most at one moment
    others: float = 0.0  # cores that other processes used meanwhile
    own: float = 0.0  # cores that it used
    load_before: float = 0.0

    @property
    def last(self) -> dict[str, Any]:
        """What its last line of JSON says; empty when it failed."""
        return self.lines[-1][1] if self.lines and not self.error else {}

    def facts(self) -> dict[str, Any]:
        """Give what a row says about the conditions of the measurement."""
        return {
            "wall_seconds": round(self.seconds, 2), "peak_megabytes": round(self.peak_megabytes, 1),
            "processes": self.processes, "cores_of_others": round(self.others, 2), "cores_used": round(self.own, 2),
            "busy_cores_before": round(self.load_before, 2), "error": self.error,
        }  # fmt: skip


def run(
    command: list[str], *, cwd: Path, timeout: float, env: dict[str, str] | None = None, beside: str = ""
) -> Outcome:
    """Run a command to its end, or to the time limit; whatever it leaves behind is ended.

    `beside` is the token of what runs already and belongs to the measurement: no other, and not ended.
    """
    outcome, token = Outcome(load_before=busy_cores(0.5)), secrets.token_hex(8)
    variables = os.environ | {"PYTHONUNBUFFERED": "1"} | (env or {}) | {TOKEN: token}
    watch = _Watch(token, beside)
    begun, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    mine, busy = time.process_time(), _busy_ticks()
    try:
        child = subprocess.Popen(
            command, cwd=cwd, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        outcome.error = f"{command[0]}: {error.strerror}"
        return outcome
    errors: list[bytes] = []
    texts: list[tuple[float, bytes]] = []
    readers = [
        threading.Thread(target=_keep, args=(child.stdout, texts, begun), daemon=True),
        threading.Thread(target=lambda: errors.extend(child.stderr or ()), daemon=True),
        threading.Thread(target=watch.follow, daemon=True),
    ]
    for reader in readers:
        reader.start()
    late = False
    try:
        child.wait(timeout)
    except subprocess.TimeoutExpired:
        late = True
    finally:
        outcome.seconds = time.monotonic() - begun
        outcome.others, outcome.own = _shares(watch, used, busy, time.process_time() - mine, outcome.seconds)
        watch.end()
        child.wait()
    for reader in readers:
        reader.join(5)
    outcome.texts = [text.decode(errors="replace").strip() for _, text in texts]
    outcome.lines = [(when, line) for when, text in texts if (line := _json(text)) is not None]
    outcome.peak_megabytes, outcome.processes = watch.peak, watch.most
    if late:
        outcome.error = f"not finished after {timeout:.0f} s"
    elif child.returncode:
        outcome.error = f"exit code {child.returncode}: {_tail(errors)}"
    elif not outcome.lines:
        outcome.error = f"printed no JSON: {_tail(errors)}"
    return outcome


def busy_cores(seconds: float) -> float:
    """Say how many cores are in use right now, by anybody."""
    before, begun = _busy_ticks(), time.monotonic()
    time.sleep(seconds)
    return (_busy_ticks() - before) / TICKS / (time.monotonic() - begun)


def wait_for_quiet(limit: float) -> None:
    """Wait until others use little, at most `limit` seconds: what is measured then is measured alone."""
    begun = time.monotonic()
    while limit and time.monotonic() - begun < limit and busy_cores(1.0) > BUSY:
        time.sleep(1.0)


def seconds_of(pid: int) -> float:
    """Give the processor time that a process has used; 0 when it is gone."""
    stat = _stat(str(pid))
    return (int(stat[11]) + int(stat[12])) / TICKS if stat else 0.0


def machine() -> dict[str, Any]:
    """Describe what this is measured on."""
    cpu = next(
        (line.split(":", 1)[1].strip() for line in _read("/proc/cpuinfo").splitlines() if "model name" in line), ""
    )
    memory = next((int(line.split()[1]) for line in _read("/proc/meminfo").splitlines() if "MemTotal" in line), 0)
    return {
        "cpu": cpu or platform.processor(), "cores": os.cpu_count(), "memory_gigabytes": round(memory / 2**20, 1),
        "kernel": platform.release(), "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2), "time": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
    }  # fmt: skip


class _Watch:
    """Follows all processes that carry the token: their memory and their time."""

    def __init__(self, token: str, beside: str) -> None:
        self._mark, self._beside = f"{TOKEN}={token}".encode(), f"{TOKEN}={beside or 'nobody'}".encode()
        self._known: dict[str, str] = {}  # pid and its start -> whose it is
        self.ticks: dict[str, int] = {}
        self.peak, self.most, self._over = 0.0, 0, threading.Event()
        self.pids()
        self._before = dict(self.ticks)  # of what runs beside it

    def used(self) -> float:
        """Give the seconds of processor time of all of them, since the beginning."""
        self.pids()
        return sum(ticks - self._before.get(key, 0) for key, ticks in self.ticks.items()) / TICKS

    def follow(self) -> None:
        while not self._over.wait(1.0):  # rarely: looking takes time from what is measured
            pids = self.pids()
            self.most = max(self.most, len(pids))
            self.peak = max(self.peak, sum(_megabytes(pid) for pid in pids))

    def pids(self) -> list[int]:
        """List ours that live, and note the time that each has used."""
        found: list[int] = []
        for name in os.listdir("/proc"):
            if not name.isdigit() or (stat := _stat(name)) is None:
                continue
            key = f"{name}:{stat[19]}"
            if key not in self._known:
                place = _environment(name)
                own = int(stat[1]) in found or self._mark in place
                self._known[key] = "own" if own else "beside" if self._beside in place else ""
            if self._known[key]:
                self.ticks[key] = int(stat[11]) + int(stat[12])
                if stat[0] != "Z" and self._known[key] == "own":
                    found.append(int(name))
        return found

    def end(self) -> None:
        """End what is left of the command, gently first."""
        self._over.set()
        for number, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 2.0)):
            limit = time.monotonic() + patience
            for pid in self.pids():
                _kill(pid, number)
            while self.pids() and time.monotonic() < limit:
                time.sleep(0.1)


def _shares(watch: _Watch, used: Any, busy: int, mine: float, seconds: float) -> tuple[float, float]:
    """Divide the machine's busy time: cores of others, cores of the command."""
    total = (_busy_ticks() - busy) / TICKS
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    waited = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    own = max(watch.used(), waited)
    return max(0.0, total - own - mine) / seconds, own / seconds


def _keep(stream: Any, texts: list[tuple[float, bytes]], begun: float) -> None:
    for text in stream:
        texts.append((time.monotonic() - begun, text))  # noqa: PERF401 (each line's time is when it came)


def _json(text: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None


def _tail(errors: list[bytes]) -> str:
    lines = [line.decode(errors="replace").strip() for line in errors if line.strip()]
    return " / ".join(lines[-3:])[-400:] or "it said nothing"


def _busy_ticks() -> int:
    user, nice, system, _, _, irq, softirq = map(int, _read("/proc/stat").splitlines()[0].split()[1:8])
    return user + nice + system + irq + softirq


def _stat(pid: str) -> list[str] | None:
    text = _read(f"/proc/{pid}/stat")
    return text.rsplit(")", 1)[1].split() if ")" in text else None


def _environment(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _megabytes(pid: int) -> float:
    """Give a process's proportional share of memory: pages that several hold are counted once in all."""
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
