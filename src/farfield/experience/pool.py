"""The id of an environment in; an EnvPool of it out, if it was tested equal to Gymnasium's."""

import warnings
from importlib.util import find_spec
from typing import Any

from farfield.errors import ConfigError

# tests/test_pool.py proves each of them; docs/environments.md says how.
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
            f'lanes.backend = "envpool": {env} of EnvPool is not known to equal Gymnasium\'s ({reason}); '
            f'equal are {", ".join(sorted(EQUAL))}; set lanes.backend = "auto"'
        )
    if find_spec("envpool") is None:
        raise ConfigError('lanes.backend = "envpool": EnvPool is not installed; pip install envpool')
    limits = {"max_episode_steps": limit} if limit else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the precision of bounds, which we do not read
        import envpool

        made: Any = envpool.make(
            env, env_type="gymnasium", num_envs=count, num_threads=min(threads, count), seed=seed, **limits
        )
        _ = made.observation_space, made.action_space  # made, with those warnings, when first asked for
    return made
