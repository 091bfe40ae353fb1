"""Every example runs to its end, as a stranger would start it."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from gateways import gateway

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
LIVE = {  # beside a gateway: how to end soon
    "lander_live": ("--steps", "3000"),
    "storage_tuning": (),
    "own_program": ("4000",),
    "jobs": ("--steps", "512"),
}


def test_there_are_examples() -> None:
    assert {"own_environment", "own_network", "torch_algorithm"} <= {path.stem for path in EXAMPLES}


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in EXAMPLES if path.stem not in LIVE], ids=lambda path: path.stem)
def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    if "import torch" in path.read_text() and find_spec("torch") is None:
        pytest.skip("PyTorch is not installed; `make bench` runs this one")
    run(path, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", LIVE)
def test_a_live_example_runs_beside_a_gateway(name: str, tmp_path: Path) -> None:
    path = next(path for path in EXAMPLES if path.stem == name)
    run_file = path.with_suffix(".toml")  # where a run needs what clients may not choose
    files = [str(run_file)] if run_file.exists() else []
    with gateway(tmp_path, *files, "--http", "", doors=1) as served:
        run(path, tmp_path, served.grpc, *LIVE[name])


def run(path: Path, folder: Path, *words: str) -> None:
    places = {"FARFIELD_HOME": str(folder), "FARFIELD_SPOOL": str(folder / "spool")}
    done = subprocess.run(
        [sys.executable, path, *words], cwd=folder, env=os.environ | places, capture_output=True, text=True,
        timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
