"""The encoding: what goes in comes out exactly, and what is not a message is refused."""

import contextlib
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from farfield import canonical, codec
from farfield.errors import CorruptError, FarfieldError, SpecError
from farfield.types import (
    Announcement,
    Field,
    Fragment,
    Head,
    Heartbeat,
    Kind,
    Network,
    Node,
    Spec,
    Tensor,
    TensorRef,
    Version,
)
from farfield.v1 import farfield_pb2 as wire

GOLDEN = Path(__file__).parent / "golden"
STREAM, SPEC = "00112233445566778899aabbccddeeff", "5a" * 32
DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
)
UINT64 = st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)


def fragment(columns, **fields):
    given = {"run": "r", "stream": STREAM, "seq": 3, "version": 2, "attempt": 1, "spec": SPEC}
    return Fragment(columns=columns, **given | fields)


def cartpole():
    steps = np.arange(5, dtype=np.float32)
    flags = {name: (steps[:4, None] == row) for row, name in enumerate(("terminated", "truncated", "valid", "first"))}
    columns = {
        "obs": np.stack([steps, -steps, steps / 3, np.full(5, np.nan, np.float32)], -1)[:, None],
        "action": np.array([[0], [1], [1], [0]]),
        "reward": np.ones((4, 1), np.float32),
        "log_prob": np.full((4, 1), -0.6931472, np.float32),
        "final/index": np.zeros((0, 2), np.int32),
        **flags,
    }
    return fragment(columns, run="cartpole", decision=384, actor="actor-0")


def announcement():
    spec = Spec(
        (Field("obs", Kind.BOX, "float32", (4,), low=(-4.8, -np.inf, -0.5, -np.inf), high=(4.8, np.inf, 0.5, np.inf)),),
        (Field("action", Kind.DISCRETE, "int64", (), (2,)),),
    )
    weights = {"policy/w": np.arange(8, dtype=np.float32).reshape(4, 2), "policy/b": np.array([0.5, -0.5], np.float32)}
    network = Network(
        nodes=(Node("logits", "dense", ("obs",), {"w": "policy/w", "b": "policy/b"}),),
        tensors={name: Tensor(array.shape) for name, array in weights.items()},
        heads=(Head("action", "categorical", ("logits",)),),
    )
    tensors = {
        name: TensorRef(array.dtype.name, array.shape, hashlib.sha256(array.tobytes()).hexdigest())
        for name, array in weights.items()
    }
    version = Version("cartpole", 7, 1, None, 8192, spec, network, tensors)
    return Announcement(version, weights, True, {STREAM: 12, "ff" * 16: 0})


def heartbeat():
    return Heartbeat("actor-0", 4711, STREAM, 2**40, 9, 7, True, "gymnasium-vector")


def equal(a, b):
    """Bit for bit, so that NaN equals itself and -0.0 is not 0.0."""
    assert a.keys() == b.keys()
    for name, array in a.items():
        assert (array.dtype, array.shape) == (b[name].dtype, b[name].shape), name
        assert array.tobytes() == b[name].tobytes(), name


ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda name: hnp.arrays(np.dtype(name), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)


@given(st.dictionaries(TEXT, ARRAYS, max_size=5), st.tuples(UINT64, UINT64, UINT64, UINT64), TEXT)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_fragments_come_back_bit_for_bit(columns, numbers, text):
    seq, version, attempt, decision = numbers
    sent = fragment(
        columns, seq=seq, version=version, attempt=attempt, decision=decision, run=text, policy=text, actor=text
    )
    came = codec.decode_fragment(codec.encode_fragment(sent), spec=SPEC)
    equal(sent.columns, came.columns)
    for name in ("run", "stream", "seq", "version", "attempt", "spec", "decision", "policy", "actor"):
        assert getattr(came, name) == getattr(sent, name)


@pytest.mark.parametrize("name", DTYPES)
def test_extremes_of_every_dtype_are_exact(name):
    dtype = np.dtype(name)
    if dtype.kind == "b":
        array = np.array([True, False])
    elif dtype.kind == "f":
        array = np.array([np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal, -0.0, np.nan, -np.inf], dtype)
        array = np.concatenate([array, np.frombuffer(b"\xff" * dtype.itemsize, dtype)])  # another NaN
    else:
        array = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
    came = codec.decode_fragment(codec.encode_fragment(fragment({"x": array}))).columns
    equal({"x": array}, came)


