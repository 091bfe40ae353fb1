"""What doctor finds, and what it says cures it."""

import json

import numpy as np

from cli_runs import run
from farfield.cli.doctor import orphaned


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
