"""The LunarLander loop in one thread, bare and with a session, in blocks of one process: one line of JSON.

Both kinds of block step the same environment with the same actions, which were drawn before: what differs is Farfield
alone. Bare and live blocks alternate; with --alone the bare ones come before the session is opened and after it is
closed, so that the program is at full speed in between and nothing of ours runs beside the bare loop.

Usage: loop.py ADDRESS RUN [--core native|numpy] [--seconds 10] [--block 5000] [--latency] [--alone] [--versions 0]
"""

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any, NamedTuple

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as in every process that Farfield starts

import gymnasium
import numpy as np

import farfield

LIMIT = 1000  # steps of an episode


class Spent(NamedTuple):
    """Microseconds of a step in one block."""

    wall: float
    own: float  # processor time of this thread alone, whoever disturbs it


class Program:
    """A program that steps its environment; blocks go on where the one before stopped."""

    def __init__(self, seed: int, block: int) -> None:
        self.env = gymnasium.make("LunarLander-v3", render_mode=None).unwrapped
        self.actions = np.random.default_rng(seed).integers(0, 4, 1 << 16).tolist()
        self.block, self.done, self.length = block, 0, 0
        self.obs: Any = self.env.reset(seed=seed)[0]

    def bare(self) -> Spent:
        """Step without us; gives microseconds of a step."""
        env, actions, begun = self.env, self.actions, _now()
        for n in range(self.done, self.done + self.block):
            self.obs, _, over, _, _ = env.step(actions[n & 0xFFFF])
            self.length += 1
            if over or self.length >= LIMIT:
                self.obs, self.length = env.reset()[0], 0
        return self._over(begun)

    def live(self, app: Any) -> Spent:
        """Step, and ask, and tell; an episode that the block cuts off goes on in the next one."""
        env, actions, begun = self.env, self.actions, _now()
        with app.episode() as episode:
            for n in range(self.done, self.done + self.block):
                episode.act(self.obs)
                self.obs, reward, over, _, _ = env.step(actions[n & 0xFFFF])
                episode.reward(reward)
                self.length += 1
                if over or self.length >= LIMIT:
                    episode.end(truncated=not over, obs=self.obs)
                    self.obs, self.length = env.reset()[0], 0
            episode.end(truncated=True, obs=self.obs)
        return self._over(begun)

    def timed(self, app: Any, spent: list[int]) -> Spent:
        """Do the same with every act timed, which costs a little itself."""
        env, actions, clock, begun = self.env, self.actions, time.perf_counter_ns, _now()
        with app.episode() as episode:
            for n in range(self.done, self.done + self.block):
                before = clock()
                episode.act(self.obs)
                spent.append(clock() - before)
                self.obs, reward, over, _, _ = env.step(actions[n & 0xFFFF])
                episode.reward(reward)
                self.length += 1
                if over or self.length >= LIMIT:
                    episode.end(truncated=not over, obs=self.obs)
                    self.obs, self.length = env.reset()[0], 0
            episode.end(truncated=True, obs=self.obs)
        return self._over(begun)

    def _over(self, begun: tuple[float, float]) -> Spent:
        wall, own = (after - before for after, before in zip(_now(), begun, strict=True))
        self.done += self.block
        return Spent(wall / self.block * 1e6, own / self.block * 1e6)


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.thread_time()


def warm(program: Program, app: Any, versions: int, seconds: float) -> None:
    """Run until so many versions have come, or for so long: what a process does once at its start is over then."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and (not versions or app.counters().versions <= versions):
        program.live(app)


def percentiles(spent: list[int]) -> dict[str, float]:
    """Give microseconds of an act."""
    found = np.quantile(spent, (0.5, 0.99, 0.999, 1.0)) / 1e3
    return dict(zip(("p50", "p99", "p99.9", "slowest"), found.tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("run")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--block", type=int, default=5000)
    parser.add_argument("--latency", action="store_true", help="time every act: costs a little itself")
    parser.add_argument("--alone", action="store_true", help="no bare blocks in between: the program at full speed")
    parser.add_argument("--versions", type=int, default=0, help="so many come before anything is measured")
    parser.add_argument("--warm", type=float, default=2.0, help="seconds before anything is measured, at most")
    parser.add_argument("--core", default="native", choices=("native", "numpy"))
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    program, spent = Program(given.seed, given.block), list[int]()
    bare, live = list[Spent](), list[Spent]()
    program.bare()
    around = given.seconds / 4 if given.alone else 0.0
    end = time.monotonic() + around
    while time.monotonic() < end:
        bare.append(program.bare())
    spec = farfield.spec(obs=program.env.observation_space, action=program.env.action_space)
    app = farfield.connect(given.address, run=given.run, spec=spec, wait=60.0, core=given.core)
    if not app.wait(60.0):
        sys.exit("no version came within 60 s")
    warm(program, app, given.versions, given.warm)
    end, before = time.monotonic() + given.seconds, app.counters()
    while time.monotonic() < end:
        if not given.alone:
            bare.append(program.bare())
        live.append(program.timed(app, spent) if given.latency else program.live(app))
    versions = app.counters().versions - before.versions
    left, counters = app.close(30.0), app.counters()
    end = time.monotonic() + around
    while time.monotonic() < end:
        bare.append(program.bare())
    usual = statistics.mean if given.alone else statistics.median  # at full speed every pause counts
    plain, mine = (Spent(*map(usual, zip(*blocks, strict=True))) for blocks in (bare, live))
    ratios = [1.0] if given.alone else [after.wall / before.wall for before, after in zip(bare, live, strict=True)]
    line: dict[str, Any] = {
        "bare_us": plain.wall, "live_us": mine.wall, "blocks": len(live), "versions": versions,
        "ratio": mine.wall / plain.wall if given.alone else statistics.median(ratios),
        "own_ratio": mine.own / plain.own, "bare_own_us": plain.own, "live_own_us": mine.own,
        "low": min(ratios), "high": max(ratios), "finished": counters.steps, "dropped_steps": counters.dropped_steps,
        "fallbacks": counters.fallbacks, "left": left.payloads,
    }  # fmt: skip
    print(json.dumps(line | (percentiles(spent) if spent else {})), flush=True)


if __name__ == "__main__":
    main()
