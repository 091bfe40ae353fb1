"""Turns nouns into bytes and bytes into nouns: the only file that knows the encoding (proto/farfield/v1)."""

import math
import struct
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, TypeVar, cast

import msgspec
import numpy as np
from google.protobuf.message import DecodeError

from farfield.errors import CorruptError, SpecError
from farfield.types import Announcement, Array, Buffer, Columns, Fragment, Heartbeat, Spec, Version
from farfield.v1 import farfield_pb2 as wire

LIMIT = 64 << 20  # bytes of one payload
SCHEMA = 1
_LENGTH = struct.Struct("<BI")  # tag and value of the field `length`, which every payload begins with
_LENGTH_TAG = 0x0D  # field 1, four bytes
_COLUMN_TAG = b"\x7a"  # field 15 of a Fragment and of an Announcement, with its length
_DATA_TAG = b"\x22"  # field 4 of a Column, with its length
_AXES = 32  # NumPy allows 64
_INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
_NAMES = ["bool", *_INTEGERS, "float16", "float32", "float64"]
_DTYPES = {wire.Dtype.Value(f"DTYPE_{name.upper()}"): np.dtype(name).newbyteorder("<") for name in _NAMES}
_BOOL = _DTYPES[wire.DTYPE_BOOL]
_CODES: dict[np.dtype[Any], Any] = {dtype: code for code, dtype in _DTYPES.items()}
_CURE = "install the same farfield on both sides"
_KINDS: dict[type[Any], wire.Kind] = {
    wire.Fragment: wire.KIND_FRAGMENT,
    wire.Announcement: wire.KIND_ANNOUNCEMENT,
    wire.Heartbeat: wire.KIND_HEARTBEAT,
}

T = TypeVar("T")


def encode_fragment(fragment: Fragment, *, limit: int = LIMIT) -> bytes:
    """Write a fragment; each column is copied once."""
    head = _head(
        wire.Fragment,
        run=fragment.run,
        stream=_binary("stream", fragment.stream, 16),
        seq=fragment.seq,
        version=fragment.version,
        attempt=fragment.attempt,
        spec=_binary("spec", fragment.spec, 32),
        decision=fragment.decision,
        policy=fragment.policy,
        actor=fragment.actor,
    )
    return _join("Fragment", head, fragment.columns, limit)


def decode_fragment(payload: Buffer, *, spec: str = "", limit: int = LIMIT) -> Fragment:
    """Read a fragment whose columns are read-only views; with `spec`, refuse any other."""
    message = _parse(wire.Fragment, payload, limit)
    stream, came = _digits("stream", message.stream, 16), _digits("spec", message.spec, 32)
    if spec and came != spec:
        raise SpecError(
            f"fragment {message.seq} of stream {stream} (actor {message.actor!r}): expected spec {spec}, "
            f"came {came}: start its producer with the environment and the settings that run {message.run!r} has"
        )
    return Fragment(
        run=message.run,
        stream=stream,
        seq=message.seq,
        version=message.version,
        attempt=message.attempt,
        spec=came,
        columns=_columns(message.columns),
        decision=message.decision,
        policy=message.policy,
        actor=message.actor,
    )


def encode_announcement(announcement: Announcement, *, limit: int = LIMIT) -> bytes:
    """Write a version with the tensors that followers may lack."""
    head = _head(
        wire.Announcement,
        version=to_json(announcement.version),
        full=announcement.full,
        settled=[
            wire.Announcement.Settled(stream=_binary("settled stream", stream, 16), fragments=count)
            for stream, count in announcement.settled.items()
        ],
    )
    return _join("Announcement", head, announcement.weights, limit)


def decode_announcement(payload: Buffer, *, limit: int = LIMIT) -> Announcement:
    """Read a version; every tensor is checked against the manifest's hash."""
    message = _parse(wire.Announcement, payload, limit)
    version = from_json(message.version, Version)
    weights = _columns(message.tensors)
    for name, tensor in weights.items():
        _check_tensor(version, name, tensor)
    settled = {_digits("settled stream", entry.stream, 16): entry.fragments for entry in message.settled}
    return Announcement(version=version, weights=weights, full=message.full, settled=settled)


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    """Write a sign of life."""
    fields = msgspec.structs.asdict(heartbeat) | {"stream": _binary("stream", heartbeat.stream, 16)}
    return _join("Heartbeat", _head(wire.Heartbeat, **fields), {}, LIMIT)


def decode_heartbeat(payload: Buffer) -> Heartbeat:
    """Read a sign of life."""
    message = _parse(wire.Heartbeat, payload, LIMIT)
    fields: dict[str, Any] = {name: getattr(message, name) for name in Heartbeat.__struct_fields__}
    fields["stream"] = _digits("stream", message.stream, 16)
    return Heartbeat(**fields)


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


