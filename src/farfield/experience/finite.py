"""Columns in; nothing out, or an error that names the first field and lane that is not a number."""

from math import isfinite

import numpy as np

from farfield.errors import EnvError
from farfield.types import Array, Columns


def check(name: str, obs: Columns, reward: Array) -> None:
    """Refuse NaN and infinity; one dot product a field unless something is wrong (or huge)."""
    if not isfinite(reward.dot(reward)):
        _blame(name, "reward", reward)
    for field, column in obs.items():
        if column.dtype.kind == "f":
            flat = column.ravel("K")
            if not isfinite(flat.dot(flat)):
                _blame(name, f"observation {field!r}", column)


def _blame(name: str, field: str, column: Array) -> None:
    bad = ~np.isfinite(column.reshape(len(column), -1)).all(axis=1)
    if bad.any():
        lane = int(bad.argmax())
        raise EnvError(
            f"{name}, lane {lane}: {field} is {column[lane].tolist()}; expected finite numbers; "
            "repair the environment, or end the episode before it diverges"
        )
