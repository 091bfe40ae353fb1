"""The live job-scheduling example in, docs/jobs.png and the numbers of docs/jobs.md out: python bench/jobs_plot.py.

Each seed has a gateway of its own; what was learned is tried on windows that no training saw, of the same trace and of
another one. Usage: jobs_plot.py [--seeds 1,2] [--steps 200000] [--again results.json]
"""

import argparse
import json
import os
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot as plt

from farfield import wiring
from farfield.envs.jobs import trials
from farfield.envs.jobs.env import Jobs
from farfield.envs.jobs.rules import RULES
from farfield.envs.jobs.trace import apart
from farfield.types import Array

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests")]
OTHER = 77  # seed of a trace that nobody trained on
NAMES = {"fcfs": "FCFS", "sjf": "SJF", "f1": "F1", "wfp3": "WFP3", "unicep": "UNICEP"}
COLOURS = {"fcfs": "#9aa0a6", "sjf": "#c26a1b", "f1": "#2b6cb0", "wfp3": "#7b8794", "unicep": "#a3acb5"}


def learn(seed: int, steps: int) -> dict[str, Any]:
    """Run the example once; gives its trials, and what its last version makes of each window at the end."""
    example, gateways = import_module("jobs"), import_module("gateways")
    with tempfile.TemporaryDirectory() as home:
        os.environ["FARFIELD_SPOOL"] = f"{home}/spool"
        file = Path(home) / "jobs.toml"
        file.write_text(f"seed = {seed}\n" + (ROOT / "examples/jobs.toml").read_text())
        begun = time.monotonic()
        with gateways.gateway(Path(home), str(file), "--http", "", doors=1) as served:
            found, _ = example.main(served.grpc, steps, seed=seed)
        seconds, decide = time.monotonic() - begun, newest(home)
        costs = {name: trials.play(env, decide, starts).tolist() for name, (env, starts) in held_out().items()}
    return {"seed": seed, "curve": found, "seconds": seconds, "costs": costs}


def newest(home: str) -> trials.Decide:
    """Make what decides greedily as the run's newest version."""
    folder = wiring.run_folder(home, "jobs")
    registry = wiring.registry_of(wiring.read_config(folder), folder)
    version = registry.version(registry.numbers()[-1])
    policy = wiring.policy_of(version)
    policy.load(version, registry.fetch(version))
    memory = policy.memory(1)

    def decide(obs: dict[str, Array]) -> int:
        columns = {"obs": obs["jobs"][None], "mask": obs["action_mask"][None].astype(bool)}
        return int(policy.act(columns, noise=None, memory=memory).action["action"][0])

    return decide


def held_out() -> dict[str, tuple[Jobs, list[int]]]:
    """Give the windows on which everything is tried, none of which shares a job with another one."""
    envs = {"held": Jobs(part="held_out", view="scaled"), "other": Jobs(trace_seed=OTHER, view="scaled")}
    return {name: (env, apart(env.starts, 19 if name == "held" else 38)) for name, env in envs.items()}


def by_rules() -> dict[str, dict[str, list[float]]]:
    found = {name: trials.compare(env, starts) for name, (env, starts) in held_out().items()}
    return {name: {rule: costs.tolist() for rule, costs in table.items()} for name, table in found.items()}


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw what was learned beside the rules, and how it was learned."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained", width_ratios=(1, 1.25))
    rules = {rule: float(np.mean(costs)) for rule, costs in results["rules"]["held"].items()}
    own = [float(np.mean(run["costs"]["held"])) for run in results["runs"]]
    bars = [(NAMES[rule], cost, COLOURS[rule]) for rule, cost in sorted(rules.items(), key=lambda item: -item[1])]
    bars.append(("learned", float(np.mean(own)), "#1f8a5b"))
    places = np.arange(len(bars))
    left.bar(places, [cost for _, cost, _ in bars], color=[colour for *_, colour in bars], width=0.7)
    left.plot([places[-1]] * len(own), own, "o", color="black", markersize=3.5, label="each seed")
    for place, (_, cost, _) in zip(places, bars, strict=True):
        left.annotate(f"{cost:,.0f}", (place, min(cost, 560)), (0, 4), textcoords="offset points", ha="center")
    left.set(ylim=(0, 600), ylabel="mean bounded slowdown", title="19 windows that nobody trained on")
    left.set_xticks(places, [name for name, *_ in bars])
    left.legend(frameon=False, loc="upper right")
    for run in results["runs"]:
        decisions, costs = zip(*run["curve"], strict=True)
        right.plot(np.array(decisions) / 1e3, costs, color="#1f8a5b", linewidth=1.4, alpha=0.8)
    right.plot([], [], color="#1f8a5b", label="learned, one line for each seed")
    for rule in ("sjf", "f1"):
        right.axhline(rules[rule], color=COLOURS[rule], linewidth=1.2, linestyle="--", label=NAMES[rule])
    right.set(yscale="log", xlabel="thousand decisions", title="the same windows while it learned live")
    ticks = (250, 300, 400, 600, 1000, 2000, 4000)
    right.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    right.minorticks_off()
    right.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", linewidth=0.4, alpha=0.5)
        axes.set_axisbelow(True)
    figure.savefig(path, dpi=110)


def table(results: dict[str, Any]) -> str:
    """Give the rows of docs/jobs.md: rules, then each seed."""
    held, other = (results["rules"][name] for name in ("held", "other"))
    lines = [f"| {NAMES[rule]} | {np.mean(held[rule]):,.0f} | {np.mean(other[rule]):,.0f} |" for rule in RULES]
    for run in results["runs"]:
        own, elsewhere = (np.mean(run["costs"][name]) for name in ("held", "other"))
        lines.append(f"| learned, seed {run['seed']} ({run['seconds']:.0f} s) | {own:,.0f} | {elsewhere:,.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--again", type=Path, help="draw what was measured before")
    parser.add_argument("--keep", type=Path, default=ROOT / "bench/results/jobs.json")
    given = parser.parse_args()
    if given.again:
        results = json.loads(given.again.read_text())
    else:
        results = {"rules": by_rules(), "runs": []}
        for seed in map(int, given.seeds.split(",")):
            results["runs"].append(learn(seed, given.steps))
            given.keep.write_text(json.dumps(results))
            print(json.dumps({**results["runs"][-1], "costs": None}), flush=True)
    draw(results, ROOT / "docs/jobs.png")
    print(table(results))


if __name__ == "__main__":
    main()
