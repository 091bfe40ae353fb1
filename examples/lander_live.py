"""LunarLander as a program in the field: start `farfield serve` in one terminal, and this in another."""

import argparse
from collections import deque

import gymnasium
import numpy as np

import farfield

SPEC = farfield.spec(obs=farfield.box(8), action=farfield.discrete(4))
PPO = {
    "algorithm": {
        "kind": "ppo", "epochs": 10, "minibatch": 256, "learning_rate": 1e-3,
        "gamma": 0.999, "lam": 0.98, "entropy": 0.01,
    },
    "lanes": {"count": 8, "steps": 256},  # a batch: 8 fragments of 256 steps
}  # fmt: skip
DQN = {
    "algorithm": {"kind": "dqn", "learning_rate": 5e-4, "epsilon_steps": 50_000, "target_every": 1, "tau": 0.005},
    "network": {"hidden": [128, 128], "activation": "relu"},
    "lanes": {"count": 1, "steps": 32},
    "feed": {"ratio": 8.0, "warmup": 2_000},
}
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("address", nargs="?", default="localhost:50051")
parser.add_argument("--algorithm", choices=["ppo", "dqn"], default="ppo")
parser.add_argument("--run", default="")
parser.add_argument("--token", default="")
parser.add_argument("--steps", type=int, default=1_000_000)
parser.add_argument("--until", type=float, default=200.0, help="stop at this mean return of 100 episodes")
options = parser.parse_args()

env = gymnasium.make("LunarLander-v3")
run = options.run or f"lander-{options.algorithm}"
returns, steps, episodes = deque(maxlen=100), 0, 0
config = PPO if options.algorithm == "ppo" else DQN
# The lander falls as fast as it is computed, so that it waits for its learner; a real one leaves `pace` out.
with farfield.connect(options.address, run=run, spec=SPEC, token=options.token, config=config, pace=True) as app:
    app.wait(60)  # for a first policy; without this, random actions until it comes
    episode = app.episode()
    while steps < options.steps and not (len(returns) == 100 and np.mean(returns) >= options.until):
        obs, _ = env.reset()
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(episode.act(obs))
            episode.reward(reward)
            total, steps, over = total + reward, steps + 1, terminated or truncated
        episode.end(truncated=not terminated, obs=obs)
        returns.append(total)
        episodes += 1
        if episodes % 50 == 0:
            print(f"{steps} steps, version {app.counters().version}: mean return {np.mean(returns):.0f}", flush=True)
    print(f"{steps} steps, mean return {np.mean(returns):.0f}; {app.counters()}")
