"""What a program asked for and what came of it: one decision, whose reward may be set at any time."""

from collections.abc import Callable
from math import isfinite
from typing import Any

from farfield.errors import SpecError


class RL4SysAction:
    """One decision. `rew` (or `reward`) is None until it is set; `act` is what the program carries out."""

    __slots__ = ("_reward", "act", "data", "done", "mask", "obs", "owner", "row", "shown", "told", "version")

    def __init__(
        self, obs: Any = None, action: Any = None, reward: float | None = None, done: bool | None = None,
        mask: Any = None, data: dict[str, Any] | None = None, version: int = 0,
    ) -> None:  # fmt: skip
        self.obs, self.act, self.mask, self.version = obs, action, mask, version
        self.data = {} if data is None else data
        self.done = bool(done)
        self.shown: Any = None  # what `act` was at first; another one is a decision of the host
        self.owner: Any = None  # what it was added to
        self.row: Any = None  # where the session recorded the decision
        self.told: Callable[[RL4SysAction, bool], None] | None = None  # hears of later rewards
        self._reward: float | None = None
        if reward is not None:
            self.update_reward(reward)

    @property
    def rew(self) -> float | None:
        """Give the reward, if it was set."""
        return self._reward

    @rew.setter
    def rew(self, reward: float) -> None:
        self.update_reward(reward)

    @property
    def reward(self) -> float | None:
        """Give the reward, if it was set."""
        return self._reward

    @reward.setter
    def reward(self, reward: float) -> None:
        self.update_reward(reward)

    def update_reward(self, reward: float) -> None:
        """Set the reward: before or after the action was added, and also later (see docs/rl4sys.md)."""
        value = float(reward)
        if not isfinite(value):
            raise SpecError(f"reward: expected a finite number, came {value}; set what the decision was worth")
        first, self._reward = self._reward is None, value
        if self.told is not None:
            self.told(self, first)

    def set_done(self, done: bool) -> None:
        """Say whether the episode ended with it."""
        self.done = bool(done)

    def is_reward_set(self) -> bool:
        """Say whether its reward is known."""
        return self._reward is not None

    def is_done(self) -> bool:
        """Say whether the episode ended with it."""
        return self.done

    def __repr__(self) -> str:
        """Show it to a person."""
        return f"RL4SysAction(act={self.act!r}, rew={self._reward!r}, done={self.done}, version={self.version})"
