"""The id of an environment in; an EnvPool of it out, if it was tested equal to Gymnasium's."""

from importlib.util import find_spec
from typing import Any

from farfield.errors import ConfigError

# tests/test_lanes.py proves each of them; docs/environments.md says how.
EQUAL = frozenset(
    {
        "Acrobot-v1",
        "CartPole-v0",
        "CartPole-v1",
        "LunarLander-v3",
        "LunarLanderContinuous-v3",
        "MountainCar-v0",
        "MountainCarContinuous-v0",
    }
)
UNEQUAL = {"Pendulum-v1": "it turns the angle by the speed before clipping that to 8, Gymnasium by the clipped one"}


def make(env: str, count: int, *, threads: int, limit: int, seed: int) -> Any:
    """Make an EnvPool that steps all its environments synchronously; `limit` 0 is the environment's own."""
    if env not in EQUAL:
        reason = UNEQUAL.get(env, "it was not tested")
        raise ConfigError(
            f'env.backend = "envpool": {env} of EnvPool is not known to equal Gymnasium\'s ({reason}); '
            f'equal are {", ".join(sorted(EQUAL))}; set env.backend = "auto"'
        )
    if find_spec("envpool") is None:
        raise ConfigError('env.backend = "envpool": EnvPool is not installed; pip install envpool')
    import envpool

    limits = {"max_episode_steps": limit} if limit else {}
    return envpool.make(env, env_type="gymnasium", num_envs=count, num_threads=min(threads, count), seed=seed, **limits)
