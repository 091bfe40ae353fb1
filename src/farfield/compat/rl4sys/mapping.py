"""Settings of an RL4Sys file in; a Spec, the config of a run and what had no effect out."""

import math
from typing import Any, NamedTuple

from farfield.compat.rl4sys.file import Settings
from farfield.errors import ConfigError
from farfield.types import Field, Kind, Spec

Plain = dict[str, Any]
KNOWN = ("PPO", "DQN", "PPO_Continuous")
PPO_DEFAULTS = {  # theirs, since a file that leaves a key out means these
    "traj_per_epoch": 25_600, "clip_ratio": 0.2, "gamma": 0.99, "lam": 0.95, "pi_lr": 3e-4, "train_pi_iters": 10,
    "target_kl": 0.015, "max_grad_norm": 0.5,
}  # fmt: skip
PPO_SAME = {
    "clip_ratio": "clip", "gamma": "gamma", "lam": "lam", "pi_lr": "learning_rate", "train_pi_iters": "epochs",
    "ent_coef": "entropy", "vf_coef": "value_coefficient", "norm_adv": "normalise_advantage",
}  # fmt: skip
PPO_OWN = {"traj_per_epoch", "batch_size", "target_kl", "max_grad_norm", "clip_vloss"}
DQN_SAME = {
    "gamma": "gamma", "learning_rate": "learning_rate", "lr": "learning_rate", "batch_size": "minibatch",
    "start_e": "epsilon_start", "epsilon": "epsilon_start", "end_e": "epsilon_end", "epsilon_min": "epsilon_end",
}  # fmt: skip
DQN_OWN = {
    "buf_size", "buffer_size", "learning_starts", "train_frequency", "train_iters", "tau", "target_network_frequency",
    "target_update", "epsilon_decay", "exploration_fraction", "total_timesteps",
}  # fmt: skip
NO_EFFECT = {
    "buf_size": "a batch is as large as traj_per_epoch says",
    "vf_lr": "policy and value have one step size, pi_lr",
    "train_v_iters": "policy and value are improved together, train_pi_iters times",
    "traj_per_epoch": "what is replayed is learned from as it comes",
}
NEVER_CUT = 1e9  # a longest gradient that nothing reaches
SLOW = 0.5  # of tau: what moves less far at a time is meant to move at every update
DQN_STEPS = 32  # rows of a fragment


class Agreed(NamedTuple):
    """What a file comes to."""

    spec: Spec
    config: Plain
    ignored: dict[str, str]


def agree(settings: Settings) -> Agreed:
    """Map a file's algorithm onto ours."""
    name = settings.algorithm_name
    if name not in KNOWN:
        raise ConfigError(f"algorithm_name = {name!r}: expected one of {', '.join(KNOWN)}")
    given = {key: _value(key, value) for key, value in settings.algorithm_parameters.items()}
    spec = _spec(settings, given)
    rest = {key: value for key, value in given.items() if key not in {"input_size", "act_dim", "seed"}}
    config, ignored = (_dqn if name == "DQN" else _ppo)(rest)
    if settings.type and settings.type != ("offpolicy" if name == "DQN" else "onpolicy"):
        ignored["type"] = f"{name} says it already"
    if name != "PPO_Continuous" and settings.act_limit is not None:
        ignored["act_limit"] = "actions are choices, which have no bounds"
    config |= {"seed": int(given.get("seed") or 0), "steps": 0, "credit_window": settings.credit_window}
    return Agreed(spec, _over(config, settings.farfield), ignored)


def _spec(settings: Settings, given: Plain) -> Spec:
    """Say what goes in and out: a vector and, for choices, a mask; one choice, or numbers within act_limit."""
    sizes: list[int] = []
    for key in ("input_size", "act_dim"):
        value = given.get(key)
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"algorithm_parameters.{key} = {value!r}: expected a whole number of at least 1")
        sizes.append(value)
    inputs, actions = sizes
    seen = Field("obs", Kind.BOX, "float32", (inputs,))
    if settings.algorithm_name == "PPO_Continuous":
        limit = float(settings.act_limit or 1.0)
        return Spec((seen,), (Field("action", Kind.BOX, "float32", (actions,), (), (-limit,), (limit,)),))
    if not settings.mask:
        return Spec((seen,), (Field("action", Kind.DISCRETE, "int64", (), (actions,)),))
    mask = Field("mask", Kind.MULTI_BINARY, "bool", (actions,))
    return Spec((seen, mask), (Field("action", Kind.DISCRETE, "int64", (), (actions,), mask="mask"),))


