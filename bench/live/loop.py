"""The LunarLander loop in one thread, bare and with a session, in alternating blocks of one process: lines of JSON.

Both blocks step the same environment with the same actions, which were drawn before: what differs is Farfield alone.
Usage: loop.py ADDRESS RUN [--core native|numpy] [--seconds 10] [--block 5000] [--latency] [--alone]
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as in every process that Farfield starts

import gymnasium
import numpy as np

import farfield

LIMIT = 1000  # steps of an episode


class Program:
    """A program that steps its environment; blocks go on where the one before stopped."""

    def __init__(self, seed: int) -> None:
        self.env = gymnasium.make("LunarLander-v3", render_mode=None).unwrapped
        self.actions = np.random.default_rng(seed).integers(0, 4, 1 << 16).tolist()
        self.done, self.length = 0, 0
        self.obs: Any = self.env.reset(seed=seed)[0]

    def bare(self, steps: int) -> None:
        env, actions = self.env, self.actions
        for n in range(self.done, self.done + steps):
            self.obs, _, over, _, _ = env.step(actions[n & 0xFFFF])
            self.length += 1
            if over or self.length >= LIMIT:
                self.obs, self.length = env.reset()[0], 0
        self.done += steps

    def live(self, app: Any, steps: int, spent: list[int] | None = None) -> None:
        env, actions, clock = self.env, self.actions, time.perf_counter_ns
        episode = app.episode()
        for n in range(self.done, self.done + steps):
            if spent is None:
                episode.act(self.obs)
            else:
                begun = clock()
                episode.act(self.obs)
                spent.append(clock() - begun)
            self.obs, reward, over, _, _ = env.step(actions[n & 0xFFFF])
            episode.reward(reward)
            self.length += 1
            if over or self.length >= LIMIT:
                episode.end(truncated=not over, obs=self.obs)
                self.obs, self.length = env.reset()[0], 0
        episode.close(truncated=True)
        self.obs, self.length = env.reset()[0], 0
        self.done += steps


def timed(work: Callable[[int], None], steps: int) -> float:
    begun = time.perf_counter()
    work(steps)
    return (time.perf_counter() - begun) / steps * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("run")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--block", type=int, default=5000)
    parser.add_argument("--latency", action="store_true", help="time every act: costs a little itself")
    parser.add_argument("--alone", action="store_true", help="no bare blocks in between: the program at full speed")
    parser.add_argument("--core", default="native", choices=("native", "numpy"))
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    program = Program(given.seed)
    spec = farfield.spec(obs=program.env.observation_space, action=program.env.action_space)
    app = farfield.connect(given.address, run=given.run, spec=spec, spool="", wait=60.0, core=given.core)
    if not app.wait(60.0):
        sys.exit("no version came within 60 s")
    program.bare(given.block)
    program.live(app, given.block)
    bare, live, spent = [], [], [] if given.latency else None
    end = time.monotonic() + given.seconds
    while time.monotonic() < end:
        bare.append(0.0 if given.alone else timed(program.bare, given.block))
        live.append(timed(lambda steps: program.live(app, steps, spent), given.block))
    left, counters = app.close(30.0), app.counters()
    ratios = [after / before for before, after in zip(bare, live, strict=True) if before]
    line: dict[str, Any] = {
        "bare_us": statistics.median(bare), "live_us": statistics.median(live),
        "ratio": statistics.median(ratios or [0.0]),
        "blocks": len(bare), "steps": counters.steps, "dropped": counters.dropped_steps, "counters": repr(counters),
        "left": repr(left),
    }  # fmt: skip
    if spent:
        line["act_us"] = dict(zip(("p50", "p99", "p99.9"), np.quantile(spent, (0.5, 0.99, 0.999)) / 1e3, strict=True))
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
