"""A cluster's scheduler learns while it schedules: start `farfield serve` in one terminal, and this in another."""

import argparse
from collections import deque

import numpy as np

import farfield
from farfield.envs.jobs import trials
from farfield.envs.jobs.env import Jobs
from farfield.envs.jobs.trace import apart

CONFIG = {
    "algorithm": {
        "kind": "ppo", "epochs": 4, "minibatch": 512, "learning_rate": 6e-3, "gamma": 0.99, "lam": 0.97,
        "reward_scaling": True,
    },
    "network": {"kind": "farfield.learning.kernel:build"},  # one small network that judges every waiting job
    "lanes": {"count": 16, "steps": 512},
}  # fmt: skip
EVERY, WINDOWS = 100_000, 19  # steps between trials, and windows of the part of the trace that is held out


def test(app, env, starts):
    """Give the mean bounded slowdown of held-out windows; nothing of them is recorded."""
    adviser = app.episode()
    costs = trials.play(env, lambda obs: adviser.advise(obs["jobs"], obs["action_mask"], best=1)[0][0], starts)
    adviser.close()
    return float(costs.mean())


def main(address, steps, *, seed=1, run="jobs", token=""):
    """Schedule windows of the trace's first half until so many decisions are made; gives (decisions, cost) of trials."""
    env, held = Jobs(part="train", view="scaled", paid="wait"), Jobs(part="held_out", view="scaled")
    starts = apart(held.starts, WINDOWS)
    spec = farfield.spec(obs=env.observation_space["jobs"], action=env.action_space, mask=True)
    recent, done, found = deque(maxlen=100), 0, []
    with farfield.connect(address, run=run, spec=spec, token=token, config=CONFIG | {"seed": seed}, pace=True) as app:
        app.wait(60)  # for a first policy
        obs, _ = env.reset(seed=seed)
        while done < steps:
            if done >= EVERY * len(found):
                found.append((done, test(app, held, starts)))
            with app.episode() as episode:
                over = False
                while not over:
                    obs, reward, over, _, info = env.step(episode.act(obs["jobs"], mask=obs["action_mask"]))
                    episode.reward(reward)
                    done += 1
            recent.append(info["cost"])
            if len(recent) % 100 == 0 and done % 25_600 == 0:
                print(f"{done} decisions: mean bounded slowdown {np.mean(recent):.0f}", flush=True)
            obs, _ = env.reset()
        found.append((done, test(app, held, starts)))
    return found, {name: float(costs.mean()) for name, costs in trials.compare(held, starts).items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", nargs="?", default="localhost:50051")
    parser.add_argument("--steps", type=int, default=1_000_000)
    options = parser.parse_args()
    found, rules = main(options.address, options.steps)
    print(f"held out: learned {found[-1][1]:.0f}, " + ", ".join(f"{name} {cost:.0f}" for name, cost in rules.items()))
