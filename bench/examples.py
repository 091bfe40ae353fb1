"""The example in PyTorch goes in; that it runs and learns beside the PyTorch of the peers comes out as a figure."""

import sys
import tempfile
from pathlib import Path
from typing import Any

import environments
import measure
import systems
from figures import figure, target

EXAMPLE = Path(__file__).parent.parent / "examples/torch_algorithm.py"
# PyTorch's packages behind ours, so that what both have is ours.
RUN = """
import runpy, sys
sys.path.append(sys.argv[1])
sys.path[0] = sys.argv[2]
runpy.run_path(sys.argv[3], run_name="__main__")
"""


def measure_examples(options: systems.Options) -> list[dict[str, Any]]:
    """Run the example once; it trains CartPole-v1 to a mean return of 100 and prints what it reached."""
    try:
        python = environments.python_of("torch", options.cache)
    except environments.PeerError as error:
        return [figure("8", "The example in PyTorch", [{"system": "torch", "error": str(error)}], [])]
    packages = next((python.parents[1] / "lib").glob("python*/site-packages"))
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        command = [sys.executable, "-c", RUN, str(packages), str(EXAMPLE.parent), str(EXAMPLE)]
        outcome = measure.run(
            command, cwd=Path(folder), timeout=300, env=systems.ONE_THREAD | {"CUDA_VISIBLE_DEVICES": ""}
        )
    reached = outcome.texts[-1].split() if outcome.texts else []
    value = float(reached[0]) if len(reached) == 2 and reached[1] == "until" else None
    outcome.error = "" if value is not None else outcome.error
    row = {"system": "farfield with an algorithm in PyTorch", "value": value, "unit": "return", **outcome.facts()}
    return [figure("8", "The example in PyTorch", [row], [target("mean return of CartPole-v1", value, 100)])]
