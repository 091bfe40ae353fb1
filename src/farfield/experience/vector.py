"""Actions in, ticks out, from a class that steps all at once; the one place where auto-resets are normalised.

Gymnasium knows three ways to go on after an end. NEXT_STEP is ours already. SAME_STEP gives a new episode's first
observation and the last one in `info`; DISABLED is reset by us with a mask. Both become a tick with `final`.
"""

from typing import Any, NoReturn

import numpy as np
from gymnasium.vector import AutoresetMode

from farfield.errors import ConfigError, EnvError, SpecError
from farfield.experience import finite, spaces
from farfield.experience.seeds import episode_seed
from farfield.types import Array, Columns, Tick

_FLOAT = np.dtype(np.float32)


class VectorLanes:
    """A vector environment as lanes. A tick's arrays are good until the next tick."""

    replayable = False

    def __init__(self, env: Any, *, name: str, backend: str, layout: spaces.Layout, seed: int, seeded: bool) -> None:
        self._env, self._name, self._layout, self.backend = env, name, layout, backend
        self.spec, self.count = layout.spec, int(env.num_envs)
        self._mode = mode(env, name)
        self._next_step = self._mode is AutoresetMode.NEXT_STEP
        self._seed = {"seed": episode_seed(seed, 0, 0)} if seeded else {}
        leaf = layout.observations[0]  # most have only this one, as it is: name, dtype and shape of its column
        whole = (leaf.field.name, leaf.dtype, (self.count, *leaf.field.shape))
        self._whole = whole if leaf.plain and len(layout.observations) == 1 else None
        self._direct = layout.actions[0].field.name if spaces.direct(layout) else ""  # the one action, if as it is
        self._step = env.step
        self._all = np.ones(self.count, np.bool_)
        self._all.flags.writeable = False
        self._none = bytes(self.count)
        self._ended: Array = np.zeros(self.count, np.bool_)
        self._resting = False  # whether any lane ended in the tick before

    def reset(self) -> Columns:
        """Begin a new episode in every lane and give its observations; the first time from the seed."""
        value, info = self._reset(**self._seed)
        self._seed = {}
        self._ended, self._resting = np.zeros(self.count, np.bool_), False
        obs = self._columns(value, info)
        finite.check(self._name, obs, np.zeros(self.count, np.float32))
        return obs

    def step(self, actions: Columns) -> Tick:
        """Step every lane once."""
        move = actions[self._direct] if self._direct else spaces.moves(self._layout, actions)
        try:
            value, reward, terminated, truncated, info = self._step(move)
        except Exception as error:  # noqa: BLE001 # always raised again, with the place where it happened
            self._blame("step", error)
        obs = self._columns(value, info)
        if reward.dtype is not _FLOAT:
            reward = reward.astype(np.float32)
        finite.check(self._name, obs, reward)
        ended = terminated | truncated
        any_ended = ended.tobytes() != self._none
        if self._next_step:
            valid = self._all
            if self._resting:
                valid = ~self._ended
                reward = reward * valid
                terminated, truncated = terminated & valid, truncated & valid
                ended = ended & valid
                any_ended = ended.tobytes() != self._none
            self._ended, self._resting = ended, any_ended
            return Tick(obs, reward, terminated, truncated, valid, None)
        final = None
        if any_ended:
            obs, final = self._renew(obs, info, ended)
        return Tick(obs, reward, terminated, truncated, self._all, final)

    def _renew(self, obs: Columns, info: Any, ended: Array) -> tuple[Columns, tuple[Array, Columns]]:
        """Give what the policy sees next, and the ended lanes with their last observations."""
        lanes = np.flatnonzero(ended)
        if self._mode is AutoresetMode.SAME_STEP:
            return obs, (lanes, self._last(info, lanes))
        last = {name: column[lanes] for name, column in obs.items()}
        value, info = self._reset(options={"reset_mask": ended})
        fresh = self._columns(value, info)
        finite.check(self._name, fresh, np.zeros(self.count, np.float32))
        return fresh, (lanes, last)

    def _reset(self, **how: Any) -> tuple[Any, Any]:
        try:
            return self._env.reset(**how)
        except Exception as error:  # noqa: BLE001 # always raised again, with the place where it happened
            self._blame("reset", error)

    def _last(self, info: Any, lanes: Array) -> Columns:
        found = info.get("final_obs", info.get("final_observation"))
        if found is None:
            raise EnvError(
                f"{self._name}: expected info['final_obs'] from a class that resets at once, came "
                f'{sorted(info) or "an empty info"}; add it, or set lanes.backend = "sync"'
            )
        leaves = self._layout.observations
        if isinstance(found, np.ndarray) and found.dtype == object:  # an observation for each ended lane
            rows = [{leaf.field.name: spaces.read(leaf, found[lane], {}, ()) for leaf in leaves} for lane in lanes]
            last = {leaf.field.name: np.stack([row[leaf.field.name] for row in rows]) for leaf in leaves}
        else:
            last = {leaf.field.name: spaces.read(leaf, found, {}, (self.count,))[lanes] for leaf in leaves}
        finite.check(self._name, last, np.zeros(1, np.float32))
        return last

    def _columns(self, value: Any, info: Any) -> Columns:
        whole = self._whole
        if whole and type(value) is np.ndarray and value.dtype is whole[1] and value.shape == whole[2]:
            return {whole[0]: value}
        try:
            leaves = self._layout.observations
            return {leaf.field.name: spaces.read(leaf, value, info, (self.count,)) for leaf in leaves}
        except Exception as error:  # noqa: BLE001 # always raised again, with the place where it happened
            self._blame("step or reset", error)

    def _blame(self, call: str, error: Exception) -> NoReturn:
        where = f"{self._name} ({self.backend}, all lanes), {call}()"
        if isinstance(error, SpecError):
            raise SpecError(f"{where}: {error}") from error
        raise EnvError(
            f"{where} raised {type(error).__name__}: {error}; repair the environment, or set "
            'lanes.backend = "sync" to see the lane'
        ) from error

    def state(self) -> Columns:
        """Give nothing: these lanes cannot be brought back to where they are."""
        return {}

    def restore(self, columns: Columns) -> Columns:
        """Begin anew; a state of replayable lanes is refused."""
        if columns:
            raise ConfigError(
                f'{self._name}: lanes of {self.backend} cannot be restored; set lanes.backend = "auto" or "sync" as in '
                "the run that made the state"
            )
        return self.reset()

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


def mode(env: Any, name: str) -> AutoresetMode:
    """Read how a vector environment goes on after an end."""
    found = env.metadata.get("autoreset_mode")
    if isinstance(found, AutoresetMode):
        return found
    raise ConfigError(
        f"{name}: expected metadata['autoreset_mode'] to be a gymnasium.vector.AutoresetMode, came {found!r}; add it "
        'to the vector class, or set lanes.backend = "sync"'
    )
