"""The log over gRPC when things go wrong: lost servers, refused addresses, bounds, and what is left behind."""

import socket
import stat
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from farfield.codec import LIMIT
from farfield.errors import ConfigError, FullError, MissingError
from farfield.transports import grpc, memory
from farfield.transports._streams import Downlink, Stream, Uplink
from farfield.types import ALL
from farfield.v1 import farfield_pb2 as wire

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def address(tmp_path):
    return f"unix:{tmp_path}/log.sock"


@pytest.fixture
def log():
    log = memory.make(memory.Config())
    yield log
    log.close()


@contextmanager
def served(log, address, **options):
    server = grpc.serve(log, address, **options)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def connected(address, **settings):
    client = grpc.make(grpc.Config(address, **settings))
    try:
        yield client
    finally:
        client.close()


def take(transport, count, after=None):
    records, cursor = [], after or {}
    while len(records) < count:
        found, cursor = transport.read("t", after=cursor, limit=100, timeout=20)
        assert found
        records += found
    return [bytes(record.payload) for record in records], cursor


class Forgetful:
    """Owns a record and goes away before it can say so, once."""

    def __init__(self, log):
        self.log, self.calls = log, 0

    def append(self, topic, payload, *, key):
        self.calls += 1
        future = self.log.append(topic, payload, key=key)
        if self.calls == 2:
            raise MissingError("gone")
        return future

    def read(self, topic, **options):
        raise ConfigError(f"{topic!r} is not for reading")


def test_what_was_not_acknowledged_is_sent_again_in_order(log, address):
    with served(Forgetful(log), address), connected(address) as client:
        for future in [client.append("t", b"%d" % number, key="k") for number in range(4)]:
            future.result(20)
    came, _ = take(log, 5)
    assert sorted(set(came)) == [b"0", b"1", b"2", b"3"]
    assert came.count(b"1") == 2
    assert came[-3:] == [b"1", b"2", b"3"]


def test_a_restarted_server_gets_what_was_appended_meanwhile(log, address):
    with connected(address) as client:
        with served(log, address):
            client.append("t", b"0", key="k").result(20)
        waiting = [client.append("t", b"%d" % number, key="k") for number in range(1, 50)]
        with served(log, address):
            for future in waiting:
                future.result(20)
    came, _ = take(log, 50)
    assert list(dict.fromkeys(came)) == [b"%d" % number for number in range(50)]


def test_reading_goes_on_at_its_place_after_a_restart(log, address):
    with connected(address) as client:
        with served(log, address):
            log.append("t", b"0", key="k")
            first, cursor = take(client, 1)
        log.append("t", b"1", key="k")
        with served(log, address):
            assert (first, take(client, 1, cursor)[0]) == ([b"0"], [b"1"])


def test_notes_on_their_way_do_not_hold_up_a_reader_that_begins_again(log, address):
    log.append("t", b"0", key="k")
    with served(log, address), connected(address) as client:
        for _ in range(300):
            _, cursor = take(client, 1)
            client.note("t", "g", cursor | {0: 0})


def test_a_new_log_in_the_place_of_a_lost_one_is_read_from_its_start(log, address):
    with connected(address) as client:
        with served(log, address):
            for _ in range(3):
                log.append("t", b"old", key="k")
            _, cursor = take(client, 3)
        fresh = memory.make(memory.Config())
        with served(fresh, address):
            moved = cursor
            while moved == cursor:  # until the new server's word is here
                _, moved = client.read("t", after=moved, limit=1, timeout=0.1)
            fresh.append("t", b"new", key="k")
            assert (moved, take(client, 1, moved)) == ({0: 0}, ([b"new"], {0: 1}))
        fresh.close()


def test_a_log_can_begin_above_the_one_that_it_follows():
    later = memory.make(memory.Config(first=1 << 40))
    later.append("t", b"new", key="k")
    assert take(later, 1, {0: 7}) == ([b"new"], {0: (1 << 40) + 1})
    later.close()


def test_messages_of_many_megabytes_pass_and_larger_ones_than_the_limit_do_not(log, address):
    big = bytes(range(256)) * (40 << 10)  # 10 MiB
    with served(log, address), connected(address) as client:
        client.append("t", big, key="k").result(20)
        assert take(client, 1)[0] == [big]
        with pytest.raises(FullError, match=f"over the limit of {LIMIT}"):
            client.append("t", bytes(LIMIT + 1), key="k")


def test_without_a_server_appends_wait_for_room_and_say_whom_they_wait_for(address):
    client = grpc.make(grpc.Config(address, wait=0.05, outstanding=100))
    future = client.append("t", bytes(80), key="k")
    with pytest.raises(FullError, match=f"{address} has not acknowledged 80 bytes within 0.05 s"):
        client.append("t", bytes(80), key="k")
    client.close()
    with pytest.raises(MissingError, match="append it again"):
        future.result(0)


def test_closing_delivers_what_was_appended(log, address):
    with served(log, address):
        client = grpc.make(grpc.Config(address))
        futures = [client.append("t", b"%d" % number, key="k") for number in range(200)]
        client.close()
        assert all(future.done() and future.exception() is None for future in futures)
    assert len(take(log, 200)[0]) == 200


def test_a_refusal_to_read_reaches_the_reader(log, address):
    with (
        served(Forgetful(log), address),
        connected(address) as client,
        pytest.raises(ConfigError, match="'t' is not for reading"),
    ):
        client.read("t", after={}, limit=1, timeout=20)


