"""Processes: as many as wanted, restarted, given up in time, and none left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farfield.errors import ConfigError, EnvError, FarfieldError
from farfield.launch import processes
from farfield.types import Heartbeat, Role

BIND = "import os, sys, time, signal; from farfield.launch.processes import bind_to_parent; bind_to_parent({pid}); "
FOREVER = "time.sleep(1000)"

Launch = Callable[..., processes.Processes]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Launch children that run a line of Python, and end them all after the test."""
    opened: list[processes.Processes] = []

    def make(code: str = FOREVER, said: list[str] | None = None) -> processes.Processes:
        def command(run: str, role: Role, index: int) -> list[str]:
            return [sys.executable, "-c", "import os, sys, time, signal; " + code, run, role, str(index)]

        report = (said if said is not None else []).append
        made = processes.make(command, folder=tmp_path / "logs", environment={"COLOUR": "blue"}, report=report)
        opened.append(made)
        return made

    yield make
    for each in opened:
        each.stop()


def eventually(true: Callable[[], object]) -> None:
    """Wait for what must come; the test's time-out is the limit."""
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


def exists(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def deaths_of(running: processes.Processes, now: float) -> list[processes.Death]:
    """Watch until somebody was found dead."""
    found: list[processes.Death] = []
    eventually(lambda: found.extend(running.watch(now)) or found)
    return found


def beat(index: int, steps: int, *, waiting: bool = False, stream: str = "a" * 32) -> Heartbeat:
    return Heartbeat(actor=str(index), pid=1, stream=stream, steps=steps, fragments=0, version=0, waiting=waiting)


def test_as_many_run_as_are_wanted(launch: Launch):
    running = launch()
    running("r", Role.ACTOR, 3)
    first = running.pids()
    assert sorted(first) == [0, 1, 2]
    running("r", Role.ACTOR, 3)
    assert running.pids() == first
    running("r", Role.LEARNER, 1)
    running("r", Role.ACTOR, 1)
    assert running.pids() == {0: first[0]}
    assert not exists(first[1])
    assert not exists(first[2])
    assert list(running.pids(Role.LEARNER)) == [0]
    running("r", Role.ACTOR, 2)
    assert sorted(running.pids()) == [0, 1]
    with pytest.raises(ConfigError, match="one run"):
        running("another", Role.ACTOR, 1)
    with pytest.raises(ConfigError, match="expected 0 or more"):
        running("r", Role.ACTOR, -1)


def test_children_write_into_logs_of_their_own_in_sessions_of_their_own(launch: Launch, tmp_path: Path):
    said = "print(sys.argv[1:], os.environ['COLOUR'], os.getsid(0) == os.getpid(), flush=True); sys.stderr.write('e'); "
    running = launch(said + "sys.stderr.flush(); " + FOREVER)
    running("r", Role.ACTOR, 2)
    log = tmp_path / "logs" / "actor-1.log"
    eventually(lambda: log.read_text().endswith("\ne"))
    assert log.read_text() == "['r', 'actor', '1'] blue True\ne"


def test_a_dead_one_is_started_again_after_a_pause_that_doubles(launch: Launch):
    said: list[str] = []
    running = launch(said=said)
    running("r", Role.ACTOR, 1)
    first = running.pids()[0]
    assert running.watch(100.0) == []
    os.kill(first, signal.SIGKILL)
    (death,) = deaths_of(running, 100.0)
    assert (death.role, death.index, death.pid, death.code) == (Role.ACTOR, 0, first, -9)
    assert str(death) == f"actor 0 (pid {first}) was killed by SIGKILL: it wrote nothing"
    assert running.watch(100.09) == []
    assert running.pids() == {}
    running("r", Role.ACTOR, 1)  # wanting it again does not shorten the pause
    assert running.pids() == {}
    running.watch(100.11)
    second = running.pids()[0]
    assert second != first
    assert said == ["actor 0 was started again"]
    running.watch(100.2)
    os.kill(second, signal.SIGKILL)
    deaths_of(running, 100.3)
    running.watch(100.49)
    assert running.pids() == {}
    running.watch(100.51)
    assert running.pids()[0] != second


def test_a_healthy_minute_forgives_earlier_failures(launch: Launch):
    running = launch()
    running("r", Role.ACTOR, 1)
    now = 0.0
    for _ in range(6):
        running.watch(now)
        now += 61.0
        os.kill(running.pids()[0], signal.SIGKILL)
        deaths_of(running, now)
        now += 0.11
        running.watch(now)
    assert running.pids()


def test_one_that_cannot_live_is_given_up_with_its_own_last_error(launch: Launch, tmp_path: Path):
    running = launch("print('hello'); sys.stdout.flush(); raise ValueError('no such car')")
    running("r", Role.ACTOR, 2)
    deaths: list[processes.Death] = []
    now = [0.0]

    def watch() -> bool:
        now[0] += 10.0
        deaths.extend(running.watch(now[0]))
        return False

    with pytest.raises(EnvError) as caught:
        eventually(watch)
    message = str(caught.value)
    assert "ended with code 1: ValueError: no such car; 3 times in a row" in message
    assert f"{tmp_path}/logs/actor-" in message
    assert "\n" not in message
    assert len([death for death in deaths if death.index == 0]) >= 2


def test_a_fault_of_its_own_is_final_at_once(launch: Launch):
    running = launch("sys.stderr.write('lane 3: expected float32, got NaN: fix the environment\\n'); sys.exit(2)")
    running("r", Role.ACTOR, 1)
    with pytest.raises(FarfieldError, match="actor 0 gave up: lane 3: expected float32, got NaN: fix the environment"):
        deaths_of(running, 0.0)
    assert running.pids() == {}


def test_only_this_lifes_output_counts(launch: Launch, tmp_path: Path):
    log = tmp_path / "logs" / "actor-0.log"
    log.parent.mkdir()
    log.write_text("OldError: from yesterday\n")
    running = launch("os.abort()")
    running("r", Role.ACTOR, 1)
    (death,) = deaths_of(running, 0.0)
    assert (death.code, death.line) == (-signal.SIGABRT, "it wrote nothing")


def test_a_command_that_is_not_there_is_named(tmp_path: Path):
    running = processes.make(lambda *_: ["/no/such/python"], folder=tmp_path, environment={}, report=print)
    with pytest.raises(ConfigError, match="actor 0: /no/such/python cannot be started"):
        running("r", Role.ACTOR, 1)
    (tmp_path / "file").write_text("")
    running = processes.make(lambda *_: ["true"], folder=tmp_path / "file", environment={}, report=print)
    with pytest.raises(ConfigError, match=r"actor-0\.log cannot be written"):
        running("r", Role.ACTOR, 1)


def test_an_actor_is_stuck_when_it_neither_advances_nor_waits(launch: Launch):
    running = launch()
    running("r", Role.ACTOR, 3)
    for now in range(0, 31, 10):
        running.beat(beat(0, now + 1), now)  # advances
        running.beat(beat(1, 7), now)  # lives, but does nothing
        running.beat(beat(2, 7, waiting=True), now)
        assert running.stuck(now, 30.0) == ([1] if now == 30 else [])
    assert running.stuck(59.0, 30.0) == [1]
    assert running.stuck(60.0, 30.0) == [0, 1, 2]  # nothing was heard of them for 30 seconds


def test_an_actor_that_was_never_heard_of_is_stuck(launch: Launch):
    running = launch()
    running("r", Role.ACTOR, 1)
    assert running.stuck(1000.0, 30.0) == []  # patience begins with the first look
    assert running.stuck(1029.0, 30.0) == []
    assert running.stuck(1030.0, 30.0) == [0]
    running.beat(beat(5, 1), 1030.0)  # of nobody
    running.beat(Heartbeat("a person", 1, "a" * 32, 1, 0, 0, waiting=False), 1030.0)
    assert running.stuck(1030.0, 30.0) == [0]


def test_a_stuck_one_is_replaced_even_if_it_listens_to_nothing(launch: Launch):
    running = launch("signal.signal(signal.SIGTERM, signal.SIG_IGN); " + FOREVER)
    running("r", Role.ACTOR, 1)
    first = running.pids()[0]
    os.kill(first, signal.SIGSTOP)
    running.beat(beat(0, 1), 0.0)
    running.replace(0)
    assert not exists(first)
    assert running.pids()[0] != first
    assert running.stuck(1000.0, 30.0) == []  # the new one has its own patience
    running.replace(7)  # nobody


def test_one_that_is_always_stuck_before_its_first_step_is_given_up(launch: Launch):
    running = launch()
    running("r", Role.ACTOR, 1)
    for steps in range(3):  # this one works for a while
        running.beat(beat(0, steps), 0.0)
    running.replace(0)
    running.beat(beat(0, 0, stream="b" * 32), 0.0)
    running.beat(beat(0, 2), 0.0)  # late news of the old one
    running.replace(0)
    running.replace(0)
    with pytest.raises(EnvError, match="actor 0 was stuck 3 times without a single step"):
        running.replace(0)
    assert running.pids() == {}


def test_stopping_leaves_nothing_behind(launch: Launch, tmp_path: Path):
    said: list[str] = []
    family = (
        "import subprocess; p = subprocess.Popen(['sleep', '1000']); print(p.pid, flush=True); "
        "signal.signal(signal.SIGTERM, signal.SIG_IGN if sys.argv[3] == '1' else signal.SIG_DFL); "
        "print('ready', flush=True); " + FOREVER
    )
    running = launch(family, said)
    running("r", Role.ACTOR, 2)
    logs = [tmp_path / "logs" / f"actor-{index}.log" for index in (0, 1)]
    eventually(lambda: all("ready" in log.read_text() for log in logs))
    grandchildren = [int(log.read_text().split()[0]) for log in logs]
    children = running.pids()
    running.stop()
    eventually(lambda: not any(map(exists, [*children.values(), *grandchildren])))
    assert said == [f"actor 1 (pid {children[1]}) did not stop when asked: killed"]
    assert running.pids() == {}
    running.stop()
    assert running.watch(0.0) == []


def test_no_child_survives_a_killed_parent(tmp_path: Path):
    parent = f"""
import os, sys, time
from pathlib import Path
from farfield.launch import processes
from farfield.types import Role
child = "{BIND} print(1, flush=True); {FOREVER}".format(pid=os.getpid())
command = [sys.executable, "-c", child]
running = processes.make(lambda *_: command, folder=Path({str(tmp_path)!r}), environment={{}}, report=print)
running("r", Role.ACTOR, 2)
print(*running.pids().values(), flush=True)
time.sleep(1000)
"""
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        pids = [int(word) for word in started.stdout.readline().split()]
        logs = [tmp_path / f"actor-{index}.log" for index in (0, 1)]
        eventually(lambda: all(log.read_text() == "1\n" for log in logs))  # bound
        assert all(map(exists, pids))
        started.kill()
    eventually(lambda: not any(map(exists, pids)))


def test_a_child_whose_parent_is_gone_already_ends_at_once():
    code = BIND.format(pid=os.getpid() + 1) + "print('survived')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")
