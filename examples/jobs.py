"""A cluster's scheduler learns while it works: `farfield serve examples/jobs.toml` in one terminal, this in another."""

import argparse
from collections import deque

import numpy as np

import farfield
from farfield.envs.jobs import trials
from farfield.envs.jobs.env import Jobs
from farfield.envs.jobs.trace import apart

EVERY, WINDOWS = 25_000, 19  # decisions between trials, and windows of the part of the trace that is held out


def adviser(app):
    """Make what decides as well as the newest version can; nothing of it is recorded."""
    episode = app.episode()
    return lambda obs: episode.advise(obs["jobs"], obs["action_mask"], best=1)[0][0]


def main(address, steps, *, run="jobs", token="", seed=1):
    """Schedule windows of the trace's first half; gives (decisions, cost) of each trial, and what rules cost there."""
    env, held = Jobs(part="train", view="scaled", paid="wait"), Jobs(part="held_out", view="scaled")
    windows = apart(held.starts, WINDOWS)
    spec = farfield.spec(obs=env.observation_space["jobs"], action=env.action_space, mask=True)
    costs, done, found = deque(maxlen=100), 0, []
    with farfield.connect(address, run=run, spec=spec, token=token, pace=True) as app:
        app.wait(60)  # for a first policy
        decide = adviser(app)
        obs, _ = env.reset(seed=seed)
        while done < steps:
            if done >= EVERY * len(found):
                found.append((done, float(trials.play(held, decide, windows).mean())))
                print(f"{done} decisions: {np.mean(costs or [np.nan]):.0f}, held out {found[-1][1]:.0f}", flush=True)
            with app.episode() as episode:
                over = False
                while not over:
                    obs, reward, over, _, info = env.step(episode.act(obs["jobs"], mask=obs["action_mask"]))
                    episode.reward(reward)
                    done += 1
            costs.append(info["cost"])
            obs, _ = env.reset()
        found.append((done, float(trials.play(held, decide, windows).mean())))
    return found, {name: float(costs.mean()) for name, costs in trials.compare(held, windows).items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", nargs="?", default="localhost:50051")
    parser.add_argument("--steps", type=int, default=200_000)
    options = parser.parse_args()
    found, rules = main(options.address, options.steps)
    print("mean bounded slowdown of windows that were held out:")
    print(f"learned {found[-1][1]:.0f}, " + ", ".join(f"{name} {cost:.0f}" for name, cost in rules.items()))
