"""Turns nouns into bytes and bytes into nouns: the only file that knows the encoding (proto/farfield/v1)."""

import struct
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any, TypeVar, cast

import msgspec
from google.protobuf.message import DecodeError

from farfield import columns
from farfield.canonical import from_json, to_json
from farfield.errors import CorruptError, SpecError
from farfield.types import (
    Announcement,
    Array,
    Buffer,
    Credit,
    Dead,
    Fragment,
    Heartbeat,
    Hello,
    Spec,
    Version,
    Welcome,
)
from farfield.v1 import farfield_pb2 as wire

LIMIT = 64 << 20  # bytes of one payload
SCHEMA = 1
_LENGTH = struct.Struct("<BI")  # tag and value of the field `length`, which every payload begins with
_LENGTH_TAG = 0x0D  # field 1, four bytes
_SCHEMA_TAG, _KIND_TAG = 0x10, 0x18  # fields 2 and 3, which follow it
_KINDS: dict[type[Any], wire.Kind] = {
    wire.Fragment: wire.KIND_FRAGMENT,
    wire.Announcement: wire.KIND_ANNOUNCEMENT,
    wire.Heartbeat: wire.KIND_HEARTBEAT,
    wire.Credit: wire.KIND_CREDIT,
    wire.Dead: wire.KIND_DEAD,
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
        source=fragment.source,
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
        columns=columns.read(message.columns),
        decision=message.decision,
        policy=message.policy,
        actor=message.actor,
        source=message.source,
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
    weights = columns.read(message.tensors)
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


def encode_credit(credit: Credit) -> bytes:
    """Write a late reward."""
    mode = wire.Credit.MODE_SET if credit.mode == "set" else wire.Credit.MODE_ADD
    fields = msgspec.structs.asdict(credit) | {"stream": _binary("stream", credit.stream, 16), "mode": mode}
    return _join("Credit", _head(wire.Credit, **fields), {}, LIMIT)


def decode_credit(payload: Buffer) -> Credit:
    """Read a late reward."""
    message = _parse(wire.Credit, payload, LIMIT)
    modes: dict[int, Any] = {wire.Credit.MODE_ADD: "add", wire.Credit.MODE_SET: "set"}
    if message.mode not in modes:
        raise CorruptError(f"credit {message.id!r}: its mode must be add or set, came number {message.mode}")
    stream = _digits("stream", message.stream, 16)
    return Credit(message.run, stream, message.n, message.reward, modes[message.mode], message.id)


def encode_dead(dead: Dead) -> bytes:
    """Write what was refused."""
    return _join("Dead", _head(wire.Dead, **msgspec.structs.asdict(dead)), {}, LIMIT)


def decode_dead(payload: Buffer) -> Dead:
    """Read what was refused."""
    message = _parse(wire.Dead, payload, LIMIT)
    return Dead(message.reason, message.sender, message.time, message.size, message.payload)


def kind_of(payload: Buffer) -> str:
    """Say what a payload claims to be, by its class: Fragment, Credit, Announcement, Heartbeat, Dead; else nothing."""
    head = bytes(payload[:16])  # length (5 bytes), schema, kind: each field with its tag
    if len(head) < 9 or head[5] != _SCHEMA_TAG or head[7] != _KIND_TAG:
        return ""
    return next((kind.__name__ for kind, number in _KINDS.items() if number == head[8]), "")


def write_hello(hello: Hello) -> wire.Hello:
    """Give the message that a client introduces itself with."""
    fields: dict[str, Any] = msgspec.structs.asdict(hello)
    fields["spec"] = b"" if hello.spec is None else to_json(hello.spec)
    fields["config"] = b"" if hello.config is None else to_json(hello.config)
    return wire.Hello(**fields)


def read_hello(message: wire.Hello) -> Hello:
    """Read who calls."""
    return Hello(
        run=message.run,
        policy=message.policy or "main",
        spec=from_json(message.spec, Spec) if message.spec else None,
        client=message.client,
        library=message.library,
        protocol=message.protocol,
        config=from_json(message.config, dict[str, Any]) if message.config else None,
    )


def write_welcome(welcome: Welcome) -> wire.Welcome:
    """Give the message that a client is let in with."""
    fields: dict[str, Any] = msgspec.structs.asdict(welcome)
    fields["spec"] = to_json(welcome.spec)
    return wire.Welcome(**fields)


def read_welcome(message: wire.Welcome) -> Welcome:
    """Read what a client was told."""
    fields: dict[str, Any] = {name: getattr(message, name) for name in Welcome.__struct_fields__}
    fields["spec"] = from_json(message.spec, Spec)
    return Welcome(**fields)


def _join(what: str, head: bytes, named: Mapping[str, Array], limit: int) -> bytes:
    """Lay head and columns behind one another, as protobuf itself would, but copying each array only once."""
    parts: list[Buffer | Array] = [b"", head]
    size = _LENGTH.size + len(head)
    for name, given in named.items():
        array = given if given.flags.c_contiguous and given.dtype in columns.CODES else columns.laid_out(name, given)
        opening, length = columns.opening(name, array.dtype, array.shape)
        parts.append(opening)
        if length:  # protobuf leaves out what is empty
            parts.append(array)
        size += len(opening) + length
    if size > limit:
        raise SpecError(f"{what} of {size} bytes, but the limit is {limit}: use fewer steps or lanes in one fragment")
    parts[0] = _LENGTH.pack(_LENGTH_TAG, size)
    return b"".join(cast("list[Buffer]", parts))


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
        raise SpecError(f"{what}: expected schema {SCHEMA}, came {message.schema}: {columns.CURE}")
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
