"""What to do where no policy can decide: a spec and what is allowed in; an action, random or as declared, out."""

import math
from typing import Any

import numpy as np

from farfield.errors import ConfigError, SpecError
from farfield.experience.intake import Intake, given
from farfield.types import Array, Columns, Field, Kind, Spec

WORDS = ("random", "last", "remote")  # of a fallback that is no action


class Guess:
    """Decides for one episode; a declared action that is not allowed gives way to a random one that is."""

    def __init__(self, spec: Spec, lanes: int, fallback: Any) -> None:
        self._spec, self._lanes, self._N = spec, lanes, max(lanes, 1)
        self._intake = Intake(spec, lanes)
        self._declared: Columns | None = None
        if not isinstance(fallback, str):
            self._declared = self._declare(fallback)
        elif fallback not in WORDS:
            raise ConfigError(f"fallback: expected {', '.join(map(repr, WORDS))} or an action, came {fallback!r}")
        self._random = np.random.default_rng()

    def columns(self, obs: Any, mask: Any) -> Columns:
        """Give checked observations [N, …]."""
        return self._intake.read(obs, mask)

    def sound(self, columns: Columns, action: Any) -> bool:
        """Say whether an action that came from elsewhere is one of this spec's, and allowed."""
        try:
            self._intake.permit(columns, self._intake.choice(action))
        except SpecError:
            return False
        return True

    def __call__(self, obs: Any, mask: Any) -> Any:
        """Decide."""
        columns = self.columns(obs, mask)
        if self._declared is not None:
            action = given(self._spec, {name: value.copy() for name, value in self._declared.items()}, self._lanes)
            if self.sound(columns, action):
                return action
        drawn = {field.name: self._draw(field, columns) for field in self._spec.actions}
        return given(self._spec, drawn, self._lanes)

    def _declare(self, fallback: Any) -> Columns:
        """Take one action for all lanes, or one for each."""
        try:
            return self._intake.choice(fallback)
        except SpecError:
            if not self._lanes:
                raise
        single = Intake(self._spec, 0).choice(fallback)
        return {name: np.repeat(value, self._N, axis=0) for name, value in single.items()}

    def _draw(self, field: Field, columns: Columns) -> Array:
        shape = (self._N, *field.shape)
        if field.kind is Kind.MULTI_BINARY:
            return self._random.integers(0, 2, shape).astype(field.dtype)
        if field.kind is Kind.BOX:
            return self._number(field, shape).astype(field.dtype)
        parts: list[Array] = []
        start = 0
        for size in field.sizes:
            scores = self._random.random((self._N, size))
            if field.mask:
                scores[columns[field.mask][:, start : start + size] == 0] -= 1
            parts.append(scores.argmax(1))
            start += size
        return np.stack(parts, axis=1).reshape(shape).astype(field.dtype)

    def _number(self, field: Field, shape: tuple[int, ...]) -> Array:
        """Draw within the bounds; normally where there are none, and cut off at the one that there is."""
        low, high = (np.asarray(bound or (math.inf * sign,)) for bound, sign in ((field.low, -1), (field.high, 1)))
        low, high = (bound.reshape(field.shape) if bound.size > 1 else bound for bound in (low, high))
        bounded = np.abs(high) + np.abs(low) < 1e30
        with np.errstate(invalid="ignore", over="ignore"):
            within = low + (high - low) * self._random.random(shape)
        return np.where(bounded, within, np.clip(self._random.standard_normal(shape), low, high))
