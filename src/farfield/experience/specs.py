"""Sizes and bounds, Gymnasium's spaces, or tables of a TOML file in; a Spec out. Needs nothing but NumPy."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from msgspec import Struct

from farfield.errors import SpecError, nearest
from farfield.types import Field, Kind, Spec

Bound = float | Sequence[float] | None
_MOST = float(np.finfo(np.float32).max)  # JSON has no infinity


class Space(Struct, frozen=True):
    """What one value may be, without a name."""

    kind: Kind
    dtype: str
    shape: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


def box(shape: int | Sequence[int] = (), low: Bound = None, high: Bound = None, dtype: str = "float32") -> Space:
    """Numbers in an array of this shape; one bound for all elements, or one for each."""
    lengths = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(length < 1 for length in lengths) or np.dtype(dtype).kind not in "fiu":
        raise SpecError(f"box: expected lengths of at least 1 and a dtype of numbers, came {lengths} and {dtype!r}")
    return Space(Kind.BOX, np.dtype(dtype).name, lengths, (), _bounds(low, lengths), _bounds(high, lengths))


def discrete(n: int) -> Space:
    """One of n choices, counted from 0."""
    return Space(Kind.DISCRETE, "int64", (), (_choices(n),))


def multi_discrete(sizes: Sequence[int]) -> Space:
    """Several choices at once."""
    return Space(Kind.MULTI_DISCRETE, "int64", (len(sizes),), tuple(_choices(n) for n in sizes))


def multi_binary(shape: int | Sequence[int]) -> Space:
    """Switches, each 0 or 1."""
    return Space(Kind.MULTI_BINARY, "int8", (shape,) if isinstance(shape, int) else tuple(shape))


def spec(obs: Any, action: Any, mask: bool | Sequence[str] = False) -> Spec:
    """Describe a program: `obs` and `action` are spaces, or dicts of them by name; a space of Gymnasium will do too.

    `mask` says that the program tells what is allowed: True for all actions that have choices, or their names.
    """
    actions = [_field(name, space, acting=True) for name, space in _named("action", action)]
    masked = {field.name for field in actions if field.sizes} if mask is True else _chosen(mask or (), actions)
    fields = [_field(name, space, acting=False) for name, space in _named("obs", obs)]
    masks = [
        Field(_mask_name(field), Kind.MULTI_BINARY, "bool", (sum(field.sizes),))
        for field in actions
        if field.name in masked
    ]
    if mask and not masks:
        raise SpecError("mask: no action has choices that could be masked; leave it out")
    actions = [
        Field(f.name, f.kind, f.dtype, f.shape, f.sizes, f.low, f.high, _mask_name(f) if f.name in masked else "")
        for f in actions
    ]
    return Spec((*fields, *masks), tuple(actions))


def from_table(table: Mapping[str, Any]) -> Spec:
    """Read the section [spec] of a TOML file: obs and action are tables such as {box = [8]} or {discrete = 4}."""
    for key in table:
        if key not in ("obs", "action", "mask"):
            raise SpecError(f"[spec] unknown key {key!r}; {nearest(key, ('obs', 'action', 'mask'))}")
    lacking = [key for key in ("obs", "action") if key not in table]
    if lacking:
        raise SpecError(
            f"[spec] {lacking[0]} is missing: write it as {{box = [8]}}, {{discrete = 4}}, or a table of them"
        )
    return spec(_space(table["obs"], "obs"), _space(table["action"], "action"), table.get("mask", False))


_MAKERS: dict[str, Any] = {
    "box": box, "discrete": discrete, "multi_discrete": multi_discrete, "multi_binary": multi_binary,
}  # fmt: skip


def _space(table: Any, where: str) -> Any:
    if not isinstance(table, Mapping) or not table:
        raise SpecError(f"[spec] {where}: expected a table such as {{box = [8]}} or {{discrete = 4}}, came {table!r}")
    found = [key for key in table if key in _MAKERS]
    if not found:
        return {key: _space(value, f"{where}.{key}") for key, value in table.items()}
    options = {key: value for key, value in table.items() if key != found[0]}
    known = ("low", "high", "dtype") if found[0] == "box" else ()
    for key in options:
        if key not in known:
            raise SpecError(f"[spec] {where}: unknown key {key!r}; {nearest(key, known or (found[0],))}")
    try:
        return _MAKERS[found[0]](table[found[0]], **options)
    except (TypeError, ValueError) as error:
        raise SpecError(f"[spec] {where}: {error}") from error


def _named(name: str, space: Any) -> list[tuple[str, Any]]:
    """Give each space with the name of its column."""
    inner = getattr(space, "spaces", space)  # Gymnasium's Dict and Tuple hold theirs there
    if isinstance(inner, Mapping):
        parts = [(str(key), part) for key, part in cast("Mapping[Any, Any]", inner).items()]
    elif isinstance(inner, list | tuple):
        parts = [(str(place), part) for place, part in enumerate(cast("Sequence[Any]", inner))]
    else:
        return [(name, space)]
    if not parts:
        raise SpecError(f"{name!r}: expected at least one space, came none")
    return [found for key, part in parts for found in _named(f"{name}/{key}", part)]


def _field(name: str, space: Any, *, acting: bool) -> Field:
    own = space if isinstance(space, Space) else _from_gymnasium(name, space)
    narrowed = own.kind is Kind.BOX and (acting or own.dtype == "float64")
    dtype = "float32" if narrowed else own.dtype
    return Field(name, own.kind, dtype, own.shape, own.sizes, own.low, own.high)


def _from_gymnasium(name: str, space: Any) -> Space:
    classes = {kind.__name__ for kind in type(space).__mro__}
    if "Box" in classes:
        shape = tuple(int(length) for length in space.shape)
        low, high = (_listed(np.asarray(bound)) for bound in (space.low, space.high))
        return Space(Kind.BOX, np.dtype(space.dtype).name, shape, (), low, high)
    if "Discrete" in classes or "MultiDiscrete" in classes:
        if np.any(getattr(space, "start", 0)):
            raise SpecError(
                f"{name!r}: {space} does not count from 0; use farfield.discrete, and add its start yourself"
            )
        return discrete(int(space.n)) if "Discrete" in classes else multi_discrete([int(n) for n in space.nvec])
    if "MultiBinary" in classes:
        return multi_binary(tuple(space.shape))
    raise SpecError(
        f"{name!r}: expected farfield.box, discrete, multi_discrete or multi_binary, a dict of them, or Gymnasium's "
        f"Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple, came {type(space).__name__}"
    )


def _bounds(bound: Bound, shape: tuple[int, ...]) -> tuple[float, ...]:
    if bound is None:
        return ()
    values = np.asarray(bound, np.float64)
    if values.shape not in ((), shape):
        raise SpecError(f"box: bounds: expected one number or shape {list(shape)}, came shape {list(values.shape)}")
    return _listed(values)


def _listed(values: Any) -> tuple[float, ...]:
    if np.isinf(values).all():
        return ()
    found = tuple(float(value) for value in np.clip(values.astype(np.float64), -_MOST, _MOST).ravel() + 0.0)
    return found[:1] if len(set(found)) == 1 else found


def _choices(n: int) -> int:
    if isinstance(n, bool) or int(n) != n or n < 1:
        raise SpecError(f"expected a number of choices of at least 1, came {n!r}")
    return int(n)


def _chosen(names: Sequence[str], actions: list[Field]) -> set[str]:
    known = {key: field.name for field in actions if field.sizes for key in (field.name, field.name[7:])}
    for name in names:
        if name not in known:
            raise SpecError(f"mask: {name!r} is no action with choices; {nearest(name, known)}")
    return {known[name] for name in names}


def _mask_name(field: Field) -> str:
    return "mask" + field.name.removeprefix("action")