@pytest.mark.parametrize("shape", [(), (0,), (0, 4), (5, 0, 4), (1, 1, 1, 1, 1), (2, 84, 84, 4)])
def test_images_and_empty_shapes_come_back(shape):
    image = np.arange(np.prod(shape, dtype=int), dtype=np.uint8).reshape(shape)
    equal({"x": image}, codec.decode_fragment(codec.encode_fragment(fragment({"x": image}))).columns)


def test_strided_and_big_endian_arrays_are_laid_out():
    grid = np.arange(24, dtype=np.int32).reshape(4, 6)
    given = {
        "transposed": grid.T,
        "reversed": grid[::-1, ::2],
        "fortran": np.asfortranarray(grid),
        "big": grid.astype(">i4"),
    }
    came = codec.decode_fragment(codec.encode_fragment(fragment(given))).columns
    for name, array in given.items():
        assert came[name].dtype == np.dtype("<i4")
        np.testing.assert_array_equal(came[name], array)


@pytest.mark.parametrize(
    "array", [np.array([{}]), np.array(["a"]), np.zeros(2, complex), np.zeros(1, "M8[s]"), np.zeros(1, "i4,f4")]
)
def test_other_dtypes_are_refused_on_the_way_out(array):
    with pytest.raises(SpecError, match=r"'x'.*cannot travel; expected one of bool"):
        codec.encode_fragment(fragment({"x": array}))


def test_decoded_columns_are_views_that_nobody_can_write():
    column = codec.decode_fragment(codec.encode_fragment(cartpole())).columns["obs"]
    assert isinstance(column.base, bytes)
    assert np.shares_memory(column, np.frombuffer(column.base, np.uint8))
    assert column.nbytes == len(column.base)
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 0


def test_any_buffer_can_be_decoded():
    payload = codec.encode_fragment(cartpole())
    for same in (bytearray(payload), memoryview(payload)):
        equal(cartpole().columns, codec.decode_fragment(same).columns)


@pytest.mark.parametrize("make", [cartpole, announcement])
def test_what_is_joined_by_hand_is_what_protobuf_writes(make):
    sent = make()
    kind, encode = (
        (wire.Fragment, codec.encode_fragment)
        if isinstance(sent, Fragment)
        else (wire.Announcement, codec.encode_announcement)
    )
    payload = encode(sent)
    assert kind.FromString(payload).SerializeToString(deterministic=True) == payload


# What is refused --------------------------------------------------------------------------------------------------


def tampered(change, *, fresh_length=True):
    """Bytes of a fragment that says something else."""
    message = wire.Fragment.FromString(codec.encode_fragment(fragment({"x": np.zeros((2, 3), np.float32)})))
    change(message)
    if fresh_length:
        message.length = len(message.SerializeToString())
    return message.SerializeToString()


def column(**fields):
    def change(message):
        for name, value in fields.items():
            if name == "shape":
                message.columns[0].shape[:] = value
            else:
                setattr(message.columns[0], name, value)

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (column(dtype=99), r"'x': dtype number 99 is unknown"),
        (column(dtype=0), r"'x': dtype number 0 is unknown"),
        (column(shape=[2, 4]), r"'x': shape \[2, 4\] of float32 takes 32 bytes, came 24"),
        (column(data=b"1234"), r"'x': shape \[2, 3\] of float32 takes 24 bytes, came 4"),
        (column(shape=[2**32, 2**32]), r"'x': its shape of 2 axes"),  # 2**64 is 0 in 64 bits
        (column(shape=[2**63, 2**63, 2**63, 0], data=b""), r"'x': its shape of 4 axes"),
        (column(shape=[1] * 33, data=b"1234"), r"'x': its shape of 33 axes"),
        (column(dtype=wire.DTYPE_BOOL, data=b"\1\0\2\0\1\1"), r"'x': bool bytes must be 0 or 1"),
        (lambda message: message.columns.append(message.columns[0]), r"of 2 columns some have the same name"),
        (lambda message: setattr(message, "stream", b"short"), r"stream of 5 bytes, expected 16"),
        (lambda message: setattr(message, "spec", b""), r"spec of 0 bytes, expected 32"),
        (lambda message: setattr(message, "kind", wire.KIND_HEARTBEAT), r"expected kind 1, came 4"),
    ],
)
def test_a_lie_inside_a_message_is_named(change, says):
    with pytest.raises(CorruptError, match=says):
        codec.decode_fragment(tampered(change))


