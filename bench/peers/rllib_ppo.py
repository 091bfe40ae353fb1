"""RLlib's PPO with the settings of equal work; prints its rate and true returns."""

import argparse
import os
from typing import Any

from peers import episodes


def config(arguments: argparse.Namespace, settings: dict[str, Any]) -> Any:
    """Say the settings in RLlib's words: one process that samples, the learner beside it."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    batch = settings["lanes"] * settings["steps"]
    model = DefaultModelConfig(
        fcnet_hiddens=[settings["hidden"]] * 2, fcnet_activation="tanh", vf_share_layers=False, head_fcnet_hiddens=[]
    )
    return (
        PPOConfig()
        .environment("bench")
        .env_runners(
            num_env_runners=1,
            num_envs_per_env_runner=settings["lanes"],
            rollout_fragment_length=settings["steps"],
        )
        .training(
            train_batch_size_per_learner=batch,
            minibatch_size=settings["minibatch"],
            num_epochs=settings["epochs"],
            lr=settings["rate"],
            gamma=settings["gamma"],
            lambda_=settings["lam"],
            entropy_coeff=settings["entropy"],
            clip_param=settings["clip"],
            vf_loss_coeff=0.5,
            vf_clip_param=float("inf"),
            use_kl_loss=False,
            grad_clip=settings["norm"],
            grad_clip_by="global_norm",
        )
        .rl_module(model_config=model)
        .reporting(min_time_s_per_iteration=None, min_sample_timesteps_per_iteration=0)
        .debugging(seed=arguments.seed, log_level="ERROR")
    )


def train(arguments: argparse.Namespace, settings: dict[str, Any], clock: episodes.Clock) -> dict[str, Any]:
    """Call `algorithm.train` until the clock stops it; each call samples once and updates once."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    import torch
    from ray.tune.registry import register_env

    torch.set_num_threads(1)
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR", num_cpus=2)
    log, env = str(clock.log), arguments.env
    register_env("bench", lambda _: episodes.make(env, log))
    algorithm = config(arguments, settings).build_algo()
    steps = 0
    while True:
        result = algorithm.train()
        steps = int(result["num_env_steps_sampled_lifetime"])
        if clock.updated(steps):
            break
    facts = {"library": f"ray {ray.__version__} rllib, torch {torch.__version__}"}
    algorithm.stop()
    ray.shutdown()
    return facts


if __name__ == "__main__":
    episodes.run("rllib", train)
