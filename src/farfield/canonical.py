"""Plain data in, canonical JSON out, and back; a spec in, its name out."""

import math
from hashlib import sha256
from typing import TypeVar, cast

import msgspec
import numpy as np

from farfield.errors import CorruptError, SpecError
from farfield.types import Buffer, Spec

T = TypeVar("T")


def to_json(value: object) -> bytes:
    """Write canonical JSON: keys sorted, no spaces; what is not finite as "Infinity", "-Infinity", "NaN"."""
    try:
        payload = _JSON.encode(value)
        if b"null" in payload:  # what the encoder makes of None, but also of infinities
            plain = msgspec.to_builtins(value, enc_hook=_python_number)
            payload = _JSON.encode(_spell(plain))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise SpecError(f"{type(value).__name__} cannot be written as JSON: {error}") from error
    return payload


def from_json(payload: Buffer, kind: type[T]) -> T:
    """Read JSON as `kind`."""
    data = bytes(payload)
    spelled = b'Infinity"' in data or b'"NaN"' in data  # only then may strings become numbers
    try:
        return msgspec.json.decode(data, type=kind, strict=not spelled)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CorruptError(f"JSON of a {kind.__name__}: {error}") from error


def spec_hash(spec: Spec) -> str:
    """Name a spec by what it says: the SHA-256 of its canonical JSON, 64 hexadecimal digits."""
    exact = from_json(to_json(spec), Spec)  # a bound given as 1 is the bound 1.0
    return sha256(to_json(exact)).hexdigest()


def _python_number(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no JSON; give numbers, strings, lists and dicts")


_JSON = msgspec.json.Encoder(enc_hook=_python_number, order="sorted")


def _spell(value: object) -> object:
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case dict():
            return {key: _spell(item) for key, item in cast("dict[object, object]", value).items()}
        case list() | tuple():
            return [_spell(item) for item in cast("list[object]", value)]
        case _:
            return value
