"""The name of an environment in; what Gymnasium registered under it, or the environment itself, out."""

from importlib import import_module
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

import farfield.envs
from farfield.errors import ConfigError, EnvError, MissingError, nearest

_INSTALLS = {  # what an entry point's folder, or the part of an id before the slash, needs
    "box2d": "gymnasium[box2d]",
    "classic_control": "gymnasium[classic-control]",
    "mujoco": "gymnasium[mujoco]",
    "toy_text": "gymnasium[toy-text]",
    "phys2d": "gymnasium[jax]",
    "tabular": "gymnasium[jax]",
    "ALE": "ale-py",
    "minigrid": "minigrid",
    "highway": "highway-env",
    "dm_control": "shimmy[dm-control]",
}


def names() -> list[str]:
    """List every environment that is registered now, ours included."""
    return sorted({*gymnasium.registry, *farfield.envs.IDS})


def find(env: str) -> EnvSpec:
    """Look up a Gymnasium id, or `package:Env-v0` after importing the package."""
    package, colon, name = env.rpartition(":")
    if colon:
        try:
            import_module(package)
        except ImportError as error:
            raise ConfigError(
                f"env = {env!r}: {package!r} cannot be imported ({error}); install it, or start where Python finds it"
            ) from error
        except Exception as error:
            raise EnvError(
                f"env = {env!r}: importing {package!r} raised {type(error).__name__}: {error}; repair the module"
            ) from error
    spec = gymnasium.registry.get(name)
    if spec is None:
        install = _INSTALLS.get(name.partition("/")[0]) if "/" in name else None
        cure = f"pip install {install!r}; " if install else ""
        raise ConfigError(
            f"env = {env!r} is not registered; {cure}{nearest(name, names())} "
            "(an environment of your own is named package:Env-v0)"
        )
    return spec


def open_one(spec: EnvSpec, options: dict[str, Any], limit: int) -> gymnasium.Env[Any, Any]:
    """Make one environment without rendering; `limit` steps end an episode where it is not 0."""
    if "render_mode" in options:
        raise ConfigError("lanes.options.render_mode: environments are stepped without rendering; leave it out")
    silent = {"render_mode": None} if "render_mode" in spec.kwargs else {}
    try:
        return gymnasium.make(spec, max_episode_steps=limit or None, disable_env_checker=True, **options, **silent)
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        folder = str(spec.entry_point).removeprefix("gymnasium.envs.").partition(".")[0]
        install = _INSTALLS.get(folder)
        cure = f"pip install {install!r}" if install else "install what it names"
        raise MissingError(f"{spec.id} needs a package that is not installed ({error}); {cure}") from error
    except TypeError as error:
        raise ConfigError(f"{spec.id} cannot be made with options {options}: {error}; check lanes.options") from error
    except Exception as error:
        raise EnvError(f"{spec.id} cannot be made: {type(error).__name__}: {error}; repair the environment") from error
