"""Bad input and bad luck: each gives one clear line with the cure, a non-zero exit, and leaves no process behind."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from farfield import wiring

TESTS = Path(__file__).parent
FARFIELD = [sys.executable, "-m", "farfield"]
SMALL = [
    "--set",
    "lanes.steps=32",
    "--set",
    "lanes.count=4",
    "--set",
    "algorithm.minibatch=64",
    "--set",
    "metrics.writers=[]",
]
PATIENCE = 120  # seconds for anything; only a hang takes so long


def environment(home: Path) -> dict[str, str]:
    return os.environ | {"FARFIELD_HOME": str(home), "PYTHONPATH": str(TESTS), "COLUMNS": "200"}


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*FARFIELD, *arguments],
        env=environment(home),
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The error of a command that failed: one line, and no stack trace."""
    assert done.returncode not in (0, -9), done.stdout
    assert "Traceback" not in done.stderr, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("farfield: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def children(marker: str) -> list[str]:
    """Processes that mention a folder of this test."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = place.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if marker in line and place.parent.name != str(os.getpid()):
            found.append(line)
    return found


def wait_for(happened: object, process: subprocess.Popen[bytes] | None = None) -> None:
    end = time.monotonic() + PATIENCE
    while not happened():  # type: ignore[operator]
        assert time.monotonic() < end, "it never happened"
        assert process is None or process.poll() is None, "it ended too early"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "CartPole-v7"], ["CartPole-v7", "CartPole-v1"]),
        (["train", "LunarLaner-v3"], ["LunarLander-v3"]),
        (["train", "no_such_package:Env-v0"], ["no_such_package"]),
        (["train", "CartPole-v1", "--algorithm", "ppp"], ["ppp", "ppo"]),
        (["train", "CartPole-v1", "--set", "algorithm.clipp=0.1"], ["algorithm.clipp", "clip"]),
        (["train", "CartPole-v1", "--set", "lane.count=3"], ["lane", "lanes"]),
        (["train", "CartPole-v1", "--set", "algorithm.clip=high"], ["clip"]),
        (["train", "CartPole-v1", "--set", "algorithm.epochs=-1"], ["epochs"]),
        (["train", "CartPole-v1", "--set", "nonsense"], ["section.key=value"]),
        (["train", "CartPole-v1", "--config", "nowhere.toml"], ["nowhere.toml"]),
        (["train", "Pendulum-v1", "--algorithm", "dqn"], ["Discrete"]),
        (["train", "bad_envs:strange-v0"], ["Text"]),
        (["train", "CartPole-v1", "--set", "algorithm.minibatch=100"], ["minibatch"]),
        (["train", "CartPole-v1", "--set", "feed.fragments=4"], ["feed.fragments", "window"]),
        (["train", "CartPole-v1", "--set", "feed.kind=replay"], ["feed.kind", "fresh"]),
        (["train", "CartPole-v1", "--actors", "0", "--set", "lanes.backend=vector"], ["lanes.backend", "--actors 1"]),
        (["train", "bad_envs:Torn-v0"], ["Torn-v0", "not registered"]),
        (["train", "bad_module:Env-v0"], ["bad_module", "NameError"]),
        (
            [
                "train",
                "CartPole-v1",
                "--algorithm",
                "dqn",
                "--set",
                "network.kind=gru",
                "--set",
                "algorithm.sequence=8",
            ],
            ["lanes.steps = 16", "at most 8"],
        ),
        (
            ["train", "CartPole-v1", "--set", "network.kind=own_networks:headless"],
            ["own_networks:headless", "outputs has no"],
        ),
        (["train", "CartPole-v1", "--resume", "one"], ["--resume one", "ENV"]),
        (["train", "--resume", "nobody"], ["nobody"]),
        (["train"], ["environment"]),
        (["play", "nobody"], ["nobody"]),
    ],
)
def test_a_wrong_word_is_answered_with_the_right_one(tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    line = one_line(run(tmp_path, *arguments))
    assert all(word in line for word in words), line
    assert wiring.run_names(str(tmp_path)) == [], "a refused run leaves its name free"


@pytest.mark.slow
@pytest.mark.parametrize("actors", ["0", "1"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [("raises", "the pump is on fire"), ("nan", "obs"), ("nan_reward", "reward"), ("shape", "shape")],
)
def test_a_broken_environment_ends_the_run_with_its_own_error(
    tmp_path: Path, fault: str, words: str, actors: str
) -> None:
    done = run(tmp_path, "train", f"bad_envs:{fault}-v0", "--actors", actors, "--name", "bad", *SMALL)
    assert words in one_line(done)
    assert not children(str(tmp_path))
    assert (tmp_path / "runs/bad/config.toml").exists()


@pytest.mark.slow
def test_a_stuck_actor_is_noticed_and_replaced(tmp_path: Path) -> None:
    arguments = [
        "train",
        "bad_envs:hangs-v0",
        "--name",
        "stuck",
        "--steps",
        "3000",
        "--json",
        "--set",
        "stuck=2",
        *SMALL,
    ]
    done = run(tmp_path, *arguments, "--set", "lanes.steps=16", "--set", "algorithm.minibatch=32")
    assert done.returncode == 0, done.stderr
    assert "replaced" in done.stderr
    assert msgspec.json.decode(done.stdout.splitlines()[-1])["steps"] >= 3000


@pytest.mark.slow
def test_a_fragment_that_its_transport_never_takes_ends_the_run_with_the_cure(tmp_path: Path) -> None:
    done = run(tmp_path, "train", "CartPole-v1", "--set", "transport.room=2000", *SMALL)
    assert "raise [transport] room" in one_line(done)
    assert not children(str(tmp_path))


@pytest.mark.slow
def test_a_reader_that_leaves_stops_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    command = shlex.join([*FARFIELD, "train", "CartPole-v1", "--name", "run", "--until", "1e9", "--json", *SMALL])
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -n 1; exit ${{PIPESTATUS[0]}}"],
        env=environment(tmp_path), cwd=TESTS, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert msgspec.json.decode(done.stdout)["update"] == 1
    assert list((tmp_path / "runs/run/checkpoints").glob("*.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize("actors", ["0", "1"])
def test_learning_that_diverges_is_noticed_before_anything_is_kept_of_it(tmp_path: Path, actors: str) -> None:
    settings = ["--set", "algorithm.learning_rate=1e30", "--set", "algorithm.max_grad_norm=1e30"]
    done = run(
        tmp_path, "train", "CartPole-v1", "--name", "run", "--actors", actors, "--until", "1e9", *settings, *SMALL
    )
    assert "diverged" in one_line(done)
    assert not children(str(tmp_path))


@pytest.mark.slow
def test_a_module_beside_the_user_is_found_by_the_command_and_by_its_actors(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text((TESTS / "bad_envs.py").read_text().replace("bad_envs:", "mine:"))
    command = Path(sys.executable).with_name("farfield")
    done = subprocess.run(
        [command, "train", "mine:endless-v0", "--steps", "1000", "--name", "run", *SMALL],
        env=os.environ | {"FARFIELD_HOME": str(tmp_path / "home")}, cwd=tmp_path, capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_an_endless_environment_trains_and_stops_by_steps(tmp_path: Path) -> None:
    done = run(tmp_path, "train", "bad_envs:endless-v0", "--actors", "0", "--steps", "1000", "--json", *SMALL)
    assert done.returncode == 0, done.stderr
    summary = msgspec.json.decode(done.stdout.splitlines()[-1])
    assert (summary["stopped_by"], summary["episodes"]) == ("steps", 0)


@pytest.mark.slow
def test_a_name_in_use_is_refused_and_so_is_a_second_learner(tmp_path: Path) -> None:
    first = subprocess.Popen(
        [*FARFIELD, "train", "CartPole-v1", "--name", "one", "--json", "--until", "1e9", *SMALL],
        env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    log = tmp_path / "runs/one/metrics.jsonl"
    wait_for(lambda: log.exists() and log.stat().st_size, first)
    assert "--resume one" in one_line(run(tmp_path, "train", "CartPole-v1", "--name", "one"))
    line = one_line(run(tmp_path, "train", "--resume", "one"))
    assert str(first.pid) in line
    first.send_signal(signal.SIGTERM)
    assert first.wait(PATIENCE) == 0
    assert msgspec.json.decode((tmp_path / "runs/one/summary.json").read_bytes())["stopped_by"] == "sigterm"


@pytest.mark.slow
@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_leaves_a_run_that_goes_on(tmp_path: Path, presses: int) -> None:
    process = subprocess.Popen(
        [*FARFIELD, "train", "CartPole-v1", "--name", "run", "--json", "--until", "1e9", *SMALL],
        env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    log = tmp_path / "runs/run/metrics.jsonl"
    wait_for(lambda: log.exists() and log.stat().st_size > 5000, process)
    for _ in range(presses):
        os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode in ((0,) if presses == 1 else (0, 130)), err
    assert b"Traceback" not in err
    assert not children(str(tmp_path))
    steps = msgspec.json.decode(log.read_bytes().splitlines()[-1])["steps"] + 2000
    done = run(tmp_path, "train", "--resume", "run", "--steps", str(steps), "--json")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_killed_learner_leaves_no_process_behind(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*FARFIELD, "train", "CartPole-v1", "--name", "run", "--json", "--until", "1e9", "--actors", "2", *SMALL],
        env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    log = tmp_path / "runs/run/metrics.jsonl"
    wait_for(lambda: log.exists() and log.stat().st_size, process)
    assert len(children(str(tmp_path))) >= 2
    process.kill()
    process.wait()
    wait_for(lambda: not children(str(tmp_path)))


@pytest.mark.slow
def test_a_dead_actor_is_replaced(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*FARFIELD, "train", "CartPole-v1", "--name", "run", "--json", "--until", "1e9", *SMALL],
        env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    log = tmp_path / "runs/run/metrics.jsonl"
    wait_for(lambda: log.exists() and log.stat().st_size, process)
    actor = next(pid for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
    os.kill(int(actor), signal.SIGKILL)
    wait_for(lambda: actor not in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split(), process)
    size = log.stat().st_size
    wait_for(lambda: log.stat().st_size > size + 20_000, process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert b"SIGKILL" in err


@pytest.mark.slow
@pytest.mark.parametrize(("mount", "word"), [("size=400k", "No space left"), ("ro", "Read-only")])
def test_a_full_disk_and_a_read_only_one_say_so(tmp_path: Path, mount: str, word: str) -> None:
    home = tmp_path / "small"
    home.mkdir()
    arguments = ["train", "CartPole-v1", "--name", "run", "--json", "--until", "1e9", "--home", str(home), *SMALL]
    inner = shlex.join([*FARFIELD, *arguments])
    script = f"mount -t tmpfs -o {mount} none {home} && exec {inner}"
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", script],
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert word in one_line(done)
    assert not children(str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(tmp_path: Path, damage: str) -> None:
    first = run(
        tmp_path,
        "train",
        "CartPole-v1",
        "--name",
        "run",
        "--actors",
        "0",
        "--steps",
        "1000",
        "--json",
        "--set",
        "checkpoint.steps=256",
        *SMALL,
    )
    assert first.returncode == 0, first.stderr
    newest = max((tmp_path / "runs/run/checkpoints").glob("*.safetensors"))
    content = newest.read_bytes()
    flipped = content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]
    newest.write_bytes({"cut": content[: len(content) // 2], "flip": flipped, "empty": b""}[damage])
    done = run(tmp_path, "train", "--resume", "run", "--steps", "2000", "--json")
    assert done.returncode == 0, done.stderr
    assert newest.name in done.stderr
    assert msgspec.json.decode(done.stdout.splitlines()[-1])["steps"] >= 2000


def test_the_names_of_runs_are_known(tmp_path: Path) -> None:
    assert wiring.run_names(str(tmp_path)) == []