def test_a_newer_schema_says_what_to_do():
    with pytest.raises(SpecError, match=r"expected schema 1, came 2: install the same farfield"):
        codec.decode_fragment(tampered(lambda message: setattr(message, "schema", 2)))


def test_another_spec_is_refused_with_both_hashes_and_the_cure():
    payload = codec.encode_fragment(fragment({}, actor="actor-3"))
    with pytest.raises(SpecError, match=rf"'actor-3'.*expected spec {'77' * 32}, came {SPEC}: start its producer"):
        codec.decode_fragment(payload, spec="77" * 32)


def test_cut_bytes_and_bytes_behind_are_refused():
    payload = codec.encode_fragment(cartpole())
    for size in range(len(payload)):
        with pytest.raises(CorruptError):
            codec.decode_fragment(payload[:size])
    # Behind it: an unknown field, a known field once more, a zero, another message.
    for behind in (b"\xa0\x06\x01", b"\x30\x01", b"\x00", payload):
        with pytest.raises(CorruptError):
            codec.decode_fragment(payload + behind)


def test_fields_that_may_be_ignored_are():
    later = tampered(lambda message: message.MergeFromString(b"\xa0\x06\x01"))
    equal({"x": np.zeros((2, 3), np.float32)}, codec.decode_fragment(later).columns)


def test_sizes_over_the_limit_are_refused_before_anything_is_parsed():
    payload = codec.encode_fragment(cartpole())
    assert codec.decode_fragment(payload, limit=len(payload))
    with pytest.raises(CorruptError, match=rf"{len(payload)} bytes is over the limit of 100"):
        codec.decode_fragment(payload, limit=100)
    with pytest.raises(CorruptError, match="over the limit of 100"):  # not even looked at
        codec.decode_fragment(b"\xff" * 101, limit=100)
    with pytest.raises(SpecError, match="the limit is 100: use fewer steps or lanes"):
        codec.encode_fragment(cartpole(), limit=100)
    assert codec.LIMIT == 64 << 20


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"stream": "abc"}, "stream 'abc': expected 32 hexadecimal"),
        ({"stream": STREAM.upper()}, "expected 32 hexadecimal digits in lower case"),
        ({"spec": ""}, "spec '': expected 64"),
        ({"seq": -1}, "Fragment"),
        ({"version": 2**64}, "Fragment"),
        ({"run": "\ud800"}, "Fragment"),
    ],
)
def test_what_cannot_be_written_is_refused(fields, says):
    with pytest.raises(SpecError, match=says):
        codec.encode_fragment(fragment({}, **fields))


READERS = (codec.decode_fragment, codec.decode_announcement, codec.decode_heartbeat)


def refused_or_read(payload):
    for read in READERS:
        with contextlib.suppress(FarfieldError):  # and nothing else is ever raised
            read(payload)


@given(st.binary(max_size=300))
@example(b"")
@settings(max_examples=300, deadline=None, derandomize=True)
def test_random_bytes_raise_nothing_but_our_errors(payload):
    refused_or_read(payload)


@pytest.mark.parametrize("seed", range(8))
def test_flipped_bits_raise_nothing_but_our_errors(seed):
    rng = np.random.default_rng(seed)
    payloads = [
        codec.encode_fragment(cartpole()),
        codec.encode_announcement(announcement()),
        codec.encode_heartbeat(heartbeat()),
    ]
    for payload in payloads:
        for _ in range(200):
            broken = bytearray(payload)
            for place in rng.integers(0, len(payload), rng.integers(1, 4)):
                broken[place] ^= 1 << rng.integers(8)
            refused_or_read(bytes(broken))


# Announcements, heartbeats, JSON ----------------------------------------------------------------------------------


