"""LunarLander through the API of RL4Sys, as its own example does it: one line of JSON. Usage: compat.py ADDRESS

The order of calls, 200 moves for an episode, and every reward set behind its step are those of RL4Sys's example.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import gymnasium
import numpy as np

from farfield.compat.rl4sys import RL4SysAgent

MOVES = 200
PARAMETERS = {  # of the other programs of the bench, in RL4Sys's words
    "input_size": 8, "act_dim": 4, "seed": 1, "traj_per_epoch": 8192, "batch_size": 512, "train_pi_iters": 8,
    "pi_lr": 1e-3, "gamma": 0.999, "lam": 0.98, "ent_coef": 0.01, "clip_ratio": 0.2, "target_kl": None,
}  # fmt: skip


def play(agent: RL4SysAgent, env: Any, seconds: float, spent: list[int]) -> int:
    """Play whole episodes for so long; gives how many steps that were."""
    clock, steps, end = time.perf_counter_ns, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        obs, traj, over, moves = env.reset()[0], None, False, 0
        action: Any = None
        while not over and moves < MOVES:
            before = clock()
            traj, action = agent.request_for_action(traj, obs)
            spent.append(clock() - before)
            agent.add_to_trajectory(traj, action)
            obs, reward, over, _, _ = env.step(int(action.act[0]))
            action.update_reward(reward)
            moves += 1
        agent.mark_end_of_trajectory(traj, action)
        steps += moves
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--warm", type=float, default=2.0)
    given = parser.parse_args()
    env = gymnasium.make("LunarLander-v3", render_mode=None).unwrapped
    env.reset(seed=1)
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        file = Path(place) / "lander.json"
        file.write_text(json.dumps({
            "client_id": "compat", "algorithm_name": "PPO", "algorithm_parameters": PARAMETERS,
            "train_server_address": given.address, "connection_timeout_seconds": 60,
        }))  # fmt: skip
        agent = RL4SysAgent(str(file))
    play(agent, env, given.warm, [])
    spent: list[int] = []
    begun = time.perf_counter()
    steps = play(agent, env, given.seconds, spent)
    took, version = time.perf_counter() - begun, agent.local_version
    left = agent.close(30.0)
    found = np.quantile(spent, (0.5, 0.99, 0.999)) / 1e3
    counters = agent.app.counters()
    print(json.dumps({
        "steps_per_second": steps / took, "versions": version, "finished": counters.steps,
        "dropped_steps": counters.dropped_steps, "left": left.payloads,
        **dict(zip(("p50", "p99", "p99.9"), found.tolist(), strict=True)),
    }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
