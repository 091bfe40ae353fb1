"""Named arrays in, safetensors bytes out, and back; the only file that knows safetensors."""

import json
from hashlib import sha256
from importlib import import_module
from typing import Any

import numpy as np

from farfield.errors import CorruptError, MissingError, SpecError
from farfield.types import Array, Buffer, Columns, TensorRef

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
KNOWN = frozenset(DTYPES.values())
FACTS = "__metadata__"


def pack(columns: Columns, facts: dict[str, str]) -> bytes:
    """Put arrays and a few texts into one block of bytes; equal arrays give equal bytes for at most one text."""
    plain = {name: _plain(name, value) for name, value in columns.items()}
    return _safetensors().numpy.save(plain, facts or None)


def unpack(buffer: Buffer) -> tuple[Columns, dict[str, str]]:
    """Give the arrays (writable, in the order of their names) and texts of a block of bytes."""
    library = _safetensors()
    data = bytes(buffer)  # no copy of bytes
    try:
        parts: list[tuple[str, dict[str, Any]]] = library.deserialize(data)
        columns = {name: _array(name, part) for name, part in sorted(parts, key=lambda item: item[0])}
    except (library.SafetensorError, ValueError, OverflowError) as error:
        raise CorruptError(
            f"{len(data)} bytes are not whole tensors ({error}): expected the safetensors format"
        ) from error
    header: dict[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return columns, header.get(FACTS) or {}


def reference(array: Array) -> TensorRef:
    """Name an array by its content."""
    flat = np.asarray(array, order="C").reshape(-1).view(np.uint8)  # no copy of what is contiguous
    return TensorRef(array.dtype.name, array.shape, sha256(flat.data).hexdigest())


def _plain(name: str, value: Array) -> Array:
    """Make an array what can be written: contiguous, little-endian, of a dtype that everybody knows."""
    array = np.asarray(value, order="C")
    if array.dtype.name not in KNOWN:
        raise SpecError(f"tensor {name!r} has dtype {array.dtype}: expected one of {', '.join(sorted(KNOWN))}")
    return array


def _array(name: str, part: dict[str, Any]) -> Array:
    dtype = DTYPES.get(part["dtype"])
    if dtype is None:
        raise CorruptError(f"tensor {name!r} has unknown dtype {part['dtype']}: expected one of {', '.join(DTYPES)}")
    return np.frombuffer(part["data"], dtype).reshape(part["shape"])


def _safetensors() -> Any:
    try:
        import_module("safetensors.numpy")
        return import_module("safetensors")
    except ModuleNotFoundError as error:
        raise MissingError(f"{error.name} is not installed: pip install 'farfield[train]'") from error
