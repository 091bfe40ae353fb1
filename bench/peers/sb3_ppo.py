"""Stable-Baselines3's PPO with the settings of equal work; prints its rate and true returns."""

import argparse
from typing import Any

from peers import episodes


def train(arguments: argparse.Namespace, settings: dict[str, Any], clock: episodes.Clock) -> dict[str, Any]:
    """Run `PPO.learn`; an update is finished when the next rollout begins."""
    import stable_baselines3
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)

    class Watch(BaseCallback):
        stop = False

        def _on_rollout_start(self) -> None:
            if self.num_timesteps:
                self.stop = clock.updated(self.num_timesteps)

        def _on_step(self) -> bool:
            return not self.stop

    env = make_vec_env(lambda: episodes.make(arguments.env, str(clock.log)), settings["lanes"], arguments.seed)
    ppo = stable_baselines3.PPO(
        "MlpPolicy",
        env,
        n_steps=settings["steps"],
        batch_size=settings["minibatch"],
        n_epochs=settings["epochs"],
        learning_rate=settings["rate"],
        gamma=settings["gamma"],
        gae_lambda=settings["lam"],
        ent_coef=settings["entropy"],
        clip_range=settings["clip"],
        max_grad_norm=settings["norm"],
        policy_kwargs={"net_arch": {"pi": [settings["hidden"]] * 2, "vf": [settings["hidden"]] * 2}},
        seed=arguments.seed,
        device="cpu",
    )
    ppo.learn(10**9, callback=Watch())
    return {"library": f"stable-baselines3 {stable_baselines3.__version__}, torch {torch.__version__}"}


if __name__ == "__main__":
    episodes.run("sb3", train)