def _join(what: str, head: bytes, columns: Mapping[str, Array], limit: int) -> bytes:
    """Lay head and columns behind one another, as protobuf itself would, but copying each array only once."""
    parts: list[Buffer | Array] = [b"", head]
    size = _LENGTH.size + len(head)
    for name, given in columns.items():
        array = given if given.flags.c_contiguous and given.dtype in _CODES else _laid_out(name, given)
        opening, length = _opening(name, array.dtype, array.shape)
        parts.append(opening)
        if length:  # protobuf leaves out what is empty
            parts.append(array)
        size += len(opening) + length
    if size > limit:
        raise SpecError(f"{what} of {size} bytes, but the limit is {limit}: use fewer steps or lanes in one fragment")
    parts[0] = _LENGTH.pack(_LENGTH_TAG, size)
    return b"".join(cast("list[Buffer]", parts))


def _laid_out(name: str, array: Array) -> Array:
    little = array.dtype.newbyteorder("<")
    if little not in _CODES:
        raise SpecError(f"column {name!r}: dtype {array.dtype} cannot travel; expected one of {', '.join(_NAMES)}")
    return array.astype(little, order="C")


@lru_cache(maxsize=4096)
def _opening(name: str, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> tuple[bytes, int]:
    """Write all of a column that comes before its data, and say how long that is."""
    size = math.prod(shape) * dtype.itemsize
    try:
        column = wire.Column(name=name, dtype=_CODES[dtype], shape=shape).SerializeToString()
    except (TypeError, ValueError) as error:
        raise SpecError(f"column {name!r}: {error}") from error
    if size:
        column += _DATA_TAG + _varint(size)
    return _COLUMN_TAG + _varint(len(column) + size) + column, size


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _columns(found: Sequence[wire.Column]) -> Columns:
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
        return f"column {name!r}: dtype number {column.dtype} is unknown: {_CURE}"
    if layout is None:
        return f"column {name!r}: its shape of {axes} axes is beyond {_AXES} axes or what an array can hold"
    shape = [*column.shape]
    return f"column {name!r}: shape {shape} of {layout[0].name} takes {layout[1]} bytes, came {len(column.data)}"


def _check_tensor(version: Version, name: str, tensor: Array) -> None:
    told = version.tensors.get(name)
    if told is None:
        raise CorruptError(f"version {version.number}: tensor {name!r} came, but its manifest does not name it")
    came = (tensor.dtype.name, tensor.shape, sha256(tensor.data).hexdigest())
    if came != (told.dtype, told.shape, told.sha256):
        raise CorruptError(
            f"version {version.number}: tensor {name!r} should be {told.dtype} {told.shape} with SHA-256 "
            f"{told.sha256}, came {came[0]} {came[1]} with {came[2]}: fetch the version again"
        )


def _head(kind: type[Any], **fields: object) -> bytes:
    try:
        return kind(schema=SCHEMA, kind=_KINDS[kind], **fields).SerializeToString(deterministic=True)
    except (TypeError, ValueError) as error:  # numbers out of range, strings with lone surrogates
        raise SpecError(f"{kind.__name__}: {error}") from error


def _parse(kind: type[T], payload: Buffer, limit: int) -> T:
    size = len(payload) if isinstance(payload, bytes) else memoryview(payload).nbytes
    what = kind.__name__
    if size > limit:
        raise CorruptError(f"{what} of {size} bytes is over the limit of {limit}: use fewer steps or lanes")
    try:
        message: Any = cast("Any", kind).FromString(payload)
    except DecodeError as error:
        raise CorruptError(f"{what}: {size} bytes are no farfield/v1 message: {error}") from error
    if message.length != size or not size:
        raise CorruptError(f"{what}: {size} bytes came, but it says {message.length}: it was cut, or is something else")
    if message.schema != SCHEMA:
        raise SpecError(f"{what}: expected schema {SCHEMA}, came {message.schema}: {_CURE}")
    if message.kind != _KINDS[kind]:
        raise CorruptError(f"{what}: expected kind {_KINDS[kind]}, came {message.kind}")
    return message


@lru_cache(maxsize=1024)
def _binary(what: str, digits: str, size: int) -> bytes:
    try:
        data = bytes.fromhex(digits)
    except (TypeError, ValueError):
        data = b""
    if len(data) != size or data.hex() != digits:
        raise SpecError(f"{what} {digits!r}: expected {2 * size} hexadecimal digits in lower case")
    return data


def _digits(what: str, data: bytes, size: int) -> str:
    if len(data) != size:
        raise CorruptError(f"{what} of {len(data)} bytes, expected {size}: its producer does not write farfield/v1")
    return data.hex()
