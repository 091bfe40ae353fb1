"""True episode returns and the clock of a peer's run: environments go in, one line of JSON comes out.

Every environment of every peer is wrapped in `Recorder`, whatever process it lives in; each finished episode is one
line in a file. No peer's own metric is used: several are means over other windows than the 100 last episodes.
"""

import argparse
import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium

WINDOW = 100
SETTINGS = {
    "CartPole-v1": {
        "lanes": 8, "steps": 128, "minibatch": 256, "epochs": 10, "rate": 1e-3, "gamma": 0.98, "lam": 0.95,
        "entropy": 0.0, "clip": 0.2, "norm": 0.5, "hidden": 64,
    },
    "LunarLander-v3": {
        "lanes": 16, "steps": 512, "minibatch": 512, "epochs": 8, "rate": 1e-3, "gamma": 0.999, "lam": 0.98,
        "entropy": 0.01, "clip": 0.2, "norm": 0.5, "hidden": 64,
    },
}  # fmt: skip


class Recorder(gymnasium.Wrapper):
    """Append "time return length" for each finished episode, and "time first 0" for the first step."""

    def __init__(self, env: Any, log: str) -> None:
        super().__init__(env)
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._total, self._length, self._begun = 0.0, 0, False

    def reset(self, **options: Any) -> Any:
        """Begin an episode; one that was cut short is not counted."""
        self._total, self._length = 0.0, 0
        return self.env.reset(**options)

    def step(self, action: Any) -> Any:
        """Step, and note an end."""
        if not self._begun:
            self._begun = True
            self._note("first", 0)
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._total += float(reward)
        self._length += 1
        if terminated or truncated:
            self._note(repr(self._total), self._length)
        return obs, reward, terminated, truncated, info

    def _note(self, what: str, length: int) -> None:
        os.write(self._log, f"{time.time():.6f} {what} {length}\n".encode())


class Episodes:
    """Reads what the recorders wrote: the mean of the last 100, and when it first reached the goal."""

    def __init__(self, log: Path, goal: float) -> None:
        self._log, self._goal, self._read = log, goal, 0
        self._last: deque[float] = deque(maxlen=WINDOW)
        self.first, self.count, self.steps = math.inf, 0, 0
        self.solved: tuple[float, int] | None = None

    def refresh(self) -> None:
        """Read the lines that are new."""
        if not self._log.exists():
            return
        with self._log.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in sorted(whole.decode().splitlines()):
            self._take(*line.split())

    def mean(self) -> float | None:
        """Give the mean of the last 100 finished episodes, or of fewer at the start."""
        return sum(self._last) / len(self._last) if self._last else None

    def _take(self, when: str, what: str, length: str) -> None:
        if what == "first":
            self.first = min(self.first, float(when))
            return
        self._last.append(float(what))
        self.count += 1
        self.steps += int(length)
        full = len(self._last) == WINDOW
        if self.solved is None and full and sum(self._last) / WINDOW >= self._goal:
            self.solved = (float(when), self.steps)


class TimeIsUpError(Exception):
    """Raised inside a peer's loop when its time is over."""


class Clock:
    """Holds a run's limits; `updated` is called after each update and says whether to stop."""

    def __init__(self, system: str, arguments: argparse.Namespace, log: Path) -> None:
        self._system, self._arguments = system, arguments
        self.born = time.time() - _age()
        self.log = log
        self.episodes = Episodes(log, arguments.until if arguments.until is not None else math.inf)
        self.steps, self._first_update, self._last, self._told = 0, (0.0, 0), 0.0, 0.0

    def updated(self, steps: int) -> bool:
        """Note that an update is finished that used the steps up to `steps`."""
        now = time.time()
        self.steps, self._last = steps, now
        if not self._first_update[0]:
            self._first_update = (now, steps)
        self.episodes.refresh()
        if now - self._told > 2:
            self._told = now
            self._say(
                {"event": "update", "steps": steps, "seconds": now - self.born, "return_mean": self.episodes.mean()}
            )
        return self.over()

    def over(self) -> bool:
        """Say whether the goal or the limit is reached; without a goal the limit counts from the first action."""
        self.episodes.refresh()
        if self._arguments.until is not None and self.episodes.solved:
            return True
        begun = self.born if self._arguments.until is not None else self.episodes.first
        return time.time() - begun > self._arguments.seconds

    def finish(self, **facts: Any) -> None:
        """Print the last line."""
        self.episodes.refresh()
        begun, solved = self.episodes.first, self.episodes.solved
        training = max(self._last - begun, 1e-9) if self.steps else None
        later = (self.steps - self._first_update[1]) / max(self._last - self._first_update[0], 1e-9)
        self._say({
            "system": self._system, "env": self._arguments.env, "seed": self._arguments.seed, "steps": self.steps,
            "seconds_from_process_start": self._last - self.born,
            "seconds_training": training,
            "steps_per_second": self.steps / training if training else None,
            "steps_per_second_after_first_update": later if self.steps > self._first_update[1] else None,
            "first_update_at_seconds": self._first_update[0] - self.born if self.steps else None,
            "solved_at_seconds": solved[0] - self.born if solved else None,
            "solved_at_steps": solved[1] if solved else None,
            "return_mean": self.episodes.mean(), "episodes": self.episodes.count, **facts,
        })  # fmt: skip

    @staticmethod
    def _say(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=sys.__stdout__, flush=True)


def make(env: str, log: str) -> Any:
    """Make one environment that records, without rendering (Box2D keeps particles for ever when it may render)."""
    if env == "LunarLander-v3" and env not in gymnasium.registry:  # Gymnasium before 1.0 has the same one as v2
        entry = "gymnasium.envs.box2d:LunarLander"
        gymnasium.register(env, entry_point=entry, max_episode_steps=1000, reward_threshold=200)
    return Recorder(gymnasium.make(env, render_mode=None), log)


def run(system: str, train: Callable[[argparse.Namespace, dict[str, Any], Clock], dict[str, Any] | None]) -> None:
    """Read the command line, train until the limit, print the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", default="CartPole-v1", choices=sorted(SETTINGS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="limit; without --until, from the first action")
    parser.add_argument("--until", type=float, help="stop once the mean of the last 100 returns is this")
    arguments = parser.parse_args()
    clock = Clock(system, arguments, Path(f"episodes-{os.getpid()}.log").resolve())
    try:
        facts = train(arguments, SETTINGS[arguments.env], clock)
    except TimeIsUpError:
        facts = None
    clock.finish(**(facts or {}))


def _age() -> float:
    """Seconds since this process was started, the interpreter's own start included."""
    started = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started