def test_a_client_beyond_the_servers_threads_comes_in_once_there_is_one(log, address):
    with served(log, address, threads=1), connected(address) as second:
        with connected(address) as first:
            first.append("t", b"0", key="k").result(20)
            late = second.append("t", b"1", key="k")
        late.result(20)


def test_nothing_is_left_behind(log, address):
    before = set(threading.enumerate())
    with served(log, address), connected(address) as client:
        client.append("t", b"0", key="k").result(20)
        _, cursor = take(client, 1)
        client.note("t", "g", cursor)
        client.read("u", after={}, limit=1, timeout=0.0)
        assert len(set(threading.enumerate()) - before) > 3
    ours = [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("farfield")]
    assert ours == []  # closing and stopping wait for them
    for thread in set(threading.enumerate()) - before:  # gRPC's own end by themselves
        thread.join(20)
    assert set(threading.enumerate()) <= before
    assert not Path(address.removeprefix("unix:")).exists()


def test_a_loopback_port_can_be_chosen_by_the_system(log):
    with served(log, "127.0.0.1:0") as server:
        assert not server.address.endswith(":0")
        with connected(server.address) as client:
            client.append("t", b"0", key="k").result(20)
            assert take(client, 1)[0] == [b"0"]


def test_only_its_owner_can_open_the_socket(log, address):
    with served(log, address):
        assert stat.S_IMODE(Path(address.removeprefix("unix:")).stat().st_mode) == 0o600


@pytest.mark.parametrize("far", ["0.0.0.0:5000", "10.0.0.7:5000", "example.org:5000", "[::]:5000"])
def test_other_machines_are_refused(log, far):
    with pytest.raises(ConfigError, match="not this machine's own"):
        grpc.serve(log, far)
    with pytest.raises(ConfigError, match="not this machine's own"):
        grpc.make(grpc.Config(far))


@pytest.mark.parametrize("wrong", ["", "nowhere", "127.0.0.1:http", "127.0.0.1:70000", ":5000"])
def test_what_is_no_address_is_refused(wrong):
    with pytest.raises(ConfigError, match='expected "unix:/path" or "host:port"'):
        grpc.make(grpc.Config(wrong))


def test_an_address_that_is_served_is_not_taken_away(log, address):
    with served(log, address):
        with pytest.raises(ConfigError, match="another process serves it"):
            grpc.serve(log, address)
        with connected(address) as client:
            client.append("t", b"0", key="k").result(20)


def test_a_server_that_cannot_bind_says_why(log, tmp_path):
    (tmp_path / "file").write_text("mine")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for address, why in (
            (f"unix:{tmp_path}/missing/log.sock", "No such file or directory"),
            (f"unix:{tmp_path}/file", "Address already in use"),
            (f"unix:{tmp_path}/{'long' * 40}", "too long"),
            (f"127.0.0.1:{taken.getsockname()[1]}", "Address already in use"),
        ):
            with pytest.raises(ConfigError, match=why):
                grpc.serve(log, address)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_socket_that_a_dead_server_left_is_replaced(log, address):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(address.removeprefix("unix:"))
    with served(log, address), connected(address) as client:
        client.append("t", b"0", key="k").result(20)


def test_one_reply_acknowledges_many_and_can_refuse_some():
    def start(requests):
        def replies():
            seen = 0
            for request in requests:
                seen += len(request.messages)
                if seen == 5:
                    refused = wire.AppendReply.Error(index=3, kind="FullError", text="no room")
                    yield wire.AppendReply(settled=5, errors=[refused])

        return Stream(replies(), lambda: None)

    uplink = Uplink(start, to="there", wait=20.0, bound=1 << 20)
    futures = [uplink.append("t", b"x", "k") for _ in range(5)]
    failures = [type(future.exception(20)) for future in futures]
    uplink.close()
    assert failures == [type(None)] * 3 + [FullError, type(None)]


def test_small_messages_travel_together_but_not_without_end():
    sizes = []
    gate = threading.Event()

    def start(requests):
        def replies():
            gate.wait(20)
            for settled, request in enumerate(requests):
                sizes.append([len(message.payload) for message in request.messages])
                yield wire.AppendReply(settled=sum(map(len, sizes[: settled + 1])))

        return Stream(replies(), lambda: None)

    uplink = Uplink(start, to="there", wait=20.0, bound=64 << 20)
    futures = [uplink.append("t", bytes(300 << 10), "k") for _ in range(8)]
    gate.set()
    assert [future.result(20) for future in futures] == [None] * 8
    uplink.close()
    assert sizes == [[300 << 10] * 3, [300 << 10] * 3, [300 << 10] * 2]


def test_reading_ahead_is_bounded():
    taken, most = 0, 0

    def start(request):
        def replies():
            nonlocal most
            for offset in range(request.after[0], 50):
                most = max(most, offset - taken)
                yield wire.ReadReply(records=[wire.ReadReply.Record(payload=bytes(60), offset=offset)])

        return Stream(replies(), lambda: None)

    link = Downlink(start, "t", ALL, {0: 0}, bound=100)
    offsets = []
    while len(offsets) < 50:
        offsets += [record.offset for record in link.take(1, 20.0)]
        taken += 1
    link.close()
    assert offsets == list(range(50))
    assert most <= 4  # two that fill the bound, one that waits to be kept, one that is being taken
