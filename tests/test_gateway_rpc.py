"""The gateway's calls over real sockets: what clients are told, what a lost or hostile one changes for the others."""

import contextlib
import datetime
import socket
import subprocess
import threading

import grpc
import numpy as np
import pytest
from msgspec.structs import replace

from farfield import columns as wires
from farfield.codec import decode_announcement, decode_dead, decode_fragment, encode_credit, read_welcome
from farfield.errors import ConfigError, FullError
from farfield.serving.hosted import DEAD, EXPERIENCES, Limits
from farfield.serving.tokens import Token, digest
from farfield.types import Credit
from farfield.v1 import farfield_pb2 as wire
from hosting import (
    SPEC,
    STREAM,
    Runs,
    Sender,
    announce,
    bearer,
    dialled,
    gateway,
    hello,
    payload,
)

pytestmark = pytest.mark.timeout(120)
Code = grpc.StatusCode


@pytest.fixture(params=["memory", "disk"])
def runs(request, tmp_path):
    return Runs(tmp_path, request.param)


@pytest.fixture
def plain(tmp_path):
    return Runs(tmp_path)


def refused(call):
    """What a call was ended with."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()


def records(host, topic=EXPERIENCES, run="game"):
    found, place = [], {}
    while True:
        some, place = host.find(run)._log.read(topic, after=place, limit=100, timeout=0.0)
        if not some:
            return found
        found += some


def seqs(host, run="game"):
    return [decode_fragment(record.payload).seq for record in records(host, run=run)]


def until(condition, seconds=30):
    done = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        done.wait(0.01)
    raise AssertionError("it never came true")


# -- the good way ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["tcp", "unix"])
def test_a_client_is_welcomed_and_what_it_sends_is_owned(runs, tmp_path, where):
    options = {"address": f"unix:{tmp_path}/gateway.sock"} if where == "unix" else {}
    with gateway(runs, **options) as (host, address), dialled(address) as stub:
        assert read_welcome(stub.Greet(hello())).spec == SPEC
        sender = Sender(stub)
        assert sender.welcome().quota == Limits().quota
        sender.send(*[payload(seq) for seq in range(5)])
        sender.send(payload(5), probe=b"ping")
        sender.send(encode_credit(Credit("game", STREAM, 3, 1.0, "add", "one")))
        sender.wait(8)
        assert not sender.refusals
        sender.send(payload(6))
        sender.end()
        assert sender.owned == 9
        found = [record for record in records(host) if len(record.payload) > 200]
        assert [decode_fragment(record.payload).seq for record in found] == list(range(7))


def test_what_was_resent_on_another_connection_is_stored_once(runs):
    with gateway(runs) as (host, address):
        for _ in range(3):
            with dialled(address) as stub:
                sender = Sender(stub)
                sender.welcome()
                sender.send(*[payload(seq) for seq in range(10)])
                sender.wait(10)
        assert seqs(host) == list(range(10))


def test_a_restarted_gateway_knows_what_it_owns(tmp_path):
    runs = Runs(tmp_path, "disk")
    for start in (0, 3):
        with gateway(runs) as (host, address), dialled(address) as stub:
            sender = Sender(stub)
            sender.welcome()
            sender.send(*[payload(seq) for seq in range(start, start + 6)])
            sender.wait(6)
            if start:
                assert seqs(host) == list(range(9))


def test_settled_marks_come_down_for_the_streams_that_went_up(plain):
    with gateway(plain) as (host, address), dialled(address) as stub:
        sender = Sender(stub)
        sender.welcome()
        sender.send(payload(0))
        sender.wait(1)
        log = host.find("game")._log
        announce(log, 1, settled={STREAM: 1, "cd" * 16: 9})
        while not sender.settled:
            sender.read()
        assert sender.settled == {STREAM: 1}
        announce(log, 1, settled={STREAM: 2})
        while sender.settled != {STREAM: 2}:
            sender.read()
        again = Sender(stub)  # the stream's next connection hears at once
        again.welcome()
        again.send(payload(0))
        while again.settled != {STREAM: 2}:
            again.read()


def test_one_open_call_follows_all_versions(plain):
    with gateway(plain) as (host, address), dialled(address) as stub:
        follower = stub.Versions(wire.VersionsRequest(hello=hello()), timeout=60)
        until(lambda: host.find("game"))
        log = host.find("game")._log
        announce(log, 1)
        first = decode_announcement(next(follower).announcement)
        assert first.full
        assert first.version.number == 1
        announce(log, 2)  # its bias is the same
        second = decode_announcement(next(follower).announcement)
        assert (second.version.number, sorted(second.weights)) == (2, ["logits/kernel"])
        have = {name: bytes.fromhex(second.version.tensors[name].sha256) for name in first.weights}
        late = stub.Versions(wire.VersionsRequest(hello=hello(), have=have), timeout=60)
        assert decode_announcement(next(late).announcement).weights == {}


def test_a_follower_that_reads_slowly_gets_the_newest(plain):
    with gateway(plain) as (host, address), dialled(address) as stub:
        follower = stub.Versions(wire.VersionsRequest(hello=hello()), timeout=60)
        until(lambda: host.find("game"))
        for number in range(1, 50):
            announce(host.find("game")._log, number)
        numbers = [0]
        while numbers[-1] < 49:
            numbers.append(decode_announcement(next(follower).announcement).version.number)
        assert numbers == sorted(set(numbers))


def test_followers_of_a_run_that_was_closed_find_it_anew(plain):
    with gateway(plain) as (host, address), dialled(address) as stub:
        follower = stub.Versions(wire.VersionsRequest(hello=hello()), timeout=60)
        follower.initial_metadata()
        sender = Sender(stub)
        sender.welcome()
        host.drop("game")
        assert refused(lambda: next(follower))[0] is Code.UNAVAILABLE
        again = Sender(stub)
        again.welcome()
        again.send(payload(0))
        again.wait(1)
        assert seqs(host) == [0]


def test_late_rewards_come_from_any_process(plain):
    good = Credit("game", STREAM, 3, 1.0, "add", "one")
    with gateway(plain) as (host, address), dialled(address) as stub:
        reply = stub.Credit(wire.CreditRequest(hello=hello(), payloads=[encode_credit(good)] * 2))
        assert reply.owned == len(records(host)) == 2
        bad = encode_credit(replace(good, reward=float("nan")))
        code, text = refused(lambda: stub.Credit(wire.CreditRequest(hello=hello(), payloads=[bad])))
        assert (code, "finite" in text) == (Code.INVALID_ARGUMENT, True)
        code, _ = refused(lambda: stub.Credit(wire.CreditRequest(hello=hello(), payloads=[b"rubbish"])))
        assert code is Code.INVALID_ARGUMENT


# -- acting ------------------------------------------------------------------------------------------------------


def ask(number=0, lanes=1, **options):
    seen = wires.write({"obs": np.full((lanes, 4), 0.1, np.float32)})
    return wire.ActRequest(id=number, **{"observations": seen, "stream": bytes.fromhex(STREAM)} | options)


def test_acting_waits_for_the_first_version(plain):
    with gateway(plain) as (host, address), dialled(address) as stub:
        assert refused(lambda: stub.ActOnce(ask(hello=hello())))[0] is Code.UNAVAILABLE
        assert refused(lambda: next(stub.Act(iter([ask(hello=hello())]))))[0] is Code.UNAVAILABLE
        announce(host.find("game")._log, 1)
        until(lambda: host.find("game").release())
        reply = stub.ActOnce(ask(3, lanes=2, hello=hello()))
        assert (reply.id, reply.version, reply.attempt, reply.error) == (3, 1, 1, "")
        assert wires.read(reply.actions)["action"].shape == (2,)
        assert wires.read([reply.log_prob])["log_prob"].shape == (2,)
        greedy = stub.ActOnce(ask(hello=hello(), stream=b""))
        assert not greedy.HasField("log_prob")


def test_one_call_asks_many_times_and_errors_are_each_requests_own(plain):
    with gateway(plain) as (host, address), dialled(address) as stub:
        stub.Greet(hello())
        announce(host.find("game")._log, 1)
        until(lambda: host.find("game").release())
        seen = wires.write({"obs": np.zeros((1, 5), np.float32)})
        asks = [wire.ActRequest(hello=hello()), ask(1), ask(2, observations=seen), ask(3, stream=b"short"), ask(4)]
        replies = {reply.id: reply for reply in stub.Act(iter(asks), timeout=60)}
        assert sorted(replies) == [1, 2, 3, 4]
        assert "expected float32 [1, 4], came float32 [1, 5]" in replies[2].error
        assert "expected 16 bytes" in replies[3].error
        assert replies[1].actions
        assert replies[4].actions
        code, text = refused(lambda: stub.ActOnce(ask(1, observations=seen, hello=hello())))
        assert (code, "[1, 5]" in text) == (Code.INVALID_ARGUMENT, True)


def test_more_requests_than_may_wait_are_all_answered(plain):
    with gateway(plain) as (host, address), dialled(address) as stub:
        stub.Greet(hello())
        announce(host.find("game")._log, 1)
        until(lambda: host.find("game").release())
        asks = [ask(0, hello=hello()), *[ask(number) for number in range(1, 1000)]]
        assert sorted(reply.id for reply in stub.Act(iter(asks), timeout=60)) == list(range(1000))


# -- who is let in -----------------------------------------------------------------------------------------------


def token(secret, scopes=("ingest", "act"), runs=("*",), **options):
    return Token(name=secret, sha256=digest(secret), scopes=scopes, runs=runs, **options)


CALLS = {
    "Greet": lambda stub, who, **options: stub.Greet(who, **options),
    "Append": lambda stub, who, **options: next(stub.Append(iter([wire.Up(hello=who)]), **options)),
    "Versions": lambda stub, who, **options: next(stub.Versions(wire.VersionsRequest(hello=who), **options)),
    "Act": lambda stub, who, **options: next(stub.Act(iter([ask(hello=who)]), **options)),
    "ActOnce": lambda stub, who, **options: stub.ActOnce(ask(hello=who), **options),
    "Credit": lambda stub, who, **options: stub.Credit(wire.CreditRequest(hello=who), **options),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_call_looks_at_the_token_the_run_and_the_spec(plain, name):
    past = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    tokens = [
        token("good"), token("other's", runs=("other",)), token("old", expires=past), token("mute", ("operate",)),
    ]  # fmt: skip
    other = replace(SPEC, actions=(replace(SPEC.actions[0], sizes=(4,)),))
    with gateway(plain, tokens=tokens) as (_, address), dialled(address) as stub:
        stub.Greet(hello(), metadata=bearer("good"))
        for secret, who, expected, words in [
            ("", hello(), Code.UNAUTHENTICATED, "no token came"),
            ("bad", hello(), Code.UNAUTHENTICATED, "unknown token"),
            ("old", hello(), Code.UNAUTHENTICATED, "expired"),
            ("other's", hello(), Code.PERMISSION_DENIED, "other runs than 'game'"),
            ("mute", hello(), Code.PERMISSION_DENIED, "may operate"),
            ("good", hello("lost"), Code.NOT_FOUND, "no run 'lost'"),
            ("good", hello("../x"), Code.INVALID_ARGUMENT, "expected letters"),
            ("good", hello(spec=other), Code.INVALID_ARGUMENT, "field 'action': sizes: expected [3], came [4]"),
            ("good", hello(protocol=9), Code.FAILED_PRECONDITION, "protocol: expected 1, came 9"),
            ("good", hello(config={"seed": 1}, run="new"), Code.PERMISSION_DENIED, "create"),
            ("good", wire.Hello(run="game", spec=b"{", protocol=1), Code.INVALID_ARGUMENT, "JSON"),
        ]:
            code, text = refused(lambda: CALLS[name](stub, who, metadata=bearer(secret), timeout=20))  # noqa: B023
            assert (code, words in text) == (expected, True), (code, text)


def test_runs_are_created_by_clients_that_may(plain):
    plain.known.clear()
    with gateway(plain, tokens=[token("maker", ("ingest", "create"))]) as (_, address), dialled(address) as stub:
        welcome = stub.Greet(hello(config={"seed": 1}), metadata=bearer("maker"))
        assert welcome.created
        assert not stub.Greet(hello(), metadata=bearer("maker")).created


def test_there_are_only_so_many_clients(plain):
    with gateway(plain, clients=1) as (host, address), dialled(address) as stub:
        first = Sender(stub)
        first.welcome()
        code, text = refused(Sender(stub).welcome)
        assert (code, "its limit" in text) == (Code.RESOURCE_EXHAUSTED, True)
        first.call.cancel()
        until(lambda: host.clients == 0)
        assert Sender(stub).welcome().run == "game"


def test_an_address_that_is_taken_is_said(plain):
    with gateway(plain) as (_, address):  # noqa: SIM117 - one after the other
        with pytest.raises(ConfigError, match="give another address"), gateway(plain, address=address):
            pass


# -- bad input ---------------------------------------------------------------------------------------------------


def test_refusals_have_their_place_and_disturb_nothing(runs):
    with gateway(runs) as (host, address), dialled(address) as stub:
        sender, other = Sender(stub, client="bad"), Sender(stub, client="good")
        sender.welcome()
        other.welcome()
        nan = payload(1, reward=np.full((8, 1), np.nan, np.float32))
        sender.send(payload(0), b"rubbish", payload(7, run="lost"), nan, bytes(200), payload(1))
        other.send(payload(0, stream="cd" * 16))
        sender.wait(6)
        other.wait(1)
        kinds = {index: refusal.kind for index, refusal in sender.refusals.items()}
        assert kinds == {1: "CorruptError", 2: "SpecError", 3: "SpecError", 4: "CorruptError"}
        assert "expected a finite number, came nan" in sender.refusals[3].text
        assert not other.refusals
        assert sorted(seqs(host)) == [0, 0, 1]
        until(lambda: len(records(host, DEAD)) == 4)
        letters = [decode_dead(record.payload) for record in records(host, DEAD)]
        assert {letter.sender for letter in letters} == {"bad"}
        assert letters[1].payload == payload(7, run="lost")


def test_payloads_and_messages_that_are_too_large_are_refused(tmp_path):
    runs = Runs(tmp_path, limits=Limits(payload=1 << 20))
    with gateway(runs) as (host, address), dialled(address) as stub:
        sender = Sender(stub)
        sender.welcome()
        sender.send(bytes((1 << 20) + 1), payload(0))
        sender.wait(2)
        assert "over the limit of 1048576" in sender.refusals[0].text
        sender.send(bytes(20 << 20))  # nobody even reads it
        code, text = refused(lambda: sender.wait(3))
        assert (code, "larger than max" in text) == (Code.RESOURCE_EXHAUSTED, True)
        until(lambda: host.clients == 0)
        again = Sender(stub)
        again.welcome()
        again.send(payload(1))
        again.wait(1)
        assert seqs(host) == [0, 1]


def test_nothing_is_unpacked(plain):
    with gateway(plain) as (_, address), dialled(address) as stub:
        call = stub.Append(iter([wire.Up(hello=hello(), probe=bytes(1 << 20))]), compression=grpc.Compression.Gzip)
        assert refused(lambda: list(call))[0] is Code.UNIMPLEMENTED


def test_who_never_says_hello_is_told(plain):
    with gateway(plain) as (_, address), dialled(address) as stub:
        assert refused(lambda: next(stub.Append(iter([]))))[0] is Code.INVALID_ARGUMENT


def test_errors_that_nobody_foresaw_tell_nothing_of_the_inside(plain, monkeypatch):
    monkeypatch.setattr(plain, "open", lambda run, config: {}["secret"])
    with gateway(plain) as (_, address), dialled(address) as stub:
        code, text = refused(lambda: stub.Greet(hello()))
        assert (code, "secret" in text) == (Code.INTERNAL, False)


# -- room, silence and the end -----------------------------------------------------------------------------------


def test_a_full_run_waits_for_room_and_does_not_hold_another(tmp_path):
    runs = Runs(tmp_path, room=3 * len(payload(5)) + 10, create=("game", "other"))
    with gateway(runs) as (host, address), dialled(address) as stub:
        full, other = Sender(stub), Sender(stub, run="other")
        full.welcome()
        other.welcome()
        full.send(*[payload(seq) for seq in range(6)])
        full.wait(3)
        for seq in range(3):
            other.send(payload(seq, run="other"))
            other.wait(seq + 1)
        assert seqs(host) == [0, 1, 2]
        host.find("game")._log.note(EXPERIENCES, "learner", {0: 3})
        full.wait(6)
        assert seqs(host) == [3, 4, 5]


class Held:
    """A log whose records become durable when the test says so."""

    def __init__(self, log):
        self._log, self.waiting = log, []
        self.read, self.note, self.close = log.read, log.note, log.close

    def append(self, topic, payload, *, key):
        from concurrent.futures import Future

        future = Future()
        self.waiting.append((future, lambda: self._log.append(topic, payload, key=key)))
        return future

    def release(self, error=None):
        waiting, self.waiting = self.waiting, []
        for future, append in waiting:
            if error is None:
                append()
                future.set_result(None)
            else:
                future.set_exception(error)


@pytest.fixture
def held(tmp_path):
    runs = Runs(tmp_path, limits=Limits(quota=5 * len(payload(11))))
    log = Held(runs.log("game"))
    runs.log = lambda run: log
    return runs, log


def test_nothing_is_owned_before_it_is_durable(held):
    runs, log = held
    with gateway(runs) as (host, address), dialled(address) as stub:
        sender = Sender(stub)
        sender.welcome()
        sender.send(payload(0), b"rubbish", payload(1))
        until(lambda: len(log.waiting) == 3)  # with the dead letter
        assert host.find("game").counters().total.fragments == 0
        log.release()
        sender.wait(3)
        assert sender.refusals.keys() == {1}


def test_no_more_is_read_than_the_quota(held):
    runs, log = held
    with gateway(runs) as (_, address), dialled(address) as stub:
        sender = Sender(stub)
        sender.welcome()
        for seq in range(12):
            sender.send(payload(seq))
        until(lambda: len(log.waiting) == 5)
        probe = Sender(stub)  # another client's turn comes while the first one waits
        probe.welcome()
        assert len(log.waiting) == 5
        log.release()
        until(lambda: len(log.waiting) == 5)
        log.release()
        until(lambda: len(log.waiting) == 2)
        log.release()
        sender.wait(12)


def test_a_disk_that_fails_ends_the_call_and_the_client_sends_again(held):
    runs, log = held
    with gateway(runs) as (host, address), dialled(address) as stub:
        sender = Sender(stub)
        sender.welcome()
        sender.send(payload(0))
        until(lambda: log.waiting)
        log.release(FullError("the disk is full: make room"))
        code, text = refused(sender.read)
        assert (code, "make room" in text) == (Code.UNAVAILABLE, True)
        again = Sender(stub)
        again.welcome()
        again.send(payload(0))
        until(lambda: log.waiting)
        log.release()
        again.wait(1)
        assert seqs(host) == [0]


def test_stopping_answers_what_was_taken_and_says_unavailable(held):
    runs, log = held
    with contextlib.ExitStack() as stack:
        served = contextlib.ExitStack()
        _, address = served.enter_context(gateway(runs))
        stub = stack.enter_context(dialled(address))
        sender = Sender(stub)
        sender.welcome()
        follower = stub.Versions(wire.VersionsRequest(hello=hello()), timeout=60)
        follower.initial_metadata()
        sender.send(payload(0))
        until(lambda: log.waiting)
        timer = threading.Timer(0.2, log.release)
        timer.start()
        served.close()
        timer.join()
        sender.read()
        assert sender.owned == 1
        assert refused(sender.read)[0] is Code.UNAVAILABLE
        assert refused(lambda: next(follower))[0] is Code.UNAVAILABLE


def test_a_client_that_vanishes_leaves_nothing_behind(runs):
    with gateway(runs) as (host, address):
        for _ in range(3):
            with dialled(address) as stub:
                sender = Sender(stub)
                sender.welcome()
                follower = stub.Versions(wire.VersionsRequest(hello=hello()))
                sender.send(payload(0))
                sender.wait(1)
            del follower
        until(lambda: host.clients == 0)


def test_a_connection_that_went_silent_is_noticed(plain):
    with gateway(plain, silence=0.5) as (host, address), silent_proxy(address) as (door, freeze), dialled(door) as stub:
        sender = Sender(stub)
        sender.welcome()
        sender.send(payload(0))
        sender.wait(1)
        assert host.clients == 1
        freeze.set()  # nothing goes through any more, and nobody is told
        until(lambda: host.clients == 0)


@contextlib.contextmanager
def silent_proxy(address):
    """Pass bytes on until the event is set; then keep the connection open and pass nothing."""
    host, _, port = address.rpartition(":")
    listening = socket.create_server(("127.0.0.1", 0))
    freeze, ends = threading.Event(), [listening]

    def pump(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not freeze.is_set():
                    target.sendall(data)

    def accept():
        with contextlib.suppress(OSError):
            near = listening.accept()[0]
            far = socket.create_connection((host, int(port)))
            ends.extend([near, far])
            for pair in ((near, far), (far, near)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}", freeze
    finally:
        for end in ends:
            end.close()


def test_many_idle_clients_are_held(plain):
    with gateway(plain, clients=200) as (host, address), contextlib.ExitStack() as stack:
        senders, followers = [], []
        for _ in range(50):
            stub = stack.enter_context(dialled(address))
            senders.append(Sender(stub))
            senders[-1].welcome()
            followers.append(stub.Versions(wire.VersionsRequest(hello=hello()), timeout=60))
        assert host.clients == 50
        announce(host.find("game")._log, 1)
        for follower in followers:
            assert decode_announcement(next(follower).announcement).version.number == 1


# -- certificates ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    """A key and certificate that signs itself, as bytes."""
    folder = tmp_path_factory.mktemp("papers")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return (folder / "key.pem").read_bytes(), (folder / "cert.pem").read_bytes()


@pytest.mark.parametrize("mutual", [False, True])
def test_calls_are_encrypted_where_certificates_are_given(plain, papers, mutual):
    cert = papers[1]
    ours = grpc.ssl_server_credentials([papers], cert if mutual else None, mutual)
    with gateway(plain, credentials=ours) as (_, address):
        known = grpc.ssl_channel_credentials(cert, *(papers if mutual else ()))
        with dialled(address, credentials=known) as stub:
            assert stub.Greet(hello(), timeout=20).run == "game"
        with dialled(address) as stub:
            assert refused(lambda: stub.Greet(hello(), timeout=20))[0] is Code.UNAVAILABLE
        if mutual:
            with dialled(address, credentials=grpc.ssl_channel_credentials(cert)) as stub:
                assert refused(lambda: stub.Greet(hello(), timeout=20))[0] is Code.UNAVAILABLE
