"""Sample Factory's asynchronous PPO with the settings of equal work; prints its rate and true returns."""

import argparse
import functools
import importlib.metadata
import logging
import tempfile
from typing import Any

from peers import episodes


def make(name: str, config: Any = None, env_config: Any = None, render_mode: Any = None, *, log: str) -> Any:
    """Make one environment in a worker."""
    import torch

    torch.set_num_threads(1)
    return episodes.make(name, log)


def options(arguments: argparse.Namespace, settings: dict[str, Any], workers: int, folder: str) -> dict[str, Any]:
    """Say the settings in Sample Factory's words."""
    return {
        "algo": "APPO", "env": arguments.env, "experiment": "bench", "train_dir": folder, "seed": arguments.seed,
        "device": "cpu", "restart_behavior": "overwrite", "async_rl": True, "serial_mode": False,
        "num_workers": workers, "num_envs_per_worker": settings["lanes"] // workers, "worker_num_splits": 2,
        "policy_workers_per_policy": 1, "rollout": settings["steps"], "recurrence": 1, "use_rnn": False,
        "batch_size": settings["minibatch"],
        "num_batches_per_epoch": settings["lanes"] * settings["steps"] // settings["minibatch"],
        "num_epochs": settings["epochs"], "learning_rate": settings["rate"], "gamma": settings["gamma"],
        "gae_lambda": settings["lam"], "exploration_loss_coeff": settings["entropy"],
        "ppo_clip_ratio": settings["clip"], "max_grad_norm": settings["norm"], "value_loss_coeff": 0.5,
        "ppo_clip_value": 1e6, "actor_critic_share_weights": False, "nonlinearity": "tanh",
        "normalize_input": False, "normalize_returns": False, "with_vtrace": False, "save_every_sec": 3600,
        "save_best_every_sec": 3600, "experiment_summaries_interval": 3600, "decorrelate_experience_max_seconds": 0,
        "log_to_file": False, "train_for_env_steps": 10**9, "train_for_seconds": 10**9,
        "heartbeat_reporting_interval": 3600, "set_workers_cpu_affinity": False,
    }  # fmt: skip


def train(arguments: argparse.Namespace, settings: dict[str, Any], clock: episodes.Clock) -> dict[str, Any]:
    """Run its runner; each message of the learner with its steps is one finished update."""
    import torch
    from sample_factory.algo.utils.misc import LEARNER_ENV_STEPS
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner

    torch.set_num_threads(1)
    logging.getLogger("sf").setLevel(logging.WARNING)
    register_env(arguments.env, functools.partial(make, log=str(clock.log)))
    workers = 2  # faster here than one worker with all lanes
    with tempfile.TemporaryDirectory() as folder:
        chosen = options(arguments, settings, workers, folder)
        words = [f"--{name}={value}" for name, value in chosen.items()]
        hidden = ["--encoder_mlp_layers", *[str(settings["hidden"])] * 2]
        parser, _ = parse_sf_args(argv=[*words, *hidden])
        config = parse_full_cfg(parser, argv=[*words, *hidden])
        config, runner = make_runner(config)

        def updated(runner: Any, message: dict[str, Any], policy: int) -> None:
            if message[LEARNER_ENV_STEPS] and clock.updated(message[LEARNER_ENV_STEPS]):
                runner.cfg.train_for_env_steps = 0

        runner.policy_msg_handlers[LEARNER_ENV_STEPS].append(
            updated
        )  # its `register_…` replaces the list by a function
        runner.init()
        runner.run()
    return {"library": f"sample-factory {importlib.metadata.version('sample-factory')}, torch {torch.__version__}"}


if __name__ == "__main__":
    episodes.run("sample_factory", train)
