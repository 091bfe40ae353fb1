"""Rubbish of every shape at the gateway's decoder: only our own errors come out, and good ones are stored after it."""

from contextlib import suppress

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from farfield import codec
from farfield.canonical import spec_hash
from farfield.errors import CorruptError, FarfieldError, SpecError
from farfield.serving.admission import Admission
from farfield.serving.host import name_of, outdated
from farfield.serving.hosted import DEAD, EXPERIENCES, Hosted, Limits
from farfield.serving.specs import compare, sound
from farfield.transports import memory
from farfield.types import Credit, Field, Fragment, Kind, Spec
from farfield.v1 import farfield_pb2 as wire
from hosting import FACTS, SPEC, STREAM, Runs, Sender, dialled, gateway, hello, payload

pytestmark = pytest.mark.timeout(120)
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
MASKED = Spec(
    (*SPEC.observations, Field("mask", Kind.MULTI_BINARY, "bool", (5,))),
    (Field("action", Kind.MULTI_DISCRETE, "int64", (2,), (2, 3), mask="mask"),),
)
GOOD = payload(0)
LATE = codec.encode_credit(Credit("game", STREAM, 3, 1.0, "add", "one"))


@pytest.fixture(scope="module", params=[SPEC, MASKED], ids=["plain", "masked"])
def hosted(request):
    log = memory.make(memory.Config(wait=0.0))
    hosted = Hosted(
        "game", log=log, spec=request.param, pin=lambda _: None, facts=FACTS, limits=Limits(payload=1 << 20)
    )
    yield hosted
    hosted.close()


def tried(hosted, data):
    """Append something; what is taken must be readable by a learner, what is refused must be counted."""
    before, error = hosted.counters().total.refused, None
    try:
        hosted.append(data, "fuzz")
    except (SpecError, CorruptError) as came:
        error = came
    assert hosted.counters().total.refused == before + (error is not None)
    assert "could not check" not in str(error)  # it was foreseen
    if error is None:
        read = codec.decode_credit if codec.kind_of(data) == "Credit" else codec.decode_fragment
        assert read(data).run == "game"
    hosted._log.note(EXPERIENCES, "learner", {0: 1 << 40})
    hosted._log.note(DEAD, "reader", {0: 1 << 40})


@QUICK
@given(data=st.binary(max_size=400))
def test_any_bytes(hosted, data):
    tried(hosted, data)


@QUICK
@given(data=st.data())
def test_good_payloads_with_bytes_changed_cut_or_put_in(hosted, data):
    changed = bytearray(data.draw(st.sampled_from([GOOD, LATE])))
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(st.integers(0, max(0, len(changed) - 1)))
        match data.draw(st.sampled_from(["set", "cut", "insert", "swap"])):
            case "set" if changed:
                changed[place] = data.draw(st.integers(0, 255))
            case "cut":
                del changed[place : place + data.draw(st.integers(1, 40))]
            case "insert":
                changed[place:place] = data.draw(st.binary(min_size=1, max_size=12))
            case _:
                changed[place:] = changed[place:][::-1]
    if data.draw(st.booleans()) and len(changed) >= 5:  # so that what stands behind the length is looked at too
        changed[:5] = b"\x0d" + len(changed).to_bytes(4, "little")
    tried(hosted, bytes(changed))