def test_announcements_come_back():
    sent = announcement()
    came = codec.decode_announcement(codec.encode_announcement(sent))
    assert (came.version, came.full, came.settled) == (sent.version, sent.full, sent.settled)
    equal(sent.weights, came.weights)


def test_a_tensor_that_is_not_what_the_manifest_says_is_refused():
    sent = announcement()
    message = wire.Announcement.FromString(codec.encode_announcement(sent))
    message.tensors[0].data = message.tensors[0].data[:-1] + b"\x01"
    with pytest.raises(CorruptError, match=r"version 7: tensor 'policy/w' should be float32 \(4, 2\) with SHA-256"):
        codec.decode_announcement(message.SerializeToString())
    message.tensors[0].name = "stranger"
    message.length = message.ByteSize()
    with pytest.raises(CorruptError, match="'stranger' came, but its manifest does not name it"):
        codec.decode_announcement(message.SerializeToString())


def test_a_broken_manifest_is_refused():
    message = wire.Announcement.FromString(codec.encode_announcement(announcement()))
    message.version = b'{"run": 3}'
    message.length = message.ByteSize()
    with pytest.raises(CorruptError, match="JSON of a Version"):
        codec.decode_announcement(message.SerializeToString())


def test_heartbeats_come_back():
    assert codec.decode_heartbeat(codec.encode_heartbeat(heartbeat())) == heartbeat()


def test_equal_specs_have_equal_hashes_however_they_were_written():
    def spec(low, high, **more):
        return Spec((Field("obs", Kind.BOX, "float32", (2,), low=low, high=high, **more),), ())

    one = canonical.spec_hash(spec((-1.0,), (np.inf,)))
    assert one == canonical.spec_hash(spec((-1,), (np.float32(np.inf),)))
    assert one == canonical.spec_hash(canonical.from_json(canonical.to_json(spec((-1.0,), (np.inf,))), Spec))
    assert len({one, canonical.spec_hash(spec((-1.5,), (np.inf,))), canonical.spec_hash(spec((-1.0,), ()))}) == 3
    assert len(bytes.fromhex(one)) == 32


def test_json_keeps_what_is_not_finite_and_sorts_its_keys():
    payload = canonical.to_json({"b": [np.float64(-np.inf), None], "a": float("nan"), "c": np.int64(3)})
    assert payload == b'{"a":"NaN","b":["-Infinity",null],"c":3}'
    assert canonical.from_json(b'["-Infinity",1]', tuple[float, ...]) == (-np.inf, 1.0)
    with pytest.raises(CorruptError):
        canonical.from_json(b'["1"]', tuple[float, ...])
    with pytest.raises(SpecError, match="no JSON"):
        canonical.to_json({"x": object()})


# Golden bytes: other languages and later versions must read and write exactly these --------------------------------

CASES = {
    "fragment": (cartpole, codec.encode_fragment, codec.decode_fragment),
    "announcement": (announcement, codec.encode_announcement, codec.decode_announcement),
    "heartbeat": (heartbeat, codec.encode_heartbeat, codec.decode_heartbeat),
}


@pytest.mark.parametrize("name", CASES)
def test_golden_bytes_are_written_and_read(name):
    make, encode, decode = CASES[name]
    path = GOLDEN / f"{name}.bin"
    if os.environ.get("FARFIELD_REWRITE_GOLDEN"):  # deliberately: everything that was stored before reads as it did
        path.write_bytes(encode(make()))
    golden = path.read_bytes()
    assert encode(make()) == golden
    assert encode(decode(golden)) == golden


def test_a_golden_credit_is_read():
    credit = wire.Credit(
        schema=1, kind=wire.KIND_CREDIT, run="cartpole", stream=bytes.fromhex(STREAM), n=99, reward=-1.5,
        mode=wire.Credit.MODE_ADD, id="order-17",
    )  # fmt: skip
    credit.length = 5 + credit.ByteSize()
    path = GOLDEN / "credit.bin"
    if os.environ.get("FARFIELD_REWRITE_GOLDEN"):
        path.write_bytes(credit.SerializeToString())
    assert path.read_bytes() == credit.SerializeToString()
    with pytest.raises(CorruptError, match="expected kind 1, came 2"):
        codec.decode_fragment(path.read_bytes())
