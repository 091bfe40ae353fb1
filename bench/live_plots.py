"""The live examples in, docs/lander-live.png and docs/storage.png out: python bench/live_plots.py [lander|storage]."""

import os
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot as plt

from farfield.telemetry import metrics

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests")]
DOCS, LIMIT, WINDOW = ROOT / "docs", 900.0, 2000
BUDGET = {"ppo": "2000000", "dqn": "400000"}  # steps, if 200 is not reached before


def lander(places: dict[str, str]) -> None:
    """Run both algorithms, one after the other, each with a gateway to itself."""
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for algorithm, steps in BUDGET.items():
        with tempfile.TemporaryDirectory() as home, _gateway(Path(home)) as served:
            words = [served.grpc, "--algorithm", algorithm, "--steps", steps]
            done = subprocess.run(
                [sys.executable, ROOT / "examples" / "lander_live.py", *words], env=os.environ | places,
                stdout=subprocess.PIPE, text=True, timeout=LIMIT, check=True,
            )  # fmt: skip
            print(algorithm, done.stdout.splitlines()[-1])
            rows = metrics.read(Path(home) / "runs" / f"lander-{algorithm}")
        axes.plot(*metrics.curve(rows), label=f"{algorithm.upper()}, one live program")
    axes.axhline(200, color="0.6", linewidth=0.8, linestyle="--")
    axes.set(xlabel="steps learned from", ylabel="mean return of 100 episodes", title="LunarLander-v3, live")
    axes.legend()
    figure.savefig(DOCS / "lander-live.png", dpi=110)


def storage(places: dict[str, str]) -> None:
    """Run the store, and the same workloads under the usual setting."""
    os.environ |= places
    store: Any = import_module("storage_tuning")
    with tempfile.TemporaryDirectory() as home, _gateway(Path(home)) as served:
        learned, usual = store.main(served.grpc), store.usual()
    print(f"storage: default {np.mean(usual):.2f} ms, last tenth {np.mean(learned[-len(learned) // 10 :]):.2f} ms")
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    smooth = np.ones(WINDOW) / WINDOW
    for name, found in (("learned from late rewards", learned), ("usual setting, 16 pages", usual)):
        axes.plot(np.convolve(found, smooth, "valid"), label=name, linewidth=1)
    axes.set(
        xlabel="decisions",
        ylabel=f"latency, ms (mean of {WINDOW})",
        title="Read-ahead of a store, tuned while it serves",
    )
    axes.legend()
    figure.savefig(DOCS / "storage.png", dpi=110)


def _gateway(home: Path) -> Any:
    return import_module("gateways").gateway(home, "--http", "", doors=1)


def main() -> None:
    wanted = sys.argv[1:] or ["lander", "storage"]
    with tempfile.TemporaryDirectory() as spool:
        for name in wanted:
            {"lander": lander, "storage": storage}[name]({"FARFIELD_SPOOL": spool})


if __name__ == "__main__":
    main()
