"""Observations in, decisions out; and what the session recorded of each: the row to learn from."""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from farfield.codec import decode_fragment
from farfield.compat.rl4sys.aside import Aside
from farfield.compat.rl4sys.common.action import RL4SysAction
from farfield.errors import SpecError
from farfield.experience.episode import Episode, Manner
from farfield.experience.parts import Part
from farfield.types import Columns, Fragment, Spec


class Row(NamedTuple):
    """One decision in a fragment that the session made, and that is sent nowhere as it is."""

    fragment: Fragment
    t: int
    names: tuple[str, ...]  # of its observations

    @property
    def version(self) -> int:
        """Say which version decided."""
        versions = self.fragment.columns.get("version")
        return self.fragment.version if versions is None else int(versions[self.t])

    def seen(self) -> Columns:
        """Give what was seen."""
        return {name: self.fragment.columns[name][self.t, 0].copy() for name in self.names}  # the bytes may be anywhere

    def value(self, name: str) -> Any:
        """Give what is in another column."""
        return self.fragment.columns[name][self.t, 0]


class Decisions:
    """Decides by an episode of the session whose fragments come back here; one thread at a time.

    A program adds decisions when and where it likes, or never; what it added is written by `Writing` in that order.
    What only the session knows of a decision (its noise, the probability of the action, the version) is in the
    fragments of this episode.
    """

    def __init__(self, part: Any, manner: Manner, spec: Spec, show: Callable[[Any], Any]) -> None:
        self._show = show  # what a program gets for what was chosen
        self._names = tuple(field.name for field in spec.observations)
        self._inputs = spec.observations[0].shape
        self._whole = np.ones(spec.actions[0].sizes, np.bool_) if "mask" in self._names else None
        self._payloads: deque[bytes] = deque()  # also from the session's own thread
        self._waiting: deque[tuple[int, RL4SysAction]] = deque()  # decided, and no fragment has come yet
        aside = Aside(part, lambda payload, rows: self._payloads.append(payload))
        self._track = aside.take(0)
        self._episode = Episode(cast("Part", aside), 0, manner, lambda episode: None)

    def decide(self, obs: Any, mask: Any) -> RL4SysAction:
        """Ask for an action."""
        chosen = self._episode.act(self.seen(obs, mask))
        action = RL4SysAction(obs, mask=mask, version=self._track.version)
        action.act, action.shown = self._show(chosen), self._show(chosen)
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

    def known(self, action: RL4SysAction) -> Columns:
        """Give what was seen when an action was chosen, even where the program wrote over its array since."""
        row = self.find(action)
        return self.seen(action.obs, action.mask) if row is None else row.seen()

    def seen(self, obs: Any, mask: Any) -> Columns:
        """Bring an observation and a mask into the form of the spec; a leading axis of length 1 is dropped."""
        given: Columns = {"obs": flat("obs", obs, np.float32, self._inputs)}
        if self._whole is not None:
            given["mask"] = self._whole if mask is None else flat("mask", mask, np.float32, self._whole.shape) > 0
        elif mask is not None:
            raise SpecError(
                "mask: expected none, since the actions are numbers or the file says mask = false; came one"
            )
        return given

    def _sort(self) -> None:
        """Give decisions the rows that have come."""
        while self._payloads:
            fragment = decode_fragment(self._payloads.popleft())
            first, stop = fragment.decision, fragment.decision + len(fragment.columns["reward"])
            while self._waiting and self._waiting[0][0] < stop:
                n, action = self._waiting.popleft()
                if n >= first:
                    action.row = Row(fragment, n - first, self._names)


def flat(name: str, value: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Give an array, a list or a tensor of another library as an array of this shape."""
    if hasattr(value, "detach"):  # a tensor that remembers where it came from gives no array
        value = value.detach().cpu()
    try:
        array = np.asarray(value, dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecError(f"{name}: expected {list(shape)} numbers, came a {type(value).__name__}: {error}") from error
    if array.size != shape[0]:
        raise SpecError(
            f"{name}: expected {shape[0]} numbers, came shape {list(array.shape)}; see the file's input_size"
        )
    return array.reshape(shape)
