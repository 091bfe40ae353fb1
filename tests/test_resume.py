"""Exact resume: a run that is killed again and again ends where the uninterrupted one ends, bit for bit."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from farfield import wiring
from farfield.telemetry import metrics

VICTIM = Path(__file__).parent / "victim.py"
PATIENCE = 120  # seconds for anything; only a hang takes so long
DIFFERS = {"attempt", "version", "seconds", "steps_per_second"}  # of one attempt, not of the run
SETTINGS = {
    "ppo": ["--set", "lanes.steps=32", "--set", "lanes.count=4", "--set", "algorithm.minibatch=64"],
    "dqn": ["--set", "lanes.steps=8", "--set", "lanes.count=4", "--set", "feed.warmup=200"],
    "reinforce": ["--set", "lanes.steps=64", "--set", "lanes.count=4"],
}
UPDATES = {"ppo": 128, "dqn": 32, "reinforce": 256}  # environment steps in one


def command(kind: str, steps: int, *, resume: bool) -> list[str]:
    options = ["--resume", "run"] if resume else ["CartPole-v1", "--algorithm", kind, "--name", "run", "--actors", "0"]
    every = f"checkpoint.steps={2 * UPDATES[kind]}"
    settings = ["--set", "registry.interval=0", "--set", every, "--set", "metrics.writers=[]"]
    more = [] if resume else [*SETTINGS[kind], *settings, "--seed", "3", "--until", "1e9"]
    return [sys.executable, str(VICTIM), "train", *options, "--steps", str(steps), "--json", *more]


def start(home: Path, kind: str, steps: int, *, resume: bool, trap: str = "") -> subprocess.Popen[bytes]:
    environment = os.environ | {"FARFIELD_HOME": str(home), "VICTIM": trap}
    return subprocess.Popen(
        command(kind, steps, resume=resume), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(process: subprocess.Popen[bytes]) -> dict[str, object]:
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err.decode()
    return msgspec.json.decode(out.splitlines()[-1])


def kill_when(process: subprocess.Popen[bytes], happened: object) -> None:
    end = time.monotonic() + PATIENCE
    while not happened():  # type: ignore[operator]
        assert process.poll() is None, process.communicate()[1].decode()
        assert time.monotonic() < end, "the moment never came"
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def rows(home: Path) -> int:
    log = home / "runs/run/metrics.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def highest(home: Path) -> int:
    """The last update that any attempt logged."""
    log = home / "runs/run/metrics.jsonl"
    lines = log.read_bytes().splitlines() if log.exists() else []
    return max((msgspec.json.decode(line)["update"] for line in lines if line.endswith(b"}")), default=0)


def everything(home: Path) -> tuple[list[dict[str, object]], dict[str, np.ndarray], dict[str, object]]:
    """Metrics without what belongs to an attempt, and all that the last checkpoint holds."""
    folder = home / "runs/run"
    log = [{k: v for k, v in row.items() if k not in DIFFERS} for row in metrics.read(folder)]
    found = wiring.checkpoints_of(wiring.read_config(folder), folder).newest(pytest.fail)
    assert found is not None
    counters = found.facts["learner"].pop("counters")
    found.facts["learner"].pop("numbered")  # which versions each attempt began with
    facts = found.facts | {name: counters[name] for name in ("updates", "steps", "episodes", "best", "best_at")}
    return log, dict(found.state), facts


def kill_often(tmp_path: Path, kind: str, kills: int, inside: int) -> None:
    """Kill a run `kills` times, evenly over its length, `inside` of them within a checkpoint or a publication."""
    total = kills * 3 + 6
    steps = total * UPDATES[kind] * (7 if kind == "dqn" else 1)
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    expected = finish(start(whole, kind, steps, resume=False))
    last = highest(whole)
    places = ["checkpoints", "versions", "payloads"]
    trapped = {round((k + 0.5) * kills / inside): places[k % 3] for k in range(inside)}
    died: list[str] = []
    for k in range(kills):
        moment = (k + 1) * last // (kills + 1)
        if k in trapped:
            (torn / "trapped").unlink(missing_ok=True)
            process = start(torn, kind, steps, resume=k > 0, trap=f"{trapped[k]}:{rows(torn) + 1}")
            kill_when(process, (torn / "trapped").exists)
            died.append((torn / "trapped").read_text())
        else:
            process = start(torn, kind, steps, resume=k > 0)
            kill_when(process, lambda moment=moment: highest(torn) >= moment)
    result = finish(start(torn, kind, steps, resume=True))
    assert len(died) == inside
    assert result["sha256"] == expected["sha256"]
    assert result["steps"] == expected["steps"]
    (log, state, facts), (other_log, other_state, other_facts) = everything(whole), everything(torn)
    assert len(log) == len(other_log)
    for row, other in zip(log, other_log, strict=True):
        assert row == other
    assert facts == other_facts
    assert state.keys() == other_state.keys()
    for name, value in state.items():
        assert value.dtype == other_state[name].dtype
        assert value.tobytes() == other_state[name].tobytes(), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ppo", "dqn", "reinforce"])
def test_a_killed_run_is_the_uninterrupted_one(tmp_path: Path, kind: str) -> None:
    kill_often(tmp_path, kind, kills=4, inside=2)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["ppo", "dqn", "reinforce"])
def test_twenty_kills_change_nothing(tmp_path: Path, kind: str) -> None:
    kill_often(tmp_path, kind, kills=20, inside=6)
