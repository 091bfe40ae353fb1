"""What every transport must do; a new one is found by itself."""

import pkgutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from importlib import import_module

import pytest

import farfield.transports
from farfield.errors import ConfigError, FullError, MissingError
from farfield.transports import grpc, memory
from farfield.types import ALL, Record, Share

KINDS = [
    module.name
    for module in pkgutil.iter_modules(farfield.transports.__path__)
    if not module.ispkg and not module.name.startswith("_")
]
pytestmark = pytest.mark.timeout(60)  # a transport that never wakes its callers fails instead of hanging


@pytest.fixture(params=KINDS)
def opened(request, tmp_path) -> Iterator:
    """A function that opens a transport with room, wait and partitions as given."""
    with ExitStack() as stack:

        def open_log(**settings):
            if request.param != "grpc":
                module = import_module(f"farfield.transports.{request.param}")
                place = {"folder": str(tmp_path / "log")} if "folder" in module.Config.__struct_fields__ else {}
                transport = module.make(module.Config(**place, **settings))
            else:
                log = memory.make(memory.Config(**settings))
                stack.callback(log.close)
                server = grpc.serve(log, f"unix:{tmp_path}/log.sock")
                stack.callback(server.stop)
                transport = grpc.make(grpc.Config(server.address))
            stack.callback(transport.close)
            return transport

        yield open_log


def put(transport, *payloads, key="k", topic="t"):
    for future in [transport.append(topic, payload, key=key) for payload in payloads]:
        future.result(20)


def take(transport, count, *, after=None, share=ALL, topic="t", limit=100):
    """Read until `count` records came; transports may give fewer at a time."""
    records: list[Record] = []
    cursor = after or {}
    while len(records) < count:
        found, cursor = transport.read(topic, after=cursor, share=share, limit=limit, timeout=20)
        assert found, f"only {len(records)} of {count} came"
        records += found
    return records, cursor


def payloads(records):
    return [bytes(record.payload) for record in records]


def test_there_are_transports():
    assert {"memory", "grpc", "disk"} <= set(KINDS)


def test_records_come_in_the_order_of_their_key(opened):
    log = opened(partitions=3)
    keys = ["a", "b", "c", "d", "e"]
    for number in range(20):
        for key in keys:
            log.append("t", b"%d" % number, key=key)
    records, _ = take(log, 100)
    for key in keys:
        mine = [record for record in records if record.key == key]
        assert payloads(mine) == [b"%d" % number for number in range(20)]
        assert len({record.partition for record in mine}) == 1
        offsets = [record.offset for record in mine]
        assert offsets == sorted(set(offsets))
    assert len({record.partition for record in records}) > 1


def test_an_appended_record_is_there_when_its_future_is_done(opened):
    log = opened()
    assert log.append("t", b"x", key="k").result(20) is None
    records, cursor = log.read("t", after={}, limit=1, timeout=20)
    assert records == [Record(b"x", "k", 0, 0)]
    assert cursor == {0: 1}


@pytest.mark.parametrize("payload", [b"", b"bytes", bytearray(b"bytearray"), memoryview(b"a view of it")[2:6]])
def test_any_buffer_can_be_appended(opened, payload):
    log = opened()
    put(log, payload)
    assert payloads(take(log, 1)[0]) == [bytes(payload)]


def test_readers_own_their_place(opened):
    log = opened()
    put(log, b"0", b"1", b"2")
    first, cursor = take(log, 2, limit=1)
    assert payloads(first) == [b"0", b"1"]
    again, _ = take(log, 3)
    assert payloads(again) == [b"0", b"1", b"2"]
    rest, _ = take(log, 1, after=cursor)
    assert payloads(rest) == [b"2"]


def test_a_cursor_that_was_given_is_not_changed(opened):
    log = opened()
    put(log, b"0")
    mine: dict[int, int] = {}
    log.read("t", after=mine, limit=1, timeout=20)
    assert mine == {}


def test_no_more_records_come_than_were_asked_for(opened):
    log = opened(partitions=2)
    for number in range(10):
        put(log, b"%d" % number, key=f"{number}")
    seen, cursor = [], {}
    while len(seen) < 10:
        records, cursor = log.read("t", after=cursor, limit=3, timeout=20)
        assert 1 <= len(records) <= 3
        seen += payloads(records)
    assert sorted(seen) == [b"%d" % number for number in range(10)]