DTYPES = st.sampled_from(["bool", "int8", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64"])
NAMES = st.sampled_from([
    "obs", "action", "mask", "reward", "terminated", "truncated", "valid", "first", "log_prob", "version",
    "final/index", "final/obs", "final/mask", "episode/return", "episode/length", "memory/gru", "memory/", "",
])  # fmt: skip
SHAPES = st.one_of(
    st.lists(st.integers(0, 9), max_size=4).map(tuple), st.sampled_from([(8, 1), (9, 1, 4), (8, 1, 2), (1, 2), (8,)])
)


@st.composite
def columns(draw):
    return draw(arrays.arrays(draw(DTYPES), draw(SHAPES), elements=None, fill=st.nothing()))


@QUICK
@given(changes=st.dictionaries(NAMES, columns(), max_size=4), seq=st.integers(0, (1 << 64) - 1), masked=st.booleans())
def test_any_columns_under_any_names(hosted, changes, seq, masked):
    good = codec.decode_fragment(GOOD)
    found = dict(good.columns)
    if masked:
        found |= {"mask": np.ones((9, 1, 5), bool), "action": np.zeros((8, 1, 2), np.int64)}
    tried(hosted, codec.encode_fragment(
        Fragment("game", STREAM, seq, 1, 1, spec_hash(hosted.spec), found | changes, decision=seq)
    ))  # fmt: skip


@QUICK
@given(reward=st.floats(), n=st.integers(0, (1 << 64) - 1), label=st.text(max_size=300).filter(lambda it: it.isascii()))
def test_any_credit(hosted, reward, n, label):
    tried(hosted, codec.encode_credit(Credit("game", STREAM, n, reward, "set", label)))


def test_a_good_fragment_is_stored_after_all_of_that(hosted):
    if hosted.spec == SPEC:
        before = hosted.counters().total.fragments
        hosted.append(payload(1 << 30), "good").result(20)
        assert hosted.counters().total.fragments == before + 1


@QUICK
@given(
    run=st.text(max_size=20), policy=st.text(max_size=20),
    spec=st.one_of(st.binary(max_size=60), st.just(codec.to_json(SPEC))),
    config=st.binary(max_size=60), protocol=st.integers(0, 9),
)  # fmt: skip
def test_any_hello(run, policy, spec, config, protocol):
    message = wire.Hello(run=run, policy=policy, spec=spec, config=config, protocol=protocol)
    with suppress(FarfieldError):
        came = codec.read_hello(message)
        name_of(came)
        outdated(came)
        if came.spec is not None:
            compare("game", SPEC, came.spec)


FEW = st.lists(st.integers(-2, 4), max_size=3).map(tuple)
BOUNDS = st.lists(st.floats(), max_size=3).map(tuple)
FIELDS = st.builds(
    Field, name=st.text(max_size=5), kind=st.sampled_from(list(Kind)), mask=st.text(max_size=5),
    dtype=st.sampled_from(["float32", "int64", "bool", "", "O"]), shape=FEW, sizes=FEW, low=BOUNDS, high=BOUNDS,
)  # fmt: skip


@QUICK
@given(seen=st.lists(FIELDS, max_size=3).map(tuple), acted=st.lists(FIELDS, max_size=3).map(tuple))
def test_rules_are_made_of_any_spec_that_is_sound(seen, acted):
    spec = Spec(seen, acted)
    with suppress(SpecError):
        sound(spec)
        Admission(spec, run="game", lanes=4)


@pytest.mark.parametrize("name", ["Greet", "Versions", "ActOnce", "Credit", "Append", "Act"])
def test_bytes_that_are_no_messages_end_only_their_own_call(tmp_path, name):
    generator = np.random.default_rng(0)
    with gateway(Runs(tmp_path)) as (_, address), dialled(address) as stub, grpc.insecure_channel(address) as channel:
        sender = Sender(stub)
        sender.welcome()
        method = f"/farfield.v1.Gateway/{name}"
        prefix = wire.Up(hello=hello()).SerializeToString()
        for size in [0, 1, 5, 50, 500]:
            rubbish = generator.integers(0, 256, size, dtype=np.uint8).tobytes()
            for data in [rubbish, prefix + rubbish]:
                if name in {"Append", "Act"}:
                    list(swallowed(lambda data=data: channel.stream_stream(method)(iter([data]), timeout=10)))
                elif name == "Versions":
                    list(swallowed(lambda data=data: channel.unary_stream(method)(data, timeout=0.3)))
                else:
                    list(swallowed(lambda data=data: [channel.unary_unary(method)(data, timeout=10)]))
        sender.send(payload(0))
        sender.wait(1)
        assert not sender.refusals


def swallowed(call):
    with suppress(grpc.RpcError):
        yield from call()
