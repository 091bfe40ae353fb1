"""Observations in, decisions out; and what the session recorded of each: the row to learn from."""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any, NamedTuple, cast

import numpy as np

from farfield.codec import decode_fragment
from farfield.compat.rl4sys.aside import Aside
from farfield.compat.rl4sys.common.action import RL4SysAction
from farfield.errors import SpecError
from farfield.experience.episode import Episode, Manner
from farfield.experience.parts import Part
from farfield.types import Array, Fragment, Spec


class Row(NamedTuple):
    """What the session recorded of one decision."""

    obs: Array
    mask: Array | None
    action: Any
    log_prob: float | None  # none where the policy did not decide
    version: int
    attempt: int
    source: str


class Decisions:
    """Decides by an episode of the session whose fragments come back here; one thread at a time.

    A program adds decisions when and where it likes, or never; what it added is written by `Writing` in that order.
    What only the session knows of a decision (its noise, the probability of the action, the version) is in the
    fragments of this episode.
    """

    def __init__(self, part: Any, manner: Manner, spec: Spec, show: Callable[[Any], Any]) -> None:
        self._show = show  # what a program gets for what was chosen
        self._inputs = spec.observations[0].shape
        self._whole = np.ones(spec.actions[0].sizes, np.bool_) if spec.actions[0].mask else None
        self._payloads: deque[bytes] = deque()  # also from the session's own thread
        self._waiting: deque[tuple[int, RL4SysAction]] = deque()  # decided, and no fragment has come yet
        aside = Aside(part, lambda payload, rows: self._payloads.append(payload))
        self._track = aside.take(0)
        self._episode = Episode(cast("Part", aside), 0, manner, lambda episode: None)

    def decide(self, obs: Any, mask: Any) -> RL4SysAction:
        """Ask for an action."""
        chosen = self._episode.act(flat("obs", obs, self._inputs), self.allowed(mask))
        action = RL4SysAction(obs, self._show(chosen), mask=mask, version=self._track.version)
        action.shown = chosen if type(chosen) is int else action.act.copy()
        self._waiting.append((self._track.decision, action))
        if self._payloads:
            self._sort()
        return action

    def find(self, action: RL4SysAction) -> Row | None:
        """Give the row of a decision; none for what a program made by itself."""
        if action.row is None and action.shown is not None:
            self._track.end()  # so that its row is closed
            self._track.cut()
            self._sort()
        return action.row

    def seen(self, action: RL4SysAction) -> tuple[Array, Array | None]:
        """Give observation and mask of an action, even where the program wrote over its arrays since."""
        row = self.find(action)
        if row is not None:
            return row.obs, row.mask
        return flat("obs", action.obs, self._inputs), self.allowed(action.mask)

    def allowed(self, mask: Any) -> Array | None:
        """Give a mask in the form of the spec; without one, everything is allowed."""
        if mask is None:
            return self._whole
        if self._whole is None:
            raise SpecError(
                "mask: expected none, since the actions are numbers or the file says mask = false; came one"
            )
        return flat("mask", mask, self._whole.shape) > 0

    def _sort(self) -> None:
        """Give decisions the rows that have come."""
        while self._payloads:
            fragment = decode_fragment(self._payloads.popleft())
            rows = list(_rows(fragment))
            while self._waiting and (t := self._waiting[0][0] - fragment.decision) < len(rows):
                _, action = self._waiting.popleft()
                if t >= 0:
                    action.row = rows[t]


def _rows(fragment: Fragment) -> Iterator[Row]:
    """Take a fragment apart."""
    columns = fragment.columns
    rows = len(columns["reward"])
    # Copied, so that they are aligned and end with their last row.
    obs = np.array(columns["obs"][:rows, 0])
    masks = np.array(columns["mask"][:rows, 0]) if "mask" in columns else repeat(None)
    chosen = np.array(columns["action"][:, 0])
    scores = columns["log_prob"][:, 0].tolist() if "log_prob" in columns else repeat(None)
    versions = columns["version"].tolist() if "version" in columns else repeat(fragment.version)
    actions = chosen.tolist() if chosen.ndim == 1 else chosen
    for seen, mask, action, score, version in zip(obs, masks, actions, scores, versions, strict=False):
        yield Row(seen, mask, action, score, version, fragment.attempt, fragment.source)


def flat(name: str, value: Any, shape: tuple[int, ...]) -> Array:
    """Give an array, a list or a tensor of another library as float32 of this shape; axes of length 1 may be more."""
    if type(value) is not np.ndarray and hasattr(value, "detach"):  # a tensor that remembers its past gives no array
        value = value.detach().cpu()
    try:
        array = np.asarray(value, np.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecError(f"{name}: expected {list(shape)} numbers, came a {type(value).__name__}: {error}") from error
    if array.shape == shape:
        return array
    if array.size != shape[0]:
        cure = "set input_size and act_dim in the application's file"
        raise SpecError(f"{name}: expected {shape[0]} numbers, came shape {list(array.shape)}; {cure}")
    return array.reshape(shape)
