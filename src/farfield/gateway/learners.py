"""Runs that can be learned in; a learner process for each out: watched, started again after pauses, stopped."""

import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from farfield import wiring
from farfield.errors import FarfieldError
from farfield.launch import processes
from farfield.types import Role

LOOK = 0.1  # seconds between two looks at a learner
CRASHES = 5  # in a row, each soon after its start: the run is called failed
RETRY, RETRY_LIMIT = 60.0, 3600.0  # seconds until a failed one is tried again; doubled each time
FOR_EVER = 1 << 30  # crashes are counted here, so that one who finished is not taken for one who crashed
STOPPING = 8.0  # seconds that learners get for a last checkpoint

Condition = Literal["waiting", "running", "restarting", "failed", "finished", "stopped"]
log = logging.getLogger("farfield.gateway")


class State(Struct, frozen=True):
    """What is known of the learner of a run; replaced as a whole."""

    condition: Condition  # waiting: for the first client, which brings the spec
    pid: int | None = None
    starts: int = 0
    crashes: int = 0  # in a row
    error: str = ""  # of the last crash


class Life(Struct):
    """One run's learner over all its lives; belongs to the thread that watches."""

    running: processes.Processes
    folder: Path
    state: State
    since: float = 0.0  # when this life began
    pause: float = 0.0  # until it is tried again after failing
    due: float = 0.0  # when that is over


class Learners:
    """The learners of all runs. One thread starts and watches them, and lives as long as the gateway.

    Linux kills a learner when the thread that started it ends: see launch/processes.py. `ended` says why a run has
    reached its end, where it has; `lost` is called if that thread ends without being asked to.
    """

    def __init__(
        self,
        *,
        ended: Callable[[Path], str],
        lost: Callable[[], None],
        command: Callable[[Path], list[str]] | None = None,
        retry: float = RETRY,
    ) -> None:
        self._ended, self._lost, self._command, self._retry = ended, lost, command or learner_command, retry
        self._orders: queue.SimpleQueue[tuple[str, Path] | None] = queue.SimpleQueue()
        self._lives: dict[str, Life] = {}
        self._states: dict[str, State] = {}
        self._thread = threading.Thread(target=self._run, name="learners", daemon=True)
        self._thread.start()

    def expect(self, run: str) -> None:
        """Know a run that has no spec yet."""
        self._states.setdefault(run, State("waiting"))

    def begin(self, run: str, folder: Path) -> None:
        """Start the learner of a run, unless it was begun already."""
        self._orders.put((run, folder))

    def finish(self, run: str, why: str) -> None:
        """Know a run that needs no learner any more."""
        self._states[run] = State("finished", error=why)

    def state(self, run: str) -> State | None:
        """Say how the learner of a run is."""
        return self._states.get(run)

    def stop(self) -> None:
        """Stop all of them, each with a checkpoint if it is quick enough; nothing is left behind."""
        self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._watch()
        except Exception:
            log.exception("nobody looks after learners any more")
            self._lost()
        finally:
            self._end()

    def _watch(self) -> None:
        """Follow orders and look after everybody until the order is to stop."""
        while True:
            with suppress(queue.Empty):
                order = self._orders.get(timeout=LOOK)
                if order is None:
                    return
                self._open(*order)
            for run, life in self._lives.items():
                self._look(run, life, time.monotonic())

    def _open(self, run: str, folder: Path) -> None:
        if run in self._lives:
            return

        def report(text: str) -> None:
            log.info("run %s: %s", run, text)

        def command(_run: str, _role: Role, _index: int) -> list[str]:
            return self._command(folder)

        running = processes.make(
            command, folder=folder / "logs", environment=environment(), report=report, crash_limit=FOR_EVER
        )
        self._lives[run] = Life(running, folder, State("restarting"), pause=self._retry)
        self._start(run, self._lives[run])

    def _start(self, run: str, life: Life) -> None:
        try:
            life.running(run, Role.LEARNER, 1)
        except FarfieldError as error:  # no room, no rights
            self._fail(run, life, str(error))

    def _look(self, run: str, life: Life, now: float) -> None:
        """See what became of a learner, and note it."""
        if life.state.condition == "finished":
            return
        if life.due and now >= life.due:
            life.due = 0.0
            self._start(run, life)
        try:
            deaths = life.running.watch(now)
        except FarfieldError as error:  # it said itself that its settings or its data are wrong
            self._fail(run, life, str(error).partition(" (log: ")[0])
            return
        for death in deaths:
            self._bury(run, life, death, now)
        pid = life.running.pids(Role.LEARNER).get(0)
        if pid is None:
            return
        if pid != life.state.pid:
            life.since = now
            self._note(run, life, pid=pid, starts=life.state.starts + 1)
            log.info("run %s: its learner was started (pid %d)", run, pid)
        if now - life.since >= processes.HEALTHY:
            life.pause = self._retry
            self._note(run, life, condition="running", crashes=0)
        elif life.state.condition != "failed":
            self._note(run, life, condition="running")

    def _bury(self, run: str, life: Life, death: processes.Death, now: float) -> None:
        """Finish, fail, or let the pause before the next start begin."""
        if death.code == 0 and (why := self._ended(life.folder)):
            life.running(run, Role.LEARNER, 0)
            self._note(run, life, condition="finished", pid=None, crashes=0, error=f"stopped by {why}")
            log.info("run %s is finished: stopped by %s", run, why)
            return
        crashes = 1 if now - life.since >= processes.HEALTHY else life.state.crashes + 1
        failed = life.state.condition == "failed"
        self._note(
            run, life, condition="failed" if failed else "restarting", pid=None, crashes=crashes, error=str(death)
        )
        log.warning("run %s: %s", run, death)
        if failed or crashes >= CRASHES:
            life.running(run, Role.LEARNER, 0)
            self._fail(run, life, f"{death}; {crashes} times in a row")

    def _fail(self, run: str, life: Life, error: str) -> None:
        """Give up for a while: what clients send is kept meanwhile."""
        life.due = time.monotonic() + life.pause
        self._note(run, life, condition="failed", pid=None, error=error)
        log.error("run %s failed: %s; its experience is kept; tried again in %g s", run, error, life.pause)
        life.pause = min(2 * life.pause, RETRY_LIMIT)

    def _note(self, run: str, life: Life, **changes: Any) -> None:
        if any(getattr(life.state, name) != value for name, value in changes.items()):
            life.state = msgspec.structs.replace(life.state, **changes)
        self._states[run] = life.state

    def _end(self) -> None:
        """Ask all at the same time, wait, then kill."""
        pids = [pid for life in self._lives.values() for pid in life.running.pids(Role.LEARNER).values()]
        for pid in pids:
            with suppress(ProcessLookupError):  # it ended a moment ago; nobody has reaped it, so its id is its own
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOPPING
        while time.monotonic() < deadline and not all(map(_ended, pids)):
            time.sleep(0.02)
        for run, life in self._lives.items():
            life.running.stop()
            if life.state.condition not in ("finished", "failed"):
                self._note(run, life, condition="stopped", pid=None)


def environment() -> dict[str, str]:
    """Say what learners find besides the variables of this process: the modules that it finds itself."""
    return wiring.ONE_THREAD | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def learner_command(folder: Path) -> list[str]:
    """Say how the learner of a run is started."""
    return [sys.executable, "-m", "farfield.live", str(folder), str(os.getpid())]


def _ended(pid: int) -> bool:
    """Say whether a child has ended, without reaping it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
