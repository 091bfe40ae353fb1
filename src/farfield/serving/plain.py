"""Lists and numbers of JSON in, columns with the dtypes that a spec asks for out, and back."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct

from farfield.errors import SpecError, nearest
from farfield.types import Array, Columns, Credit, Fragment, Memory, Spec

Values = dict[str, Any]
Digits = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Number = Annotated[int, Meta(ge=0)]

_OTHERS = {
    "reward": "float32", "log_prob": "float32", "terminated": "bool", "truncated": "bool", "valid": "bool",
    "first": "bool", "version": "int64", "episode/return": "float32", "episode/length": "int32", "final/index": "int32",
}  # fmt: skip
_FLAGS = {"terminated": False, "truncated": False, "valid": True}  # what may be left out, and what it is then


class PlainHello(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who calls, as JSON; the run may be left out, since the address names it."""

    run: str = ""
    policy: str = "main"
    spec: Spec | None = None
    client: str = ""
    library: str = ""
    protocol: int = 1
    config: Values | None = None


class PlainFragment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fragment as JSON: columns are nested lists [T][N]…"""

    stream: Digits
    seq: Number
    version: Number
    attempt: Number
    columns: Values
    decision: Number = 0
    actor: str = ""
    source: str = ""
    policy: str = "main"


class PlainCredit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A late reward as JSON."""

    stream: Digits
    n: Number
    reward: float
    id: Annotated[str, Meta(min_length=1)]
    mode: Literal["add", "set"] = "add"


class PlainAsk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decision of N lanes that somebody wants, as JSON: observations are [N]… each."""

    observations: Any  # by name, or those of the one field that there is
    memory: Values = {}
    stream: Digits | None = None  # whose noise; none: greedily
    decision: Number = 0


def fragment_of(plain: PlainFragment, spec: Spec, digest: str, run: str) -> Fragment:
    """Give a fragment with columns of the dtypes that the run's spec says; `digest` is the spec's hash."""
    dtypes = _OTHERS | {field.name: field.dtype for field in (*spec.observations, *spec.actions)}
    dtypes |= {f"final/{field.name}": field.dtype for field in spec.observations}
    columns: Columns = {}
    for name, values in plain.columns.items():
        dtype = "float32" if name.startswith("memory/") else dtypes.get(name)
        if dtype is None:
            raise SpecError(f"column {name!r} is unknown: {nearest(name, dtypes)}")
        columns[name] = array_of(name, values, dtype)
    if "reward" in columns:
        for name, flag in _FLAGS.items():
            columns.setdefault(name, np.full(columns["reward"].shape, flag))
    return Fragment(
        run=run, stream=plain.stream, seq=plain.seq, version=plain.version, attempt=plain.attempt, spec=digest,
        columns=columns, decision=plain.decision, policy=plain.policy, actor=plain.actor, source=plain.source,
    )  # fmt: skip


def credit_of(plain: PlainCredit, run: str) -> Credit:
    """Give a credit for a run."""
    return Credit(run=run, stream=plain.stream, n=plain.n, reward=plain.reward, mode=plain.mode, id=plain.id)


def observations_of(plain: PlainAsk, spec: Spec) -> tuple[Columns, Memory]:
    """Give the observations of a question, and what was remembered before it."""
    fields = {field.name: field for field in spec.observations}
    given = plain.observations
    if not isinstance(given, dict):
        if len(fields) != 1:
            raise SpecError(f"observations: expected one list for each of {', '.join(fields)}, came one list alone")
        given = {next(iter(fields)): given}
    columns: Columns = {}
    for name, values in given.items():
        if name not in fields:
            raise SpecError(f"observation {name!r} is unknown: {nearest(str(name), fields)}")
        columns[name] = array_of(name, values, fields[name].dtype)
    return columns, {name: array_of(f"memory/{name}", values, "float32") for name, values in plain.memory.items()}


def array_of(name: str, values: Any, dtype: str) -> Array:
    """Turn nested lists into an array; numbers that `dtype` cannot hold and ragged lists are refused."""
    try:
        raw = np.asarray(values)
    except ValueError as error:
        raise SpecError(
            f"column {name!r}: its lists are of different lengths: every row needs the same shape"
        ) from error
    wanted = np.dtype(dtype)
    if raw.size == 0:
        return raw.astype(wanted)
    fits = raw.dtype.kind in {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}.get(wanted.kind, "")
    if not fits:
        raise SpecError(
            f"column {name!r}: expected {dtype} (JSON {_WORDS.get(wanted.kind, 'numbers')}), came {raw.dtype}"
        )
    if wanted.kind in "iu":
        bounds = np.iinfo(wanted)
        if raw.min() < bounds.min or raw.max() > bounds.max:
            raise SpecError(
                f"column {name!r}: expected {dtype}, {bounds.min} to {bounds.max}, came {raw.min()} to {raw.max()}"
            )
    with np.errstate(over="ignore"):  # infinity, which nobody takes
        return raw.astype(wanted)


_WORDS = {"f": "numbers", "i": "whole numbers", "u": "whole numbers", "b": "true and false"}


def lists_of(columns: Mapping[str, Array]) -> Values:
    """Give columns as nested lists."""
    return {name: _listed(array) for name, array in columns.items()}


def _listed(array: Array) -> Any:
    """Write what JSON has no number for as null."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return array.tolist()
    return msgspec.convert(_nulled(array.tolist()), Any)


def _nulled(value: Any) -> Any:
    if isinstance(value, list):
        return [_nulled(item) for item in value]
    return value if math.isfinite(value) else None
