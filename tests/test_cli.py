"""The command line: what it prints, how it refuses, and that its documentation is complete."""

import fcntl
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import typer

from farfield import cli, wiring
from farfield import config as configs
from farfield.cli.options import complete_algorithm, complete_env
from farfield.cli.play import play as play_command
from farfield.cli.runs import state_of
from farfield.learning import networks
from farfield.telemetry import metrics
from farfield.telemetry.lines import Lines

ROOT = Path(__file__).parents[1]
COMMANDS = typer.main.get_command(cli.app).commands


def make_run(home: Path, name: str, *, seed: int = 1, rows: int = 30, env: str = "CartPole-v1") -> Path:
    """Lay down a run as training leaves it: config, two versions, metrics and a summary."""
    plain = {"run": name, "env": env, "seed": seed, "algorithm": {"kind": "ppo"}, "registry": {"interval": 0.0}}
    config = configs.decode(plain)
    folder = home / "runs" / name
    folder.mkdir(parents=True)
    wiring.write_config(folder, config)
    lanes = wiring.lanes_of(config, 1, seed=seed, replayable=False)
    network = networks.build(config.network, lanes.spec, style="policy")
    lanes.close()
    registry = wiring.registry_of(config, folder)
    attempt = registry.claim({"pid": 1})
    for number in (0, rows):
        weights = networks.initialise(network, seed=seed + number)
        facts = {"run": name, "number": number, "attempt": attempt, "parent": None, "steps": number * 1024}
        version = registry.describe(weights, spec=lanes.spec, network=network, **facts)
        registry.publish(version, weights)
    log = Lines(folder / metrics.FILE)
    for update in range(1, rows + 1):
        log.append(
            {"update": update, "attempt": 1, "version": update, "steps": update * 1024, "seconds": update / 10,
             "returns": [], "return_mean": update * 1.5 + seed}
        )  # fmt: skip
    log.close()
    summary = {"run": name, "updates": rows, "stopped_by": "until", "version": rows}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    make_run(folder, "pole-1")
    make_run(folder, "pole-2", seed=2)
    return folder