def test_no_partition_starves(opened):
    log = opened(partitions=2)
    keys = {}  # partition -> a key that goes there
    for number in range(50):
        put(log, b"", key=f"{number}", topic="keys")
    for record in take(log, 50, topic="keys")[0]:
        keys[record.partition] = record.key
    put(log, *[b"busy"] * 1000, key=keys[0])
    put(log, b"quiet", key=keys[1])
    records, _ = take(log, 500, limit=1)
    assert b"quiet" in payloads(records)


@pytest.mark.parametrize("timeout", [0.0, 0.05])
def test_an_empty_topic_gives_nothing_and_the_same_place(opened, timeout):
    log = opened()
    assert log.read("t", after={}, limit=1, timeout=timeout) == ([], {})
    put(log, b"0", topic="other")
    put(log, b"1")
    _, cursor = take(log, 1)
    assert log.read("t", after=cursor, limit=1, timeout=timeout) == ([], cursor)


def test_a_waiting_reader_is_woken_by_a_record(opened):
    log = opened()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(log.read, "t", after={}, limit=1, timeout=3600)
        put(log, b"0")
        assert payloads(reading.result()[0]) == [b"0"]


def test_shares_split_the_partitions(opened):
    log = opened(partitions=4)
    sent = [b"%d" % number for number in range(40)]
    for payload in sent:
        put(log, payload, key=payload.decode())
    every, _ = take(log, 40)
    parts = []
    for part in range(2):
        mine = [record for record in every if record.partition % 2 == part]
        assert mine
        records, cursor = take(log, len(mine), share=Share(part, 2))
        assert {record.partition % 2 for record in records} == {part}
        assert log.read("t", after=cursor, share=Share(part, 2), limit=100, timeout=0.0)[0] == []
        parts += payloads(records)
    assert sorted(parts) == sorted(sent)


@pytest.mark.parametrize("wrong", [{"share": Share(2, 2)}, {"share": Share(0, 0)}, {"limit": 0}])
def test_an_impossible_read_is_refused(opened, wrong):
    with pytest.raises(ConfigError, match="part < of"):
        opened().read("t", after={}, timeout=0.0, **{"limit": 1} | wrong)


def test_a_full_topic_refuses_after_waiting(opened):
    log = opened(room=100, wait=0.05)
    put(log, bytes(60))
    with pytest.raises(FullError, match=r"no room for 60 bytes within 0.05 s"):
        put(log, bytes(60))
    put(log, bytes(40))
    put(log, bytes(100), topic="another topic has room of its own")
    assert len(take(log, 2)[0]) == 2


def test_a_record_that_never_fits_is_refused_at_once(opened):
    log = opened(room=100, wait=3600.0)
    with pytest.raises(ConfigError, match="can never fit"):
        put(log, bytes(101))


def test_noting_makes_room(opened):
    log = opened(room=100, wait=30.0)
    put(log, bytes(60))
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(put, log, b"1" * 60)
        _, cursor = take(log, 1)
        log.note("t", "g", cursor)
        late.result()
    records, _ = take(log, 1)
    assert records[0].offset == 1  # the first one was freed: a new reader begins here


def test_the_slowest_group_keeps_its_records(opened):
    log = opened(room=100, wait=1.0)
    put(log, bytes(60))
    log.note("t", "slow", {0: 1})
    put(log, bytes(60))  # fits, so that the note has come
    log.note("t", "fast", {0: 2})
    with pytest.raises(FullError, match="slow"):
        put(log, bytes(60))
    log.note("t", "slow", {0: 2})
    put(log, bytes(60))


def test_a_closed_transport_says_so(opened):
    log = opened()
    put(log, b"0")
    log.close()
    log.close()
    with pytest.raises(MissingError, match="closed"):
        log.append("t", b"1", key="k")
    with pytest.raises(MissingError, match="closed"):
        log.read("t", after={}, limit=1, timeout=0.0)


def test_closing_wakes_who_waits(opened):
    log = opened()
    take_one = {"after": {}, "limit": 1, "timeout": 3600}
    with ThreadPoolExecutor(1) as pool:
        put(log, b"0", topic="other")
        reading = pool.submit(log.read, "t", **take_one)
        while not reading.running():
            continue
        log.close()
        with suppress(MissingError):  # when it was closed before the reader began to wait
            assert reading.result() == ([], {})
