"""Messages of every call with any content, over a real connection: each ends with an answer or a fitting status."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from farfield.v1 import farfield_pb2 as wire
from hosting import Runs, Sender, announce, dialled, gateway, hello, payload

pytestmark = pytest.mark.timeout(300)
FEW = settings(
    max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)
Code = grpc.StatusCode
MEANT = {
    Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.FAILED_PRECONDITION, Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED,
    Code.RESOURCE_EXHAUSTED,
}  # fmt: skip


class Door(NamedTuple):
    """A gateway in this process, whose network remembers nothing, and what its log said."""

    stub: Any
    channel: grpc.Channel
    said: list[logging.LogRecord]


class Ears(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    runs, ears = Runs(tmp_path_factory.mktemp("runs")), Ears()
    logging.getLogger("farfield").addHandler(ears)
    with gateway(runs) as (_, address), dialled(address) as stub, grpc.insecure_channel(address) as channel:
        stub.Greet(hello(), timeout=30)
        announce(runs.logs["game"])
        yield Door(stub, channel, ears.records)
    logging.getLogger("farfield").removeHandler(ears)


@pytest.fixture(autouse=True)
def unhurt(door: Door) -> Iterator[None]:
    """See after each test that nothing was unforeseen, and that others are served."""
    yield
    assert [record.getMessage() for record in door.said] == []
    sender = Sender(door.stub)
    sender.welcome()
    sender.send(payload(0))
    sender.wait(1)
    assert not sender.refusals
    good = wire.ActRequest(hello=hello(), observations=[column("obs", 11, [1, 4], bytes(16))], stream=bytes(16))
    assert door.stub.ActOnce(good, timeout=30).version == 1


def column(name: str, dtype: int, shape: list[int], data: bytes) -> wire.Column:
    return wire.Column(name=name, dtype=dtype, shape=shape, data=data)  # pyright: ignore[reportArgumentType]


def code_of(call: Any) -> Code:
    """Let a call end, and give its status."""
    try:
        for _ in call if hasattr(call, "__iter__") else [call]:
            pass
    except grpc.RpcError as error:
        text: Any = error
        assert "Traceback" not in (text.details() or "")
        return text.code()
    return Code.OK


def called(make: Any) -> Code:
    try:
        return code_of(make())
    except grpc.RpcError as error:
        found: Any = error
        return found.code()


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
numbers = st.one_of(st.integers(0, 9), st.integers(0, (1 << 64) - 1))
shapes = st.one_of(st.sampled_from([[1, 4], [3, 4], [4], [0, 4], [1, 4, 1]]), st.lists(numbers, max_size=70))
names = st.one_of(st.sampled_from(["obs", "mask", "action", "memory/gru", "gru", "reward", ""]), texts)
columns = st.builds(
    column, names, st.one_of(st.integers(0, 13), st.integers(-(1 << 31), (1 << 31) - 1)), shapes,
    st.one_of(st.sampled_from([bytes(16), bytes(48), np.full(4, np.nan, "f4").tobytes()]), st.binary(max_size=70)),
)  # fmt: skip
hellos = st.one_of(
    st.builds(hello),
    st.builds(
        wire.Hello, run=st.one_of(st.just("game"), texts), policy=st.one_of(st.just("main"), texts), client=texts,
        spec=st.one_of(st.just(b""), st.just(hello().spec), st.binary(max_size=50)), library=texts,
        protocol=st.one_of(st.just(1), st.integers(0, (1 << 32) - 1)),
        config=st.one_of(st.just(b""), st.just(b"{}"), st.binary(max_size=30)),
    ),
)  # fmt: skip
payloads = st.lists(st.one_of(st.just(payload(1)), st.binary(max_size=200)), max_size=4)
asks = st.builds(
    wire.ActRequest, hello=hellos, id=numbers, observations=st.lists(columns, max_size=3),
    memory=st.lists(columns, max_size=2),
    stream=st.one_of(st.just(b""), st.just(bytes(16)), st.binary(max_size=40)), decision=numbers,
)  # fmt: skip
ups = st.builds(
    wire.Up,
    hello=hellos,
    payloads=payloads,
    probe=st.one_of(st.just(b""), st.binary(max_size=99), st.just(bytes(70_000))),
)


@FEW
@given(first=ups, more=st.lists(ups, max_size=3))
def test_any_up(door: Door, first: wire.Up, more: list[wire.Up]) -> None:
    assert called(lambda: door.stub.Append(iter([first, *more]), timeout=30)) in MEANT


@FEW
@given(first=asks, more=st.lists(asks, max_size=3))
def test_any_question(door: Door, first: wire.ActRequest, more: list[wire.ActRequest]) -> None:
    assert called(lambda: door.stub.Act(iter([first, *more]), timeout=30)) in MEANT
    assert called(lambda: door.stub.ActOnce(first, timeout=30)) in MEANT


@FEW
@given(said=hellos, late=payloads)
def test_any_credits(door: Door, said: wire.Hello, late: list[bytes]) -> None:
    assert called(lambda: door.stub.Credit(wire.CreditRequest(hello=said, payloads=late), timeout=30)) in MEANT


@FEW
@given(
    said=hellos, have=st.dictionaries(st.one_of(st.just("logits/kernel"), texts), st.binary(max_size=40), max_size=3)
)
def test_any_follower(door: Door, said: wire.Hello, have: dict[str, bytes]) -> None:
    call = door.stub.Versions(wire.VersionsRequest(hello=said, have=have), timeout=30)
    with suppress(grpc.RpcError):
        next(call)
    call.cancel()
    assert call.code() in MEANT | {Code.CANCELLED}


@FEW
@given(said=hellos)
def test_any_greeting(door: Door, said: wire.Hello) -> None:
    assert called(lambda: door.stub.Greet(said, timeout=30)) in MEANT


GOOD = {
    "Append": wire.Up(hello=hello(), payloads=[payload(2)], probe=b"x"),
    "Act": wire.ActRequest(hello=hello(), id=1, observations=[column("obs", 11, [1, 4], bytes(16))], stream=bytes(16)),
    "Credit": wire.CreditRequest(hello=hello(), payloads=[b"x"]),
    "Greet": hello(),
}


@pytest.mark.parametrize("name", GOOD)
@FEW
@given(data=st.data())
def test_good_messages_with_bytes_changed_cut_or_put_in(door: Door, name: str, data: st.DataObject) -> None:
    changed = bytearray(GOOD[name].SerializeToString())
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, max(0, len(changed) - 1)))
        match data.draw(st.sampled_from(["set", "cut", "insert"])):
            case "set" if changed:
                changed[place] = data.draw(st.integers(0, 255))
            case "cut":
                del changed[place : place + data.draw(st.integers(1, 40))]
            case _:
                changed[place:place] = data.draw(st.binary(min_size=1, max_size=12))
    method = f"/farfield.v1.Gateway/{name}"
    if name in ("Append", "Act"):
        code = called(lambda: door.channel.stream_stream(method)(iter([bytes(changed)]), timeout=30))
    else:
        code = called(lambda: door.channel.unary_unary(method)(bytes(changed), timeout=30))
    assert code in MEANT | {Code.INTERNAL, Code.UNKNOWN}  # what is no message at all: gRPC itself says the second one
