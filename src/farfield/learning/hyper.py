"""Hyper-parameters: a Config says by field what a change of it takes; checked changes of a running one come out."""

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from msgspec import Meta, Struct

from farfield.errors import ConfigError, CorruptError, nearest
from farfield.types import Array, Scalar

Change = Literal["live", "recompile", "fixed"]
C = TypeVar("C", bound=Struct)


def live(description: str, *, ge: float | None = None, gt: float | None = None, le: float | None = None) -> Meta:
    """Mark a number that enters the compiled update as an argument: the next update uses a change."""
    return _meta("live", description, ge=ge, gt=gt, le=le)


def recompile(description: str, *, ge: float | None = None, gt: float | None = None, le: float | None = None) -> Meta:
    """Mark a value that shapes the compiled update: a change applies once compiled, the old one running meanwhile."""
    return _meta("recompile", description, ge=ge, gt=gt, le=le)


def fixed(description: str, *, ge: float | None = None, gt: float | None = None, le: float | None = None) -> Meta:
    """Mark a value that a run keeps for ever; another one takes a fork."""
    return _meta("fixed", description, ge=ge, gt=gt, le=le)


@cache
def changes(kind: type[Struct]) -> dict[str, Change]:
    """Say for each field of a Config what a change of it takes."""
    found: dict[str, Change] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        metas = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        marks = [meta.extra_json_schema for meta in metas if isinstance(meta, Meta) and meta.extra_json_schema]
        found[name] = next((mark["change"] for mark in marks if "change" in mark), "fixed")
    return found


def tuned(config: C, wanted: Mapping[str, Scalar], *, check: Callable[[C], None] | None = None) -> C:
    """Give the config with all of `wanted` applied, or raise ConfigError; `check` looks at fields together."""
    how = changes(type(config))
    for name, value in wanted.items():
        if name not in how:
            raise ConfigError(f"no hyper-parameter {name!r} to tune; {nearest(name, how)}")
        if how[name] == "fixed" and value != getattr(config, name):
            raise ConfigError(
                f"{name} is fixed at {getattr(config, name)!r} for the life of a run; fork the run to try {value!r}"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{name} must be a finite number, not {value!r}")
    try:
        new = msgspec.convert(msgspec.structs.asdict(config) | dict(wanted), type(config))
    except msgspec.ValidationError as error:
        raise ConfigError(f"cannot tune {', '.join(wanted)}: {error}") from error
    if check:
        check(new)
    return new


def live_values(config: Struct) -> dict[str, Array]:
    """Give the live fields as float32 scalars: the `live` argument of a compiled update."""
    return {
        name: np.asarray(getattr(config, name), np.float32)
        for name, how in changes(type(config)).items()
        if how == "live"
    }


def differing(old: Struct, new: Struct) -> tuple[str, ...]:
    """Name the `recompile` fields whose values differ."""
    how = changes(type(old))
    return tuple(name for name in how if how[name] == "recompile" and getattr(old, name) != getattr(new, name))


def mixed(wanted: C, running: C) -> C:
    """Give `wanted` with the `recompile` fields of `running`: what is in force while a new update is compiled."""
    return msgspec.structs.replace(wanted, **{name: getattr(running, name) for name in differing(wanted, running)})


def pack(config: Struct) -> Array:
    """Give a config as a column of a checkpoint."""
    return np.frombuffer(msgspec.json.encode(config), np.uint8).copy()


def unpack(column: Array, kind: type[C]) -> C:
    """Read back what `pack` gave."""
    try:
        return msgspec.json.decode(np.asarray(column, np.uint8).tobytes(), type=kind)
    except msgspec.DecodeError as error:
        raise CorruptError(f"the checkpoint's hyper-parameters do not fit {kind.__module__}: {error}") from error


def _meta(change: Change, description: str, **limits: float | None) -> Meta:
    given: dict[str, Any] = {name: limit for name, limit in limits.items() if limit is not None}
    return Meta(description=description, extra_json_schema={"change": change}, **given)
