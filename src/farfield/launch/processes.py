"""Desired replicas in, processes of this machine out: started, watched, restarted, and never left behind."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from farfield.errors import ConfigError, EnvError, FarfieldError
from farfield.types import Heartbeat, Role

GRACE = 2.0  # seconds between asking and killing
BACKOFF, BACKOFF_LIMIT = 0.1, 5.0  # seconds until a dead one is started again; doubled each time
HEALTHY = 60.0  # seconds of life after which earlier failures are forgiven
TAIL = 16 * 1024  # bytes of a log that are searched for its last error
OWN_FAULT = 2  # exit code of a process whose settings or data are wrong: starting it again is useless
ERROR = re.compile(r"(fatal|error|[\w.]*(error|exception|interrupt|exit))\b", re.IGNORECASE)
PR_SET_PDEATHSIG = 1

Command = Callable[[str, Role, int], list[str]]
Slot = tuple[Role, int]


class Death(Struct, frozen=True):
    """A child that ended without being asked to, and the last error that it wrote."""

    role: Role
    index: int
    pid: int
    code: int
    line: str

    def __str__(self) -> str:
        """Say it in one line."""
        how = f"was killed by {signal.Signals(-self.code).name}" if self.code < 0 else f"ended with code {self.code}"
        return f"{self.role} {self.index} (pid {self.pid}) {how}: {self.line}"


class Child(Struct):
    """One replica over all its lives."""

    process: subprocess.Popen[bytes] | None
    log_start: int = 0  # where this life's output begins
    failures: int = 0  # in a row, each soon after its start
    due: float = 0.0  # when to start it again
    started: float | None = None
    alive_at: float | None = None  # when it last advanced or waited for its learner
    mark: tuple[str, int] | None = None  # stream and steps of the last heartbeat
    advanced: bool = False  # since it was started


class Processes:
    """The processes of one run: call it as a Scale, and `watch` it from time to time.

    Do both from one thread that lives as long as the run: when the thread that started a child ends, Linux kills
    the child if it called `bind_to_parent`.
    """

    def __init__(
        self,
        command: Command,
        folder: Path,
        environment: Mapping[str, str],
        report: Callable[[str], None],
        crash_limit: int,
    ) -> None:
        self._command, self._folder, self._environment = command, folder, environment
        self._report, self._limit = report, crash_limit
        self._run = ""
        self._children: dict[Slot, Child] = {}

    def __call__(self, run: str, role: Role, replicas: int) -> None:
        """Start or stop until `replicas` of `role` run."""
        if replicas < 0 or self._run not in {"", run}:
            raise ConfigError(f"{replicas} of {role} for run {run!r}: expected 0 or more, and one run ({self._run!r})")
        self._run = run
        self._end([slot for slot in self._children if slot[0] is role and slot[1] >= replicas])
        for index in range(replicas):
            if (role, index) not in self._children:
                child = Child(None)
                self._start(role, index, child)
                self._children[role, index] = child

    def pids(self, role: Role = Role.ACTOR) -> dict[int, int]:
        """Give the process ids of those that run, by index."""
        return {i: child.process.pid for (r, i), child in self._children.items() if r is role and child.process}

    def watch(self, now: float) -> list[Death]:
        """Reap the dead, start them again when it is time; raise when one cannot live."""
        deaths: list[Death] = []
        hopeless: list[FarfieldError] = []
        for (role, index), child in list(self._children.items()):
            if child.process is None:
                if now >= child.due:
                    self._start(role, index, child)
                    self._report(f"{role} {index} was started again")
                continue
            if child.started is None:
                child.started = now
            if _ended(child.process):
                healthy = now - child.started >= HEALTHY
                death = self._bury(role, index, child)
                deaths.append(death)
                error = self._judge(death, child, healthy=healthy)
                child.due = now + min(BACKOFF * 2 ** (child.failures - 1), BACKOFF_LIMIT)
                if error:
                    hopeless.append(error)
                    del self._children[role, index]
        if hopeless:
            raise hopeless[0]
        return deaths

    def beat(self, heartbeat: Heartbeat, now: float) -> None:
        """Take a sign of life of the actor whose label is its index."""
        label = heartbeat.actor
        child = self._children.get((Role.ACTOR, int(label))) if label.isdecimal() else None
        if child is None:
            return  # of an actor that was stopped meanwhile, or that somebody else started
        mark = heartbeat.stream, heartbeat.steps
        if mark != child.mark or heartbeat.waiting:
            child.alive_at = now
        if child.mark and child.mark[0] == heartbeat.stream and child.mark[1] < heartbeat.steps:
            child.advanced = True
        child.mark = mark

    def stuck(self, now: float, after: float) -> list[int]:
        """Name the actors that for `after` seconds neither advanced nor said that they wait for their learner."""
        found: list[int] = []
        for (role, index), child in self._children.items():
            if role is not Role.ACTOR or child.process is None:
                continue
            if child.alive_at is None:
                child.alive_at = now  # its patience begins with the first look
            if now - child.alive_at >= after:
                found.append(index)
        return found

    def replace(self, index: int, role: Role = Role.ACTOR) -> None:
        """Kill one that is stuck and start another; raise when it never did anything, several times in a row."""
        child = self._children.get((role, index))
        if child is None or child.process is None:
            return
        child.failures = 0 if child.advanced else child.failures + 1
        _signal(child.process, signal.SIGKILL)
        self._bury(role, index, child)
        if child.failures >= self._limit:
            del self._children[role, index]
            cure = f"does the environment hang in reset or step? Its log is {self._log(role, index)}"
            raise EnvError(f"{role} {index} was stuck {child.failures} times without a single step: {cure}")
        self._start(role, index, child)

    def stop(self) -> None:
        """End all of them: ask, wait two seconds, kill. Nothing is left behind; repeating it does no harm."""
        self._end(list(self._children))

    def _start(self, role: Role, index: int, child: Child) -> None:
        command = self._command(self._run, role, index)
        path = self._log(role, index)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            log = path.open("ab")
        except OSError as error:
            raise ConfigError(f"the log {path} cannot be written ({error.strerror}): choose another --home") from error
        with log:
            child.log_start = log.tell()
            try:
                child.process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self._environment},
                    start_new_session=True,  # Ctrl-C reaches the parent alone, which then stops its children
                )
            except OSError as error:
                raise ConfigError(f"{role} {index}: {command[0]} cannot be started ({error.strerror})") from error
        child.started = child.alive_at = child.mark = None
        child.advanced = False

    def _bury(self, role: Role, index: int, child: Child) -> Death:
        """Reap a child that has ended, with everything that it started."""
        process = child.process
        if process is None:
            raise FarfieldError(f"{role} {index} does not run")
        _signal(process, signal.SIGKILL)  # not reaped yet, so that its group is certainly its own
        code = process.wait()
        child.process = None
        return Death(role, index, process.pid, code, _last_error(self._log(role, index), child.log_start, code))

    def _judge(self, death: Death, child: Child, *, healthy: bool) -> FarfieldError | None:
        """Count a failure; give an error when there is no sense in going on."""
        child.failures = 1 if healthy else child.failures + 1
        where = f"(log: {self._log(death.role, death.index)})"
        if death.code == OWN_FAULT:
            return FarfieldError(f"{death.role} {death.index} gave up: {death.line} {where}")
        if child.failures >= self._limit:
            return EnvError(f"{death}; {child.failures} times in a row {where}")
        return None

    def _end(self, slots: list[Slot]) -> None:
        running = [child.process for slot in slots if (child := self._children[slot]).process]
        for process in running:
            _signal(process, signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        try:
            while time.monotonic() < deadline and not all(map(_ended, running)):
                time.sleep(0.005)
        finally:  # also when somebody lost patience
            for role, index in slots:
                child = self._children.pop((role, index))
                if child.process:
                    if not _ended(child.process):
                        self._report(f"{role} {index} (pid {child.process.pid}) did not stop when asked: killed")
                    self._bury(role, index, child)

    def _log(self, role: Role, index: int) -> Path:
        return self._folder / f"{role}-{index}.log"


def make(
    command: Command,
    *,
    folder: Path,
    environment: Mapping[str, str],
    report: Callable[[str], None],
    crash_limit: int = 3,
) -> Processes:
    """Launch on this machine: `command` says how a replica is started, `folder` is where logs go."""
    return Processes(command, folder, environment, report, crash_limit)


def bind_to_parent(pid: int) -> None:
    """Die with the parent, however it dies: a child calls this first; `pid` is the parent's, told by itself."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise FarfieldError(f"prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != pid:  # it was gone before the line above
        os.kill(os.getpid(), signal.SIGKILL)


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Say whether it has ended, without reaping it."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal a child that was not reaped, and everything in its session's group."""
    with suppress(ProcessLookupError, PermissionError):  # some systems say so of those that have ended
        os.killpg(process.pid, number)


def _last_error(path: Path, start: int, code: int) -> str:
    """Find the line of a log that says why a process ended."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(start, size - TAIL))
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError as error:
        return f"its log cannot be read ({error.strerror})"
    if not lines:
        return "it wrote nothing"
    if code == OWN_FAULT:
        return lines[-1]
    return next((line for line in reversed(lines) if ERROR.match(line)), lines[-1])
