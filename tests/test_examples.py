"""Every example runs to its end, as a stranger would start it."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


def test_there_are_examples() -> None:
    assert {"own_environment", "own_network", "torch_algorithm"} <= {path.stem for path in EXAMPLES}


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    if "import torch" in path.read_text() and find_spec("torch") is None:
        pytest.skip("PyTorch is not installed; `make bench` runs this one")
    done = subprocess.run(
        [sys.executable, path], cwd=tmp_path, env=os.environ | {"FARFIELD_HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
