"""A corridor in which what was seen at its start decides which way is right at its end."""

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Floats = npt.NDArray[np.float32]


class MemoryCorridor(gymnasium.Env[Floats, np.int64]):
    """See a sign (left or right), walk on for `length` steps, turn as the sign said: +1, the other way -1.

    Observations are (sign, end of the corridor): the sign is -1 or 1 in the first one and 0 later. Whoever forgets it
    can only guess: 0 on average. Actions on the way change nothing.
    """

    def __init__(self, length: int = 4) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._length, self._walked, self._sign = length, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        """Put up a new sign."""
        super().reset(seed=seed)
        self._walked, self._sign = 0, int(self.np_random.integers(2))
        return np.array([2 * self._sign - 1, 0], np.float32), {}

    def step(self, action: np.int64) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Walk on, or turn where the corridor ends."""
        if self._walked == self._length:
            return np.zeros(2, np.float32), 1.0 if action == self._sign else -1.0, True, False, {}
        self._walked += 1
        return np.array([0, self._walked == self._length], np.float32), 0.0, False, False, {}
