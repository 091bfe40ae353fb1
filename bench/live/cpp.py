"""An empty folder in; how long the C++ client takes to compile there, and how fast it acts, out: a line of JSON each.

Usage: cpp.py FOLDER [--jobs 2]
"""

import argparse
import json
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CLIENT = ROOT / "clients/cpp"
NUMBER = re.compile(r"(p50|p99|p99\.9|slowest) ([\d.]+) us")


def call(*words: str | Path) -> str:
    """Run a tool; where it fails, what it said last is the error."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{words[0]}: " + " / ".join((done.stdout + done.stderr).strip().splitlines()[-3:]))
    return done.stdout


def tell(name: str, value: float, unit: str, **more: float) -> None:
    """Print one figure."""
    print(json.dumps({"name": name, "value": value, "unit": unit} | more), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    maker = ["-G", "Ninja"] if shutil.which("ninja") else []
    build, jobs = given.folder / "build", str(given.jobs)
    begun = time.perf_counter()
    call("cmake", *maker, "-S", CLIENT, "-B", build)
    call("cmake", "--build", build, "-j", jobs)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    tell("compile", time.perf_counter() - begun, "s", processor_seconds=used.ru_utime + used.ru_stime)
    call("cmake", "-S", CLIENT, "-B", build, "-DFARFIELD_TESTS=ON")
    call("cmake", "--build", build, "-j", jobs, "--target", "act_timing")
    timing = next(path for path in build.rglob("act_timing") if path.is_file())
    said = call(timing)
    found = {name: float(value) for name, value in NUMBER.findall(said)}
    if "p50" not in found:
        sys.exit(f"act_timing: expected percentiles, came {said.strip()!r}")
    for name, value in found.items():
        tell(f"act {name}", value, "µs")


if __name__ == "__main__":
    main()