def run(capsys, *words):
    """Run a command; give its exit code and what it wrote."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    out, err = capsys.readouterr()
    return ended.value.code or 0, out, err


def told(capsys, *words):
    """Run a command with --json; give its lines decoded."""
    code, out, err = run(capsys, *words, "--json")
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


def test_help_imports_nothing_heavy():
    heavy = "{'jax', 'gymnasium', 'matplotlib', 'numpy', 'rich.live', 'grpc', 'onnx', 'imageio', 'tensorboardX'}"
    code = f"import sys, farfield.cli; print(sorted({heavy} & sys.modules.keys()))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("package", "words", "who"),
    [
        ("typer", ["--help"], "this command"),
        ("gymnasium", ["train", "CartPole-v1"], "this command"),
        ("jax", ["train", "CartPole-v1", "--actors", "0"], "learning.algorithms 'ppo'"),
    ],
)
def test_a_missing_extra_names_its_cure(tmp_path, package, words, who):
    code = f"import sys; sys.modules[{package!r}] = None; import farfield.__main__ as m; m.main()"
    environment = os.environ | {"FARFIELD_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"farfield: {who} needs the package {package}, which is not installed: pip install 'farfield[train]'\n"
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_an_example_and_json(capsys, name):
    code, out, _ = run(capsys, name, "--help")
    assert code == 0
    assert "--json" in out
    assert f"farfield {name}" in out.partition("Example:")[2]


def test_the_documentation_has_every_command_and_option():
    text = (ROOT / "docs" / "cli.md").read_text()
    sections = dict(re.findall(r"^## farfield (\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert sorted(sections) == sorted(COMMANDS)
    for name, command in COMMANDS.items():
        options = {word for option in command.params for word in option.opts if word.startswith("-")} - {"-h", "--help"}
        assert options == set(re.findall(r"`(--?[a-z-]+)`(?=[,| ].*\|)", sections[name])), name


def test_runs_are_listed(capsys, home):
    found = told(capsys, "runs", "--home", home)
    assert [(one["run"], one["state"], one["steps"], one["return_mean"]) for one in found] == [
        ("pole-1", "solved", 30720, 46.0), ("pole-2", "solved", 30720, 47.0),
    ]  # fmt: skip
    code, out, _ = run(capsys, "runs", "--home", home)
    assert code == 0
    assert re.search(r"pole-2 +CartPole-v1 +ppo +30\.7k +47 +solved", out)


def test_no_runs_say_how_to_begin(capsys, tmp_path):
    assert "farfield train" in run(capsys, "runs", "--home", tmp_path)[1]
    assert told(capsys, "runs", "--home", tmp_path) == []


def test_the_state_of_a_run(tmp_path):
    folder = make_run(tmp_path, "r", rows=2)
    assert state_of(folder, 2) == "solved"
    assert state_of(folder, 3) == "failed"  # a later attempt went on and ended without a word
    (folder / "summary.json").write_text('{"updates": 2, "stopped_by": "sigint"}')
    assert state_of(folder, 2) == "stopped"
    (folder / "summary.json").unlink()
    assert state_of(folder, 2) == "failed"
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert state_of(folder, 2) == "running"
    assert state_of(folder, 2) == "failed"


def test_a_run_with_a_broken_config_does_not_hide_the_others(capsys, tmp_path):
    make_run(tmp_path, "good", rows=1)
    (make_run(tmp_path, "bad", rows=1) / "config.toml").write_text("run = \n")
    assert {one["run"]: one["state"] for one in told(capsys, "runs", "--home", tmp_path)} == {
        "good": "solved", "bad": "unreadable",
    }  # fmt: skip


def test_a_run_is_shown(capsys, home):
    found = told(capsys, "show", "pole-1", "--home", home)[0]
    assert found["config"]["seed"] == 1
    assert found["version"]["number"] == 30
    assert found["version"]["parameters"] == sum(one["parameters"] for one in found["version"]["tensors"])
    assert {one["acting"] for one in found["version"]["tensors"]} == {True, False}
    assert found["last"]["update"] == 30
    code, out, _ = run(capsys, "show", "pole-1", "--home", home)
    assert code == 0
    assert "return  2.5 to 46 over 30.7k steps" in out
    shown = configs.decode(configs.tomllib.loads(out.partition("# config.toml")[2]))
    assert shown == wiring.read_config(home / "runs" / "pole-1")


def test_a_run_without_any_update_is_shown(capsys, tmp_path):
    folder = make_run(tmp_path, "new", rows=1)
    (folder / metrics.FILE).unlink()
    assert told(capsys, "show", "new", "--home", tmp_path)[0]["last"] is None
    assert run(capsys, "show", "new", "--home", tmp_path)[0] == 0


def test_curves_are_drawn(capsys, home, tmp_path):
    found = told(capsys, "plot", "pole-1", "pole-2", "--home", home, "-o", tmp_path / "c.png")[0]
    assert found["groups"] == ["pole"]
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_a_version_is_played_and_the_same_seed_plays_the_same(capsys, home):
    words = ("play", "pole-1", "--home", home, "--episodes", 20, "--seed", 7)
    first, second = told(capsys, *words)[0], told(capsys, *words)[0]
    assert (first["version"], first["policy"], first["episodes"]) == (30, "greedy", 20)
    assert first["returns"] == second["returns"]
    assert first["returns"] == [float(length) for length in first["lengths"]]  # CartPole pays 1 a step
    assert first["return_mean"] == pytest.approx(np.mean(first["returns"]))
    assert first["return_quantiles"]["0.5"] == pytest.approx(np.median(first["returns"]))
    assert told(capsys, *words, "--version", 0)[0]["returns"] != first["returns"]
    assert told(capsys, *words, "--explore")[0]["returns"] != first["returns"]
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert "pole-1 version 30, greedy · CartPole-v1 · 20 episodes" in out


def test_the_random_baseline_needs_no_run(capsys, tmp_path):
    found = told(capsys, "play", "CartPole-v1", "--policy", "random", "--home", tmp_path, "-n", 100)[0]
    assert found["version"] is None
    assert 18 < found["return_mean"] < 27  # about 22 in the long run


def test_an_episode_is_filmed(capsys, home, tmp_path):
    for name in ("a.gif", "a.mp4"):
        found = told(capsys, "play", "pole-1", "--home", home, "-n", 1, "--video", tmp_path / name)[0]
        assert found["frames"] == found["steps"] + 1
        assert (tmp_path / name).stat().st_size > 1000


def test_an_episode_is_drawn_with_characters_where_there_is_no_screen(capsys, home, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    code, out, _ = run(capsys, "play", "pole-1", "--home", home, "-n", 1, "--render")
    assert code == 0
    assert out.count("▀") > 500
    code, out, _ = run(capsys, "play", "FrozenLake-v1", "--policy", "random", "-n", 1, "--render", "--home", home)
    assert code == 0
    assert "▀" in out or "FFFF" in out


def test_a_version_is_exported_and_checked(capsys, home, tmp_path):
    pytest.importorskip("onnxruntime")
    found = told(capsys, "export", "pole-1", "--home", home, "--onnx", tmp_path / "p.onnx", "--version", 0)[0]
    assert found["version"] == 0
    assert found["difference"] < 1e-5
    assert (tmp_path / "p.onnx").stat().st_size == found["bytes"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "pole-3"], "did you mean pole-"),
        (["play", "pole-1", "--version", "29"], "the nearest is 30"),
        (["play", "CartPol-v1", "--policy", "random"], "CartPole-v1"),
        (["play", "pole-1", "--video", "a.avi"], ".mp4 or .gif"),
        (["play", "pole-1", "--video", "a.gif", "--render"], "one at a time"),
        (["plot", "pole-1", "-o", "curves.docx"], ".png"),
        (["plot", "pole-1", "-o", "no/such/folder/curves.png"], "no/such/folder/curves.png: No such file"),
        (["export", "pole-1", "--onnx", "no/such/folder/p.onnx"], "no/such/folder/p.onnx: No such file"),
        (["envs", "--search", "lunarlandre"], "LunarLander-v3"),
        (["algorithms", "ppoo"], "did you mean ppo?"),
    ],
)
def test_what_cannot_be_done_is_one_line_with_a_cure(capsys, home, words, said):
    where = [] if words[0] in ("envs", "algorithms") else ["--home", home]
    code, out, err = run(capsys, *words, *where)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"farfield: .+\n", err)
    assert said in err


def test_unknown_commands_and_options_exit_with_2(capsys):
    assert run(capsys, "trian")[0] == 2
    assert run(capsys, "runs", "--hoem", "x")[0] == 2
    assert run(capsys, "play", "pole-1", "--episodes", "0")[0] == 2


class Interrupted(gymnasium.Env):
    """An environment in which Ctrl-C is pressed."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        raise KeyboardInterrupt


@pytest.fixture
def interrupted():
    gymnasium.register("Interrupted-v0", entry_point=Interrupted)
    yield
    del gymnasium.registry["Interrupted-v0"]


def test_ctrl_c_exits_with_130(capsys, interrupted, tmp_path):
    code, out, err = run(capsys, "play", "Interrupted-v0", "--policy", "random", "--home", tmp_path)
    assert (code, out, err) == (130, "", "")


def test_a_closed_pipe_ends_quietly():
    command = f"{sys.executable} -m farfield envs --json | head -1"
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert len(found.stdout.splitlines()) == 1
    assert found.stderr == ""


def test_names_are_completed(home):
    words = {"_FARFIELD_COMPLETE": "complete_bash", "COMP_WORDS": f"farfield show --home {home} po", "COMP_CWORD": "4"}
    found = subprocess.run(
        [sys.executable, "-m", "farfield"],
        env=os.environ | words,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.stdout.split() == ["pole-1", "pole-2"]
    assert complete_algorithm("pp") == ["ppo"]
    assert "CartPole-v1" in complete_env("CartP")


def test_the_version_is_told(capsys):
    assert run(capsys, "--version")[1].startswith("farfield 0.")
    assert play_command.__name__ in COMMANDS
