"""Figure 6: what starting costs, and how much memory a learner with one actor holds. Usage: startup.py [--quick]"""

import json
import statistics
import subprocess
import sys
import time
from typing import Any

import measure
import systems
from figures import figure, target

IMPORT = "import time, {before}\nb = time.perf_counter()\nimport {name}\nprint(time.perf_counter() - b)"


def measure_startup(options: systems.Options) -> list[dict[str, Any]]:
    """Measure imports, the help text and the memory of a run."""
    measure.wait_for_quiet(options.quiet)
    repeat = 3 if options.quick else 11
    python = sys.executable
    busy = measure.busy_cores(1.0)
    beyond = [1000 * _import(python, "farfield", "numpy") for _ in range(repeat)]
    numpy = [1000 * _import(python, "numpy", "sys") for _ in range(repeat)]
    helps = [1000 * _wall([*options.farfield, "--help"]) for _ in range(repeat)]
    run = systems.ours(options, "CartPole-v1", 1, steps=60_000 if options.quick else 500_000)
    memory = run["peak_megabytes"] if run.get("steps") else None
    names = ("cores_of_others", "busy_cores_before", "processes", "backend", "actors", "error")
    conditions = {name: run.get(name) for name in names}
    rows = [
        _row("import farfield, beyond NumPy", beyond, "ms", busy),
        _row("import numpy", numpy, "ms", busy),
        _row("farfield --help", helps, "ms", busy),
        {"system": "learner and one actor together", "value": memory, "unit": "MB", **conditions},
    ]
    targets = [
        target("import farfield, beyond NumPy", statistics.median(beyond), 40, most=True, unit="ms"),
        target("farfield --help", statistics.median(helps), 300, most=True, unit="ms"),
        target("learner and one actor together", memory, 700, most=True, unit="MB"),
    ]
    return [figure("6", "Start and size", rows, targets)]


def _import(python: str, name: str, before: str) -> float:
    script = IMPORT.format(name=name, before=before)
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"import {name}: {done.stderr.strip().splitlines()[-1]}")
    return float(done.stdout)


def _wall(command: list[str]) -> float:
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}")
    return time.perf_counter() - begun


def _row(name: str, values: list[float], unit: str, busy: float) -> dict[str, Any]:
    return {
        "system": name,
        "value": statistics.median(values),
        "least": min(values),
        "unit": unit,
        "cores_of_others": busy,
        "error": "",
    }


if __name__ == "__main__":
    from run import options_of

    print(json.dumps(measure_startup(options_of(sys.argv[1:])), indent=1))
