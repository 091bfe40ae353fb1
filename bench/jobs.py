"""Live figure 7: a job-scheduling step with observation and mask, in each way there is. Usage: jobs.py [--quick]

Chance chooses among the waiting jobs, as when RL4Sys's environment was measured on this kind of machine: 1,603 steps/s
with its mask on lublin_256 (10,000 jobs), 12-16 ms for a reset, which there plays SJF and F1.
"""

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np

from farfield.envs.jobs.env import Jobs
from figures import figure, target

THEIRS, THEIR_RESET = 1603.0, 14.0
WAYS: dict[str, dict[str, Any]] = {
    "as the original, paid at the end": {},
    "paid as jobs wait": {"paid": "wait"},
    "scaled view, paid as jobs wait": {"view": "scaled", "paid": "wait"},
    "with backfilling": {"backfill": True},
}


def rate(env: Jobs, steps: int, seed: int) -> float:
    """Give the steps per second of so many, resets included."""
    chosen = np.random.default_rng(seed).random(steps).tolist()
    obs, _ = env.reset(seed=seed)
    begun = time.perf_counter()
    for share in chosen:
        obs, _, over, _, _ = env.step(np.int64(share * np.count_nonzero(obs["action_mask"])))
        if over:
            obs, _ = env.reset()
    return steps / (time.perf_counter() - begun)


def resets(env: Jobs, count: int) -> float:
    """Give the milliseconds of a reset with SJF and F1 played, as the original does at every one."""
    begun = time.perf_counter()
    for seed in range(count):
        env.reset(seed=seed)
        env.compare("sjf", "f1")
    return (time.perf_counter() - begun) / count * 1e3


def measure_jobs(*, quick: bool) -> list[dict[str, Any]]:
    """Measure all ways in turns and judge the first."""
    envs = {name: Jobs(**options) for name, options in WAYS.items()}
    found: dict[str, list[float]] = {name: [] for name in envs}
    for turn in range(2 if quick else 9):
        for name, env in envs.items():
            found[name].append(rate(env, 2_000 if quick else 10_000, turn))
    rows: list[dict[str, Any]] = [{"system": "RL4Sys (measured before)", "value": THEIRS, "unit": "steps/s"}]
    for name, rates in found.items():
        middle = statistics.median(rates)
        row = {"system": name, "value": middle, "unit": "steps/s", "ratio": middle / THEIRS}
        rows.append(row | {"low": min(rates), "high": max(rates)})
    rows.append({"system": "reset, SJF and F1 played", "value": resets(envs[next(iter(envs))], 50), "unit": "ms"})
    rows.append({"system": "reset of RL4Sys (measured before)", "value": THEIR_RESET, "unit": "ms"})
    first = statistics.median(found[next(iter(found))])
    targets = [target("steps/s beside RL4Sys's environment", first / THEIRS, 3, most=False, unit="×")]
    return [figure("live 7", "A step of job scheduling", rows, targets)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    print(json.dumps(measure_jobs(quick=parser.parse_args().quick), indent=1))
