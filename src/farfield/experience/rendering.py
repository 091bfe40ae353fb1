"""The name of an environment and how it is shown go in; one lane that can be looked at comes out."""

import os
from typing import Any, Literal

import gymnasium

from farfield.errors import ConfigError, EnvError, MissingError
from farfield.experience import catalog, spaces
from farfield.experience.lanes import Config
from farfield.experience.seeds import episode_seed
from farfield.experience.single import SingleLanes

Mode = Literal["rgb_array", "ansi", "human"]


class Stage:
    """One environment as a lane, and its picture."""

    def __init__(self, lanes: SingleLanes, env: gymnasium.Env[Any, Any]) -> None:
        """Hold both; `rate` is how many pictures a second its makers meant."""
        self.lanes = lanes
        self.rate = float(env.metadata.get("render_fps") or 30)
        self._env = env.unwrapped
        self._name = env.spec.id if env.spec else type(self._env).__name__

    def picture(self) -> Any:
        """Show where the environment is now: an array [H, W, 3] of bytes, or text."""
        try:
            return self._env.render()
        except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
            raise MissingError(f"{self._name} needs a package to be rendered: {error}") from error
        except Exception as error:
            raise EnvError(
                f"{self._name}, render() raised {type(error).__name__}: {error}; repair the environment"
            ) from error


def make(env: str, config: Config, *, mode: Mode, seed: int) -> Stage:
    """Make one lane that renders; the ways that an environment lacks are refused by name."""
    entry = catalog.find(env)
    opened = catalog.open_one(entry, config.options, config.episode_limit)
    modes = opened.metadata.get("render_modes", [])
    opened.close()
    if mode not in modes or entry.entry_point is None:
        known = ", ".join(name for name in modes if name) or "nothing"
        raise ConfigError(f"{env} cannot be rendered as {mode}; it offers {known}; leave --video and --render out")
    if mode != "human":
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pictures need no screen, and looking for one is noisy
    shown = gymnasium.make(
        entry,
        max_episode_steps=config.episode_limit or None,
        disable_env_checker=True,
        **(config.options | {"render_mode": mode}),
    )
    _, info = shown.reset(seed=episode_seed(seed, 0, 0))
    layout = spaces.layout(env, shown.observation_space, shown.action_space, info)
    lanes = SingleLanes([shown], name=entry.id, layout=layout, skip=config.frame_skip, seed=seed, replayable=False)
    return Stage(lanes, shown)


def modes(env: str, config: Config) -> tuple[str, ...]:
    """List the ways in which an environment can show itself."""
    opened = catalog.open_one(catalog.find(env), config.options, config.episode_limit)
    opened.close()
    return tuple(opened.metadata.get("render_modes", ()))
