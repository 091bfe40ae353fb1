"""Actions in, ticks out, from single environments stepped one after another; can be repeated from seeds and actions."""

from collections.abc import Sequence
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from farfield.errors import ConfigError, EnvError, SpecError
from farfield.experience import finite, spaces
from farfield.experience.seeds import episode_seed
from farfield.types import Array, Columns, Tick

Env = gymnasium.Env[Any, Any]


class SingleLanes:
    """Environments side by side; the tick after an end is only a reset (its `valid` is false).

    Episode k of lane i is reset with a seed made from (seed, i, k), so that `state` needs no more than k and the
    actions since. A tick's arrays belong to whoever asked for it.
    """

    backend = "sync"

    def __init__(
        self, envs: Sequence[Env], *, name: str, layout: spaces.Layout, skip: int, seed: int, replayable: bool
    ) -> None:
        bare = [_bare(env) for env in envs]
        self._envs, self._limit = [env for env, _ in bare], bare[0][1]
        self._name, self._layout, self._skip, self._seed = name, layout, skip, seed & 0xFFFFFFFFFFFFFFFF
        self.spec, self.count, self.replayable = layout.spec, len(envs), replayable
        self._leaves = [(leaf, leaf.field.name, leaf.field.shape, leaf.dtype) for leaf in layout.observations]
        self._episode = [-1] * self.count
        self._age = [0] * self.count  # environment steps since the reset
        self._ended = [True] * self.count
        self._rows: list[Columns] = []  # actions of all lanes, from the oldest one that is still of use
        self._begun = [0] * self.count  # row at which each lane's episode began
        self._obs: Columns = {}

    def reset(self) -> Columns:
        """Begin a new episode in every lane and give its observations."""
        obs = self._blank()
        for lane in range(self.count):
            self._begin(lane, obs)
        self._rows, self._begun = [], [0] * self.count
        finite.check(self._name, obs, np.zeros(self.count, np.float32))
        self._obs = obs
        return obs

    def step(self, actions: Columns) -> Tick:
        """Step every lane once, or reset it where its episode ended in the tick before."""
        moves = spaces.each(self._layout, actions)
        if self.replayable:
            self._rows.append({leaf.field.name: actions[leaf.field.name].copy() for leaf in self._layout.actions})
        count, ended = self.count, self._ended
        obs, reward = self._blank(), np.zeros(count, np.float32)
        terminated, truncated, valid = np.zeros(count, np.bool_), np.zeros(count, np.bool_), np.ones(count, np.bool_)
        for lane in range(count):
            if ended[lane]:
                self._begin(lane, obs)
                valid[lane] = False
                continue
            gain, over, cut = self._advance(lane, moves[lane], obs)
            reward[lane] = gain
            if over or cut:
                terminated[lane], truncated[lane], ended[lane] = over, cut, True
        finite.check(self._name, obs, reward)
        self._obs = obs
        return Tick(obs, reward, terminated, truncated, valid, None)

    def _advance(self, lane: int, move: Any, obs: Columns) -> tuple[Any, Any, Any]:
        """Step one environment `skip` times or to its end; write its last observation, sum its rewards."""
        env, age = self._envs[lane], self._age[lane] + 1
        try:
            value, reward, over, cut, info = env.step(move)
            total: Any = reward
            while age % self._skip and not (over or cut or age == self._limit):
                value, reward, over, cut, info = env.step(move)
                total += reward
                age += 1
            self._write(lane, obs, value, info)
        except Exception as error:  # noqa: BLE001 # always raised again, with the place where it happened
            self._blame(lane, "step", error)
        self._age[lane] = age
        return total, over, cut or age == self._limit

    def _begin(self, lane: int, obs: Columns) -> None:
        """Reset one environment into its next episode."""
        self._episode[lane] += 1
        self._age[lane], self._ended[lane] = 0, False
        try:
            value, info = self._envs[lane].reset(seed=episode_seed(self._seed, lane, self._episode[lane]))
            self._write(lane, obs, value, info)
        except Exception as error:  # noqa: BLE001 # always raised again, with the place where it happened
            self._blame(lane, "reset", error)
        if self.replayable:
            self._begun[lane] = len(self._rows)
            self._forget(min(self._begun))

    def _forget(self, rows: int) -> None:
        if rows:
            del self._rows[:rows]
            self._begun = [begun - rows for begun in self._begun]

    def _write(self, lane: int, obs: Columns, value: Any, info: Any) -> None:
        for leaf, name, shape, dtype in self._leaves:
            if leaf.plain and type(value) is np.ndarray and value.shape == shape and value.dtype == dtype:
                obs[name][lane] = value
            else:
                obs[name][lane] = spaces.read(leaf, value, info, ())

    def _blank(self) -> Columns:
        return {name: np.empty((self.count, *shape), dtype) for _, name, shape, dtype in self._leaves}

    def _blame(self, lane: int, call: str, error: Exception) -> NoReturn:
        where = f"{self._name}, lane {lane}, episode {self._episode[lane]}, {call}()"
        if isinstance(error, SpecError):
            raise SpecError(f"{where}: {error}") from error
        raise EnvError(f"{where} raised {type(error).__name__}: {error}; repair the environment") from error

    def state(self) -> Columns:
        """Give all that `restore` needs to bring every lane where it is; nothing where lanes are not replayable."""
        if not self.replayable or not self._obs:
            return {}
        rows = len(self._rows)
        columns: Columns = {
            "seed": np.array([self._seed], np.uint64),
            "episode": np.array(self._episode, np.int64),
            "length": np.array([rows - begun for begun in self._begun], np.int64),
        }
        for leaf in self._layout.actions:
            name, shape = leaf.field.name, leaf.field.shape
            pieces = [row[name][lane] for lane in range(self.count) for row in self._rows[self._begun[lane] :]]
            columns[name] = np.stack(pieces) if pieces else np.empty((0, *shape), leaf.field.dtype)
        return columns | {name: column.copy() for name, column in self._obs.items()}

    def restore(self, columns: Columns) -> Columns:
        """Bring every lane where it was by repeating its actions, and give the observations again."""
        if not columns:
            return self.reset()
        if not self.replayable or len(columns["episode"]) != self.count or int(columns["seed"][0]) != self._seed:
            raise ConfigError(
                f"{self._name}: expected the state of {self.count} replayable lanes with seed {self._seed}, came "
                f"{len(columns['episode'])} with seed {int(columns['seed'][0])}; use the settings that made it"
            )
        self._rows, self._begun = [], [0] * self.count
        lengths = [int(length) for length in columns["length"]]
        ends = np.cumsum(lengths)
        obs = self._blank()
        for lane, (length, end) in enumerate(zip(lengths, ends, strict=True)):
            taken = {leaf.field.name: columns[leaf.field.name][end - length : end] for leaf in self._layout.actions}
            self._repeat(lane, int(columns["episode"][lane]), taken, obs)
        self._compare(obs, columns)
        self._refill(lengths, ends, columns)
        self._obs = obs
        return obs

    def _repeat(self, lane: int, episode: int, actions: Columns, obs: Columns) -> None:
        self._episode[lane] = episode - 1
        self._begin(lane, obs)
        for move in spaces.each(self._layout, actions):
            if self._ended[lane]:
                self._differs(lane, "its episode ended early")
            _, over, cut = self._advance(lane, move, obs)
            self._ended[lane] = over or cut

    def _compare(self, obs: Columns, columns: Columns) -> None:
        for name, column in obs.items():
            same = (column == columns[name]).reshape(self.count, -1).all(axis=1)
            if not same.all():
                self._differs(int(same.argmin()), f"{name!r} is not what it was")

    def _differs(self, lane: int, how: str) -> NoReturn:
        raise EnvError(
            f"{self._name}, lane {lane}, episode {self._episode[lane]}: after repeating its actions {how}: it is not "
            "reproducible from its seed; draw all its randomness from self.np_random, keep nothing from one episode "
            "to the next, or start a new run"
        )

    def _refill(self, lengths: Sequence[int], ends: Array, columns: Columns) -> None:
        """Remember the repeated actions as if they had just been taken, each lane's at the end."""
        rows = max(lengths)
        names = [leaf.field.name for leaf in self._layout.actions]
        table = {name: np.zeros((rows, self.count, *columns[name].shape[1:]), columns[name].dtype) for name in names}
        for lane, (length, end) in enumerate(zip(lengths, ends, strict=True)):
            for name in names:
                table[name][rows - length :, lane] = columns[name][end - length : end]
        self._rows = [{name: table[name][row] for name in names} for row in range(rows)]
        self._begun = [rows - length for length in lengths]

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            env.close()


def _bare(env: Env) -> tuple[Env, int]:
    """Take off the wrappers that only count steps or check: the loop above does both for less."""
    limit = 0
    while type(env) in (TimeLimit, OrderEnforcing, PassiveEnvChecker):
        if isinstance(env, TimeLimit):
            own = env.spec.max_episode_steps if env.spec else None
            limit = min(own or limit, limit or own or 0)
        env = env.env  # pyright: ignore[reportAttributeAccessIssue]
    return env, limit