def _ppo(given: Plain) -> tuple[Plain, dict[str, str]]:
    whole = PPO_DEFAULTS | given
    steps, count = _batch(int(whole["traj_per_epoch"]))
    rows, wanted = steps * count, int(whole.get("batch_size") or steps * count)
    algorithm: Plain = {"kind": "ppo"} | {ours: whole[key] for key, ours in PPO_SAME.items() if key in whole}
    algorithm["minibatch"] = max(size for size in range(1, rows + 1) if rows % size == 0 and size <= max(1, wanted))
    # They stop at one and a half times the distance that is written down.
    algorithm["target_kl"] = 1.5 * (whole["target_kl"] or 0.0)
    algorithm["max_grad_norm"] = whole["max_grad_norm"] or NEVER_CUT
    if given.get("clip_vloss"):
        algorithm["value_clip"] = whole["clip_ratio"]
    ignored = _ignored(given, {*PPO_SAME, *PPO_OWN})
    if given.get("vf_lr") == whole["pi_lr"]:
        ignored.pop("vf_lr", None)
    if given.get("train_v_iters") == whole["train_pi_iters"]:
        ignored.pop("train_v_iters", None)
    return {"algorithm": algorithm, "lanes": {"count": count, "steps": steps}}, ignored


def _dqn(given: Plain) -> tuple[Plain, dict[str, str]]:
    said = {key: value for key, value in given.items() if value is not None}
    algorithm: Plain = {"kind": "dqn"} | {ours: said[key] for key, ours in DQN_SAME.items() if key in said}
    feed: Plain = {}
    ignored = _ignored(given, {*DQN_SAME, *DQN_OWN})
    if capacity := said.get("buffer_size", said.get("buf_size")):
        feed["capacity"] = int(capacity)
    if "learning_starts" in said:
        feed["warmup"] = min(int(said["learning_starts"]), feed.get("capacity", 100_000))
    updates = said.get("train_iters", 1) / max(1, said.get("train_frequency", 1))  # of the network, for each new step
    if "train_frequency" in said or "train_iters" in said:
        feed["ratio"] = updates * algorithm.get("minibatch", 64)
    every = said.get("target_network_frequency", said.get("target_update"))
    if "tau" in said:
        algorithm["tau"] = said["tau"]
    if every is not None and said.get("tau", 1.0) >= SLOW:
        algorithm |= {"target_every": max(1, round(every * updates)), "tau": said.get("tau", 1.0)}
    elif every is not None:
        ignored["target_network_frequency"] = f"tau = {said['tau']} moves the target network at every update"
    if steps := _exploration(said, algorithm):
        algorithm["epsilon_steps"] = max(1, steps)
    return {"algorithm": algorithm, "feed": feed, "lanes": {"count": 1, "steps": DQN_STEPS}}, ignored


def _exploration(said: Plain, algorithm: Plain) -> int | None:
    """Say after how many steps exploration is at its least: our epsilon falls in a straight line."""
    decay, most, least = (
        said.get("epsilon_decay"),
        algorithm.get("epsilon_start", 1.0),
        algorithm.get("epsilon_end", 0.02),
    )
    if decay and decay < SLOW:  # taken off at every step; as a factor it would end exploration at once
        return round((most - least) / decay)
    if decay and decay < 1 and most > least > 0:
        return round(math.log(least / most) / math.log(decay))
    if "exploration_fraction" in said and "total_timesteps" in said:
        return round(said["exploration_fraction"] * said["total_timesteps"])
    return None


def _batch(rows: int) -> tuple[int, int]:
    """Cut a batch of about so many steps into fragments of equal length: (steps, fragments)."""
    rows = max(1, rows)
    steps = 1
    while steps < 256 and steps * 8 <= rows:
        steps *= 2
    return steps, -(-rows // steps)


def _ignored(given: Plain, known: set[str]) -> dict[str, str]:
    return {key: NO_EFFECT.get(key, "unknown") for key in given if key not in known}


def _value(key: str, value: Any) -> Any:
    """Read a parameter; YAML takes 3e-4 for a word."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError as error:
            raise ConfigError(f"algorithm_parameters.{key} = {value!r}: expected a number") from error
    if isinstance(value, float) and value.is_integer() and key in WHOLE:
        return int(value)
    if value is not None and not isinstance(value, bool | int | float):
        raise ConfigError(f"algorithm_parameters.{key} = {value!r}: expected a number")
    return value


WHOLE = {
    "seed", "input_size", "act_dim", "traj_per_epoch", "batch_size", "train_pi_iters", "buf_size", "buffer_size",
    "learning_starts", "target_network_frequency", "target_update", "train_frequency", "train_iters",
}  # fmt: skip


def _over(below: Plain, above: Plain) -> Plain:
    """Lay what a file says in our words over what was made of theirs."""
    both = dict(below)
    for name, value in above.items():
        under = both.get(name)
        both[name] = _over(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return both
