"""A part of a session in; the same part out, except that what its episodes write comes here and is not sent."""

import os
from collections.abc import Callable
from typing import Any

from farfield.canonical import to_json

ROWS = 128  # of a fragment


class Aside:
    """Decides as the session does: with the same versions, fallbacks, deadlines and counts."""

    def __init__(self, part: Any, emit: Callable[[bytes, int], object]) -> None:
        welcome, settings = part.welcome, part.settings
        # Not `self.part = …`: every name but these two is the part's own.
        vars(self)["part"] = part
        vars(self)["track"] = part.machine.track(
            part.slot, to_json(part.spec), run=settings.run, policy=part.policy, actor=settings.client,
            stream=os.urandom(16).hex(), seed=welcome.seed if welcome else 0, steps=ROWS, lanes=0, emit=emit,
        )  # fmt: skip

    def take(self, lanes: int) -> Any:
        """Give the track."""
        return vars(self)["track"]

    def give(self, track: Any, lanes: int) -> None:
        """Keep it: there is one episode for all of time."""

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["part"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["part"], name, value)
