"""What there is to choose from, what doctor finds, and what it says cures it."""

import json
from importlib.metadata import metadata

import numpy as np
import pytest

from farfield import cli, errors, wiring
from farfield import config as configs
from farfield.cli import doctor
from farfield.cli.doctor import orphaned


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


def test_environments_and_algorithms_are_listed(capsys):
    found = {one["env"]: one for one in told(capsys, "envs", "--search", "cartpole")}
    assert "ppo" in found["CartPole-v1"]["defaults"]
    assert found["CartPole-v1"]["backend"] == "own vector class"
    assert run(capsys, "envs")[0] == 0
    pytest.importorskip("jax")
    ppo = told(capsys, "algorithms", "ppo")[0]
    clip = next(one for one in ppo["parameters"] if one["name"] == "clip")
    assert clip["change"] in ("live", "recompile", "fixed")
    assert clip["description"]
    assert all(one["change"] in ("live", "recompile", "fixed") for one in ppo["parameters"])
    code, out, _ = run(capsys, "algorithms", "ppo")
    assert code == 0
    assert "learning_rate" in out


def test_what_steps_an_environment_is_what_is_listed(capsys):
    said = {"own vector class": lambda name: name.startswith("gymnasium "), "sync": lambda name: name == "sync"}
    said["envpool"] = lambda name: name == "envpool"
    listed = {one["env"]: one["backend"] for one in told(capsys, "envs")}
    for env in ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "Blackjack-v1"):
        config = configs.decode({"run": "x", "env": env})
        lanes = wiring.lanes_of(config, 1, seed=1, replayable=False)
        assert said[listed[env]](lanes.backend), (env, lanes.backend)
        lanes.close()


def test_doctor_names_what_is_missing_and_its_cure(capsys, tmp_path):
    code, out, _ = run(capsys, "doctor", "--json", "--home", tmp_path)
    found = {one["about"]: one for one in map(json.loads, out.splitlines())}
    assert found["numpy"] == {"about": "numpy", "state": "good", "found": np.__version__, "cure": ""}
    assert found["home"]["state"] == "good"
    assert code == any(one["state"] == "bad" for one in found.values())
    for one in found.values():
        assert bool(one["cure"]) or one["state"] == "good"
    absent = [name for name, one in found.items() if one["state"] == "absent"]
    assert all(found[name]["cure"] == f"pip install 'farfield[{name.split()[1]}]'" for name in absent)
    out = run(capsys, "doctor", "--home", tmp_path)[1]
    assert all(found[name]["cure"] in out for name in absent)


def test_every_extra_that_is_named_as_a_cure_exists():
    named = {*doctor.EXTRAS, *(cure.partition("[")[2].rstrip("]") for cure in errors.EXTRAS.values())}
    assert named <= set(metadata("farfield").get_all("Provides-Extra") or ())


def test_doctor_fails_where_home_cannot_be_written(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    code, out, _ = run(capsys, "doctor", "--json", "--home", tmp_path / "file" / "home")
    assert code == 1
    home = next(one for one in map(json.loads, out.splitlines()) if one["about"] == "home")
    assert home["state"] == "bad"
    assert "--home" in home["cure"]


def test_actors_without_their_learner_are_found(tmp_path):
    for pid, parent, words in (
        (11, 10, ["python", "-m", "farfield.acting", "/run", "unix:/x", "0", "10"]),
        (12, 1, ["python", "-m", "farfield.acting", "/run", "unix:/x", "1", "10"]),
        (13, 1, ["python", "-m", "http.server"]),
    ):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "cmdline").write_bytes("\0".join([*words, ""]).encode())
        (folder / "stat").write_text(f"{pid} (a) b) S {parent} 0 0")
    assert list(orphaned(tmp_path)) == [12]
