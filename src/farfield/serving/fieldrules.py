"""A field of a spec in, the check of its columns out: dtype, shape, finite numbers, bounds, choices."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from farfield.errors import SpecError
from farfield.types import Array, Field, Kind

Leading = tuple[int, ...]
Rule = Callable[[str, Array, Leading], None]  # name of the column, the column, its axes before those of the field


def observations(field: Field) -> Rule:
    """Give what an observation column is checked by."""
    if field.kind is Kind.BOX:
        return partial(_box, *_dtyped(field), *_bounds(field))
    return actions(field)


def actions(field: Field) -> Rule:
    """Give what an action column is checked by; continuous ones have no bounds: policies explore beyond them."""
    dtype, shape = _dtyped(field)
    if field.kind is Kind.BOX:
        return partial(_box, dtype, shape, None, None)
    sizes = {Kind.MULTI_BINARY: (2,), Kind.DISCRETE: field.sizes}.get(field.kind)
    if sizes is None and len(set(field.sizes)) == 1:
        sizes = field.sizes[:1]
    most = sizes[0] if sizes else np.asarray(field.sizes)
    return partial(_choices, dtype, shape, most)


def numbers(name: str, column: Array, dtype: "np.dtype[np.generic]", shape: Leading) -> None:
    """Refuse another dtype or shape, and what is not finite."""
    if column.dtype != dtype or column.shape != shape:
        raise SpecError(differs(name, dtype, shape, column))
    finite(name, column)


def finite(name: str, column: Array) -> None:
    """Refuse NaN and infinity: one dot product, unless something is wrong (or huge)."""
    if column.dtype.kind != "f":
        return
    flat = column.reshape(-1)
    if math.isfinite(flat.dot(flat)):
        return
    bad = ~np.isfinite(column)
    if bad.any():
        place = tuple(int(at) for at in np.argwhere(bad)[0])
        raise SpecError(
            f"column {name!r}, element {list(place)}: expected a finite number, came {column[place]}: "
            "check what the program observes and rewards before it hands it over"
        )


def differs(name: str, dtype: "np.dtype[np.generic]", shape: Leading, column: Array) -> str:
    """Say that a column is of another dtype or shape."""
    return f"column {name!r}: expected {dtype} {list(shape)}, came {column.dtype} {list(column.shape)}"


def _box(
    dtype: "np.dtype[np.generic]",
    shape: Leading,
    low: Array | None,
    high: Array | None,
    name: str,
    column: Array,
    leading: Leading,
) -> None:
    numbers(name, column, dtype, leading + shape)
    for bound, beyond in ((low, np.less), (high, np.greater)):
        if bound is None:
            continue
        bad = beyond(column, bound)
        if np.count_nonzero(bad):
            place = tuple(int(at) for at in np.argwhere(bad)[0])
            limit = np.broadcast_to(bound, column.shape)[place]
            side = "least" if bound is low else "most"
            raise SpecError(
                f"column {name!r}, element {list(place)}: expected at {side} {limit} (its declared bound; for floats "
                f"beyond it by the width of the range), came {column[place]}"
            )


def _choices(
    dtype: "np.dtype[np.generic]", shape: Leading, most: "int | Array", name: str, column: Array, leading: Leading
) -> None:
    if column.dtype != dtype or column.shape != leading + shape:
        raise SpecError(differs(name, dtype, leading + shape, column))
    if dtype.kind == "b" or not column.size:
        return
    if dtype.kind == "f":
        finite(name, column)
        bad = (column < 0) | (column >= most) | (column != np.floor(column))
    else:
        unsigned = column.view(f"u{dtype.itemsize}")  # what is negative becomes huge
        if isinstance(most, int) and np.maximum.reduce(unsigned, axis=None) < most:
            return
        bad = unsigned >= most
    if bad.any():
        place = tuple(int(at) for at in np.argwhere(bad)[0])
        limit = int(np.broadcast_to(most, column.shape)[place])
        raise SpecError(f"column {name!r}, element {list(place)}: expected 0 to {limit - 1}, came {column[place]}")


def _dtyped(field: Field) -> tuple["np.dtype[np.generic]", Leading]:
    return np.dtype(field.dtype), field.shape


def _bounds(field: Field) -> tuple[Array | None, Array | None]:
    """Give the lowest and highest values that are taken; none where there is nothing to compare."""
    dtype = np.dtype(field.dtype)
    low = np.asarray(field.low or (-math.inf,), np.float64)
    high = np.asarray(field.high or (math.inf,), np.float64)
    if dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            width = high - low
        # With one bound alone, its own size stands for the width.
        low = low - np.where(np.isfinite(width), width, np.maximum(1, np.abs(low)))
        high = high + np.where(np.isfinite(width), width, np.maximum(1, np.abs(high)))
        least, most = -float(np.finfo(dtype).max), float(np.finfo(dtype).max)
    else:
        least, most = float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)
    floor = None if (low <= least).all() else _shaped(field, np.clip(low, least, most))
    ceiling = None if (high >= most).all() else _shaped(field, np.clip(high, least, most))
    return floor, ceiling


def _shaped(field: Field, bound: Array) -> Array:
    dtype = np.dtype(field.dtype if np.dtype(field.dtype).kind == "f" else np.float64)
    shaped = bound.astype(dtype)
    return shaped.reshape(field.shape) if len(bound) > 1 else shaped.reshape(())
