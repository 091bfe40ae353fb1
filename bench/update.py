"""One PPO update, ours beside PyTorch eager in CleanRL's style: on one core, taking turns, medians and their ratio.

Usage: update.py --torch-python PYTHON [--json] [--repeat 15]; PYTHON is an interpreter that has torch. Ours is all that
`learn` and `weights` do, values and V-trace included; PyTorch's side is its epochs alone (CleanRL has values).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

CORE = max(os.sched_getaffinity(0))
# steps, lanes, width of an observation, actions, epochs, minibatch, name, ratio to reach (0: none is set)
SIZES = (
    (512, 16, 8, 4, 4, 256, "update_8192x4", 4.5),
    (128, 8, 4, 2, 10, 256, "update_1024x10", 0.0),
)


def ours(size: tuple[Any, ...]) -> Callable[[], float]:
    """Make what runs our update once and says how long it took."""
    import numpy as np

    from farfield.learning import networks
    from farfield.learning.algorithms import ppo
    from farfield.types import Field, Kind, Spec

    T, B, width, actions, epochs, minibatch = size[:6]
    spec = Spec(
        (Field("obs", Kind.BOX, "float32", (width,)),), (Field("action", Kind.DISCRETE, "int64", (), (actions,)),)
    )
    config = ppo.Config(epochs=epochs, minibatch=minibatch)
    algorithm = ppo.make(config, spec=spec, network=networks.Config(hidden=(64, 64)), steps=T, lanes=B, seed=1)
    rng = np.random.default_rng(0)
    batch = {
        "obs": rng.standard_normal((T + 1, B, width)).astype(np.float32),
        "action": rng.integers(0, actions, (T, B)),
        "reward": rng.standard_normal((T, B)).astype(np.float32),
        "log_prob": np.full((T, B), -np.log(actions), np.float32),
        "valid": np.ones((T, B), bool),
        "terminated": rng.random((T, B)) < 0.01,
        "truncated": np.zeros((T, B), bool),
        "first": np.zeros((T, B), bool),
    }

    def once() -> float:
        begun = time.perf_counter()
        algorithm.learn(batch)
        algorithm.weights()
        return time.perf_counter() - begun

    return once


def torch_side(size: tuple[Any, ...]) -> Callable[[], float]:
    """Make what runs the same epochs in PyTorch, written as people write them."""
    import numpy as np
    import torch
    from torch import nn
    from torch.distributions import Categorical

    torch.set_num_threads(1)
    T, B, width, actions, epochs, minibatch = size[:6]
    rows = T * B

    def layer(inputs: int, outputs: int, gain: float) -> Any:
        made = nn.Linear(inputs, outputs)
        nn.init.orthogonal_(made.weight, gain)
        nn.init.zeros_(made.bias)
        return made

    def tower(outputs: int, gain: float) -> Any:
        return nn.Sequential(
            layer(width, 64, 2**0.5), nn.Tanh(), layer(64, 64, 2**0.5), nn.Tanh(), layer(64, outputs, gain)
        )

    actor, critic = tower(actions, 0.01), tower(1, 1.0)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=1e-3, eps=1e-5)
    obs, action = torch.randn(rows, width), torch.randint(actions, (rows,))
    before, advantages, targets = torch.full((rows,), -np.log(actions)), torch.randn(rows), torch.randn(rows)

    def once() -> float:
        begun = time.perf_counter()
        clipped = []
        numbers = np.arange(rows)
        for _ in range(epochs):
            np.random.shuffle(numbers)
            for start in range(0, rows, minibatch):
                chosen = numbers[start : start + minibatch]
                policy = Categorical(logits=actor(obs[chosen]))
                far = policy.log_prob(action[chosen]) - before[chosen]
                ratio = far.exp()
                with torch.no_grad():
                    _ = ((ratio - 1) - far).mean()
                    clipped.append(((ratio - 1.0).abs() > 0.2).float().mean().item())
                advantage = advantages[chosen]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                loss_policy = torch.max(-advantage * ratio, -advantage * torch.clamp(ratio, 0.8, 1.2)).mean()
                loss_value = 0.5 * ((critic(obs[chosen]).view(-1) - targets[chosen]) ** 2).mean()
                loss = loss_policy - 0.0 * policy.entropy().mean() + 0.5 * loss_value
                optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimiser.step()
        return time.perf_counter() - begun

    return once


def serve() -> None:
    """Be PyTorch's side: a size's number comes in, the seconds of one update go out."""
    sides = [torch_side(size) for size in SIZES]
    for line in sys.stdin:
        print(sides[int(line)](), flush=True)


def compare(python: str, repeat: int) -> list[dict[str, Any]]:
    """Let both sides take turns; give figures."""
    command = [python, os.path.abspath(__file__), "--serve"]
    found: list[dict[str, Any]] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdin is not None
        assert peer.stdout is not None
        for number, size in enumerate(SIZES):
            mine = ours(size)
            times: tuple[list[float], list[float]] = ([], [])
            for _ in range(repeat + 2):
                times[0].append(mine())
                peer.stdin.write(f"{number}\n")
                peer.stdin.flush()
                times[1].append(float(peer.stdout.readline()))
            # The first two rounds warm up: compilation, allocators, caches.
            fast, slow = (statistics.median(side[2:]) for side in times)
            name, bound = size[6:]
            found += [
                {"name": f"{name}_farfield", "value": fast * 1e3, "unit": "ms", "target": None},
                {"name": f"{name}_torch", "value": slow * 1e3, "unit": "ms", "target": None},
                {"name": f"{name}_ratio", "value": slow / fast, "unit": "x", "target": bound or None},
            ]
        peer.stdin.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    known = os.environ.get("FARFIELD_BENCH_TORCH", sys.executable)
    parser.add_argument("--torch-python", default=known, help="interpreter that has torch")
    parser.add_argument("--quick", action="store_true", help="three rounds")
    parser.add_argument("--json", action="store_true", help="one line of JSON per figure")
    parser.add_argument("--repeat", type=int, default=15, help="measured rounds")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    # glibc returns large temporaries to the system at every free otherwise; both sides get the same.
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        settings = {"MALLOC_MMAP_THRESHOLD_": "67108864", "MALLOC_TRIM_THRESHOLD_": "134217728"}
        one = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | settings | one)
    os.sched_setaffinity(0, {CORE})
    if options.serve:
        return serve()
    for row in compare(options.torch_python, 3 if options.quick else options.repeat):
        goal = f"  (target {row['target']} {row['unit']})" if row["target"] else ""
        print(json.dumps(row) if options.json else f"{row['name']:26}{row['value']:9.2f} {row['unit']}{goal}")
    return None


if __name__ == "__main__":
    main()
