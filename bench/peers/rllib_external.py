"""RLlib's environment outside of it: a program of its own that decides locally, over RLlink; prints rate and returns.

The program does what RLlib's own example of such a client does, on LunarLander-v3: the network's forward pass for one
observation, a draw with NumPy, one message with all episodes when a batch is full, and a wait for the next weights.
It differs in what only costs the example: it is a process of its own, with one thread of arithmetic and without a sum
over all episodes at every step.
"""

import argparse
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from peers import episodes, rllib_ppo

ENV = "LunarLander-v3"
PATIENCE = 120.0  # seconds until RLlib listens


def config(arguments: argparse.Namespace, settings: dict[str, Any], port: int) -> Any:
    """Say the settings of equal work, for a server that a program outside connects to."""
    import gymnasium
    from ray.rllib.env.external.env_runner_server_for_external_inference import EnvRunnerServerForExternalInference

    env = gymnasium.make(ENV, render_mode=None)
    return (
        rllib_ppo.config(arguments, settings)
        .environment(
            None, observation_space=env.observation_space, action_space=env.action_space, env_config={"port": port}
        )
        .env_runners(env_runner_cls=EnvRunnerServerForExternalInference, num_env_runners=1, num_envs_per_env_runner=1)
    )


class Program:
    """The program outside: its network, its connection, its open episode."""

    def __init__(self, module: Any, port: int) -> None:
        self._module = module
        self._socket = _connected(port)
        self._ask({"type": "PING"})
        self._load(self._ask({"type": "GET_STATE"}))

    def deliver(self, finished: list[Any]) -> None:
        """Send whole and cut episodes, and wait for the weights that were learned from them."""
        states = [episode.get_state() for episode in finished]
        steps = sum(map(len, finished))
        self._load(self._ask({"type": "EPISODES_AND_GET_STATE", "episodes": states, "timesteps": steps}))

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        from ray.rllib.env.external import get_rllink_message, send_rllink_message

        send_rllink_message(self._socket, message)
        return get_rllink_message(self._socket)[1]

    def _load(self, answer: dict[str, Any]) -> None:
        self._module.set_state(answer["state"]["rl_module"])


def play(arguments: argparse.Namespace) -> None:
    """Step the environment until the server goes away."""
    import numpy as np
    import torch
    from ray.rllib.core import Columns
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.utils.numpy import softmax

    torch.set_num_threads(1)
    settings = episodes.SETTINGS[ENV]
    module = config(arguments, settings, arguments.client).get_rl_module_spec().build()
    program = Program(module, arguments.client + 1)
    env, batch = episodes.make(ENV, arguments.log), settings["lanes"] * settings["steps"]
    obs, _ = env.reset(seed=arguments.seed)
    episode = SingleAgentEpisode(observations=[obs])
    gathered, steps, choices = [episode], 0, list(range(env.action_space.n))
    while True:
        rows = {Columns.OBS: torch.tensor(np.array([obs], np.float32))}
        logits = module.forward_exploration(rows)[Columns.ACTION_DIST_INPUTS][0].numpy()
        shares = softmax(logits)
        action = int(np.random.choice(choices, p=shares))
        obs, reward, terminated, truncated, _ = env.step(action)
        outputs = {Columns.ACTION_DIST_INPUTS: logits, Columns.ACTION_LOGP: float(np.log(shares[action]))}
        episode.add_env_step(
            action=action, reward=reward, observation=obs, terminated=terminated, truncated=truncated,
            extra_model_outputs=outputs,
        )  # fmt: skip
        steps += 1
        if steps == batch:
            program.deliver(gathered)
            gathered, steps = [], 0
            if not episode.is_done:
                episode = episode.cut()
                gathered.append(episode)
        if episode.is_done:
            obs, _ = env.reset()
            episode = SingleAgentEpisode(observations=[obs])
            gathered.append(episode)


def train(arguments: argparse.Namespace, settings: dict[str, Any], clock: episodes.Clock) -> dict[str, Any]:
    """Serve and learn; each call of `algorithm.train` uses one batch of the program."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    import torch

    torch.set_num_threads(1)
    port = _free()
    words = ["--client", str(port), "--log", str(clock.log), "--seed", str(arguments.seed)]
    program = subprocess.Popen([sys.executable, "-P", "-m", "peers.rllib_external", *words])
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR", num_cpus=2)
        algorithm = config(arguments, settings, port).build_algo()
        while True:
            result = algorithm.train()
            if clock.updated(int(result["num_env_steps_sampled_lifetime"])):
                break
        return {"library": f"ray {ray.__version__} rllib, RLlink, torch {torch.__version__}"}
    finally:
        program.kill()
        program.wait()


def _connected(port: int) -> socket.socket:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection(("localhost", port))
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def _free() -> int:
    """Find a port; the server listens on the one after it."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("localhost", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("localhost", port + 1))
            except OSError:
                continue
            return port


def main() -> None:
    """Be the server, or with --client the program."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--client", type=int, default=0)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    given, _ = parser.parse_known_args()
    if given.client:
        given.log, given.env = str(given.log), ENV
        play(given)
    else:
        sys.argv[1:1] = ["--env", ENV]
        episodes.run("rllib_external", train)


if __name__ == "__main__":
    main()
