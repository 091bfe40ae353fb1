"""Named arrays into wire columns, which describe themselves, and back without a copy."""

import math
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from farfield.errors import CorruptError, SpecError
from farfield.types import Array, Columns
from farfield.v1 import farfield_pb2 as wire

CURE = "install the same farfield on both sides"
_COLUMN_TAG = b"\x7a"  # field 15 of a Fragment and of an Announcement, with its length
_DATA_TAG = b"\x22"  # field 4 of a Column, with its length
_AXES = 32  # NumPy allows 64
_INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
_NAMES = ["bool", *_INTEGERS, "float16", "float32", "float64"]
# By their names, so that they are NumPy's own objects: what compares them by identity finds them.
_DTYPES = {wire.Dtype.Value(f"DTYPE_{name.upper()}"): np.dtype(np.dtype(name).newbyteorder("<").str) for name in _NAMES}
_BOOL = _DTYPES[wire.DTYPE_BOOL]
CODES: dict[np.dtype[Any], Any] = {dtype: code for code, dtype in _DTYPES.items()}


def write(columns: Columns) -> list[wire.Column]:
    """Give columns as messages, for calls that carry them outside of payloads."""
    laid = {name: np.ascontiguousarray(laid_out(name, array)) for name, array in columns.items()}
    return [
        wire.Column(name=name, dtype=CODES[array.dtype.newbyteorder("<")], shape=array.shape, data=array.tobytes())
        for name, array in laid.items()
    ]


def laid_out(name: str, array: Array) -> Array:
    """Give an array as it travels: little-endian, row-major, without gaps."""
    little = array.dtype.newbyteorder("<")
    if little not in CODES:
        raise SpecError(f"column {name!r}: dtype {array.dtype} cannot travel; expected one of {', '.join(_NAMES)}")
    return array.astype(little, order="C")


@lru_cache(maxsize=4096)
def opening(name: str, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> tuple[bytes, int]:
    """Write all of a column that comes before its data, and say how long that is."""
    size = math.prod(shape) * dtype.itemsize
    try:
        column = wire.Column(name=name, dtype=CODES[dtype], shape=shape).SerializeToString()
    except (TypeError, ValueError) as error:
        raise SpecError(f"column {name!r}: {error}") from error
    if size:
        column += _DATA_TAG + varint(size)
    return _COLUMN_TAG + varint(len(column) + size) + column, size


def varint(value: int) -> bytes:
    """Write a number as protobuf does."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def read(found: Sequence[wire.Column]) -> Columns:
    """Read columns as read-only views; one that is not what it says is refused."""
    columns: Columns = {}
    for column in found:
        data, shape = column.data, tuple(column.shape[:])
        layout = _layout(column.dtype, shape)
        if layout is None or layout[1] != len(data):
            raise CorruptError(_refusal(column, layout))
        if layout[0] is _BOOL and data.translate(None, b"\0\1"):
            raise CorruptError(f"column {column.name!r}: bool bytes must be 0 or 1")
        columns[column.name] = np.ndarray(shape, layout[0], data)  # a view; read-only, since bytes are
    if len(columns) != len(found):
        raise CorruptError(f"of {len(found)} columns some have the same name; different ones are {', '.join(columns)}")
    return columns


@lru_cache(maxsize=4096)
def _layout(code: int, shape: tuple[int, ...]) -> "tuple[np.dtype[Any], int] | None":
    """Give dtype and size in bytes; None where there can be no such array."""
    dtype = _DTYPES.get(code)
    # Python's integers do not overflow, and an empty axis must not hide what others claim from NumPy.
    if dtype is None or len(shape) > _AXES or math.prod(size or 1 for size in shape) * dtype.itemsize > sys.maxsize:
        return None
    return dtype, math.prod(shape) * dtype.itemsize


def _refusal(column: wire.Column, layout: "tuple[np.dtype[Any], int] | None") -> str:
    name, axes = column.name, len(column.shape)
    if column.dtype not in _DTYPES:
        return f"column {name!r}: dtype number {column.dtype} is unknown: {CURE}"
    if layout is None:
        return f"column {name!r}: its shape of {axes} axes is beyond {_AXES} axes or what an array can hold"
    shape = [*column.shape]
    return f"column {name!r}: shape {shape} of {layout[0].name} takes {layout[1]} bytes, came {len(column.data)}"
