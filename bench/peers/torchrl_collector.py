"""TorchRL's collector on LunarLander-v3, with a policy of two layers and one thread; prints its rate.

Nothing is trained: this is the most that a program which feeds TorchRL this way can reach.
"""

import argparse
from typing import Any

from peers import episodes

ENV = "LunarLander-v3"
BATCH = 1024  # steps of one delivery


def policy(hidden: int) -> Any:
    """Make the network of equal work in TorchRL's words: it samples, and gives the log-probability."""
    import torch
    from tensordict.nn import TensorDictModule
    from torchrl.modules import MLP, ProbabilisticActor

    network = MLP(in_features=8, out_features=4, num_cells=[hidden, hidden], activation_class=torch.nn.Tanh)
    return ProbabilisticActor(
        TensorDictModule(network, in_keys=["observation"], out_keys=["logits"]), in_keys=["logits"],
        distribution_class=torch.distributions.Categorical, return_log_prob=True,
    )  # fmt: skip


def collect(arguments: argparse.Namespace, settings: dict[str, Any], clock: episodes.Clock) -> dict[str, Any]:
    """Take batches until the time is over."""
    import tensordict
    import torch
    import torchrl
    from torchrl.collectors import Collector
    from torchrl.envs import GymWrapper

    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    env = GymWrapper(episodes.make(ENV, str(clock.log)), categorical_action_encoding=True)
    collector = Collector(
        env, policy(settings["hidden"]), frames_per_batch=BATCH, total_frames=-1, auto_register_policy_transforms=False
    )
    steps = 0
    for batch in collector:
        steps += batch.numel()
        if clock.updated(steps):
            break
    collector.shutdown()
    versions = f"torchrl {torchrl.__version__}, tensordict {tensordict.__version__}, torch {torch.__version__}"
    return {"library": versions}


if __name__ == "__main__":
    import sys

    sys.argv[1:1] = ["--env", ENV]
    episodes.run("torchrl_collector", collect)
