"""The client's end of the Gateway service: everything arrives once and in order, whatever the server does."""

import threading
from contextlib import contextmanager
from functools import partial
from subprocess import run

import grpc
import numpy as np
import pytest

from farfield import codec
from farfield.errors import ConfigError, FullError, MissingError, SpecError
from farfield.transports.link import appending
from farfield.transports.link.gate import Gate, Tls, Told
from farfield.types import Credit, Hello
from small_gateway import SPEC, SmallGateway, until

STREAM = "ab" * 16


class Letter:
    """A parcel that remembers what became of it."""

    def __init__(self, payload):
        self.payload, self.size, self.fate = payload, len(payload), []

    def load(self):
        return self.payload

    def settle(self, refusal, lost=False):
        self.fate.append("lost" if lost else refusal or "owned")


class Ears:
    """Hears what a link tells."""

    def __init__(self):
        self.welcomes, self.marks, self.versions = [], {}, []
        self.told = Told(self.welcomes.append, self.marks.update, lambda v, w: self.versions.append((v, dict(w))))


@contextmanager
def linked(gateway, *, follow=True, token="", tls=None, hello=None):
    gate, ears = Gate(gateway.address, token=token, tls=tls), Ears()
    link = gate.link(hello or Hello("r", spec=SPEC), ears.told, follow=follow)
    try:
        yield link, ears
    finally:
        link.close()
        gate.close()


@pytest.fixture
def gateway():
    with SmallGateway("127.0.0.1:0") as running:
        yield running


def letters(count, size=100, start=0):
    return [
        Letter(codec.encode_credit(Credit("r", STREAM, start + n, 1.0, "add", f"{start + n}" + "x" * size)))
        for n in range(count)
    ]


def owned(gateway):
    return [credit.n for credit in gateway.credits()]


def test_payloads_arrive_in_order_and_are_owned(gateway):
    sent = letters(500)
    with linked(gateway) as (link, ears):
        for letter in sent:
            link.send(letter)
        until(lambda: sent[-1].fate)
        assert ears.welcomes[0].seed == 7
        assert (link.connected, link.sent, link.refusal) == (True, 500, None)
    assert owned(gateway) == list(range(500))
    assert all(letter.fate == ["owned"] for letter in sent)


def test_a_server_that_comes_late_gets_everything(gateway):
    address = gateway.address
    gateway.stop()
    with linked(gateway) as (link, ears):
        sent = letters(10)
        for letter in sent:
            link.send(letter)
        until(lambda: "UNAVAILABLE" in link.trouble)
        assert not link.connected
        gateway.start()
        assert gateway.address == address
        until(lambda: sent[-1].fate)
        assert len(ears.welcomes) == 1


def test_what_was_not_owned_is_sent_again_to_a_server_that_comes_back(gateway):
    with linked(gateway) as (link, ears):
        until(lambda: ears.welcomes)
        gateway.hold = True
        sent = letters(50)
        for letter in sent:
            link.send(letter)
        until(lambda: link.sent >= 1)
        gateway.stop()
        assert not any(letter.fate for letter in sent)
        gateway.hold = False
        gateway.start()
        until(lambda: sent[-1].fate)
        assert link.reconnects >= 1
    assert owned(gateway) == list(range(50))


def test_a_server_that_is_killed_again_and_again_gets_everything(gateway):
    sent = letters(2000)
    with linked(gateway) as (link, _):
        feeder = threading.Thread(target=lambda: [link.send(letter) for letter in sent])
        feeder.start()
        for _ in range(8):
            count = len(gateway.payloads)
            until(lambda count=count: len(gateway.payloads) > count or all(letter.fate for letter in sent))
            gateway.stop()
            gateway.start()
        until(lambda: all(letter.fate for letter in sent))
        feeder.join()
    arrived = owned(gateway)
    assert set(arrived) == set(range(2000))
    first = [n for place, n in enumerate(arrived) if n not in set(arrived[:place])]
    assert first == sorted(first)  # repeated perhaps, but never out of order
    assert all(letter.fate == ["owned"] for letter in sent)


def test_a_server_that_only_seems_to_be_there_is_left(gateway, monkeypatch):
    monkeypatch.setattr(appending, "STALL", 0.2)
    gateway.hold = True  # as where one end of a connection is gone
    with linked(gateway) as (link, ears):
        sent = letters(3)
        for letter in sent:
            link.send(letter)
        until(lambda: len(ears.welcomes) >= 2)
        gateway.hold = False
        until(lambda: sent[-1].fate)
    assert owned(gateway)[:3] == [0, 1, 2]


def test_no_more_is_on_its_way_than_the_server_allows():
    with SmallGateway("127.0.0.1:0", quota=1000) as gateway, linked(gateway) as (link, ears):
        until(lambda: ears.welcomes)
        gateway.hold = True
        sent = letters(30, size=200)
        for letter in sent:
            link.send(letter)
        until(lambda: link.sent >= 3)
        threading.Event().wait(0.2)  # long enough for more to be sent, were it sent
        assert link.sent <= 1000 // sent[0].size
        gateway.hold = False
        until(lambda: sent[-1].fate)


def test_refused_payloads_are_not_sent_again(gateway):
    gateway.refuse_payload = lambda payload: "no" if codec.decode_credit(payload).n % 3 == 0 else ""
    sent = letters(20)
    with linked(gateway) as (link, _):
        for letter in sent:
            link.send(letter)
        until(lambda: sent[-1].fate)
    assert [letter.fate for letter in sent] == [["SpecError: no"] if n % 3 == 0 else ["owned"] for n in range(20)]


def test_what_is_too_large_for_the_server_or_lost_by_the_disk_holds_nothing_up():
    with SmallGateway("127.0.0.1:0", limit=1000) as gateway, linked(gateway) as (link, _):
        sent = [*letters(1), *letters(1, size=2000), *letters(1, start=2), *letters(1, start=3)]
        sent[2].load = lambda: None
        for letter in sent:
            link.send(letter)
        until(lambda: sent[3].fate)
        assert sent[1].fate[0].startswith("FullError: ")
        assert (sent[0].fate, sent[2].fate) == (["owned"], ["lost"])
        assert owned(gateway) == [0, 3]


def test_settled_marks_come_with_the_streams_of_a_call(gateway):
    from farfield.codec import encode_fragment
    from farfield.types import Fragment

    fragment = Fragment(
        "r", STREAM, 0, 1, 1, "5a" * 32, {"reward": np.zeros((1, 1), np.float32), "valid": np.ones((1, 1), bool)}
    )
    with linked(gateway) as (link, ears):
        letter = Letter(encode_fragment(fragment))
        link.send(letter)
        until(lambda: letter.fate)
        gateway.settle(**{STREAM: 1, "cd" * 16: 9})
        until(lambda: ears.marks)
        assert ears.marks == {STREAM: 1}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, ConfigError),
        (grpc.StatusCode.PERMISSION_DENIED, ConfigError),
        (grpc.StatusCode.FAILED_PRECONDITION, ConfigError),
        (grpc.StatusCode.NOT_FOUND, MissingError),
        (grpc.StatusCode.INVALID_ARGUMENT, SpecError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, FullError),
    ],
)
def test_a_final_refusal_ends_trying_and_says_why(gateway, status, kind):
    gateway.refuse_call = (status, "because: do this")
    with linked(gateway) as (link, _):
        until(lambda: link.refusal)
        assert isinstance(link.refusal, kind)
        assert "because: do this" in str(link.refusal)
        asked = len(gateway.hellos)
        gateway.refuse_call = None
        threading.Event().wait(0.5)
        assert len(gateway.hellos) <= asked + 1  # another call may have been on its way; tries again would be many


def test_a_server_that_is_busy_is_tried_again(gateway):
    gateway.refuse_call = (grpc.StatusCode.UNAVAILABLE, "stopping")
    with linked(gateway) as (link, ears):
        until(lambda: "stopping" in link.trouble)
        gateway.refuse_call = None
        until(lambda: ears.welcomes)
        assert link.refusal is None


@pytest.mark.parametrize("call", ["welcome", "Append", "Versions", "Act"])
def test_rubbish_is_a_lost_connection_that_is_counted(gateway, call):
    gateway.publish(1)
    gateway.rubbish = call
    with linked(gateway) as (link, ears):
        (letter,) = letters(1)
        link.send(letter)
        if call == "Act":
            answer = link.ask({"obs": np.zeros((1, 8), np.float32)}, {}, stream=STREAM, decision=0, timeout=5)
            assert answer.action["action"].tolist() == [99]  # whether that makes sense, those say who know the spec
            return
        until(lambda: link.rubbish >= 2)
        assert "rubbish" in " ".join(line.trouble for line in link.lines)
        gateway.rubbish = None
        until(lambda: letter.fate and ears.versions)
        assert letter.fate == ["owned"]


def test_bytes_that_are_no_messages_are_rubbish_too():
    from concurrent.futures import ThreadPoolExecutor

    class Noise(grpc.GenericRpcHandler):
        def service(self, details):
            return grpc.stream_stream_rpc_method_handler(lambda requests, context: iter([b"\xff\xff\xff noise"]))

    server = grpc.server(ThreadPoolExecutor(8), handlers=[Noise()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    gate, ears = Gate(f"127.0.0.1:{port}"), Ears()
    link = gate.link(Hello("r"), ears.told, follow=True)
    try:
        until(lambda: all("deserializ" in line.trouble.lower() for line in link.lines[:2]))
        assert link.refusal is None
    finally:
        link.close()
        gate.close()
        server.stop(None)


def test_only_what_a_follower_lacks_travels(gateway):
    gateway.publish(1)
    with linked(gateway) as (_, ears):
        until(lambda: len(ears.versions) == 1)
        _, weights = ears.versions[0]
        changed = {name: value.copy() for name, value in gateway.version[1].items()}
        name = next(name for name in weights if name.endswith("kernel"))
        changed[name] += 1
        gateway.publish(2, weights=changed)
        until(lambda: len(ears.versions) == 2)
        gateway.stop()
        gateway.start()
        gateway.publish(3, weights=changed)
        until(lambda: len(ears.versions) == 3)
    lacking = [names for _, names in gateway.versions_sent]
    assert set(lacking[0]) == set(weights)
    assert not any(name.startswith("value") for name in lacking[0])
    assert lacking[1:] == [[name], []]
    assert [version.number for version, _ in ears.versions] == [1, 2, 3]
    np.testing.assert_array_equal(ears.versions[2][1][name], changed[name])


def test_a_server_that_comes_back_empty_begins_anew(gateway):
    gateway.publish(40)
    with linked(gateway) as (_, ears):
        until(lambda: ears.versions)
        gateway.stop()
        gateway.publish(0, seed=5)
        gateway.start()
        until(lambda: len(ears.versions) == 2)
    assert [version.number for version, _ in ears.versions] == [40, 0]


def test_many_threads_ask_at_once(gateway):
    gateway.publish(1)
    answers = {}
    with linked(gateway, follow=False) as (link, _):

        def ask(n):
            obs = {"obs": np.full((1, 8), n, np.float32)}
            answers[n] = link.ask(obs, {}, stream=STREAM, decision=n, timeout=10)

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert gateway.acts == 20
    assert all(answer.version == 1 and answer.log_prob.shape == (1,) for answer in answers.values())


def test_a_question_waits_no_longer_than_it_may_and_survives_a_lost_call(gateway):
    gateway.publish(1)
    obs = {"obs": np.zeros((1, 8), np.float32)}
    with linked(gateway, follow=False) as (link, _):
        gateway.deaf = True
        assert link.ask(obs, {}, stream=STREAM, decision=0, timeout=0.2) is None
        found = []
        thread = threading.Thread(target=lambda: found.append(link.ask(obs, {}, stream=STREAM, decision=0, timeout=20)))
        thread.start()
        gateway.deaf = False
        gateway.stop()
        gateway.start()
        thread.join()
        assert found[0].version == 1
        assert link.ask(obs, {}, stream="", decision=0, timeout=20).log_prob is None


def test_tokens_travel_with_every_call():
    with SmallGateway("127.0.0.1:0", token="secret") as gateway:
        gateway.publish(1)
        with linked(gateway, token="secret") as (link, ears):
            until(lambda: ears.welcomes and ears.versions)
            assert link.ask({"obs": np.zeros((1, 8), np.float32)}, {}, stream="", decision=0, timeout=5)
        with linked(gateway, token="wrong") as (link, _):
            until(lambda: link.refusal)
            assert "no such token" in str(link.refusal)


def test_single_calls_ask_once(gateway):
    gateway.publish(6)
    gate = Gate(gateway.address)
    hello = Hello("r", spec=SPEC)
    assert gate.greet(hello, 5).version == 6
    assert gate.credit(hello, [letters(1)[0].payload], 5) == 1
    assert gate.newest(hello, 5).number == 6
    answers = gate.probe(hello, 100, 5)
    for _ in range(3):
        next(answers)
    answers.close()
    assert gateway.probes == 2
    gateway.refuse_call = (grpc.StatusCode.NOT_FOUND, "no run: make one")
    with pytest.raises(MissingError, match="no run: make one"):
        gate.greet(hello, 5)
    gateway.stop()
    with pytest.raises(ConnectionError):
        gate.greet(hello, 0.3)
    gate.close()


def certificate(folder, name, *, signer=None):
    """A certificate for `localhost`, and its key, as files; signed by itself or by `signer`."""
    key, request, cert, about = (folder / f"{name}.{end}" for end in ("key", "csr", "pem", "cnf"))
    about.write_text(
        f"subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:{'FALSE' if signer else 'TRUE'}\n"
    )
    make = partial(run, check=True, capture_output=True)
    make(["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key,
          "-out", request, "-subj", f"/CN={name}"])  # fmt: skip
    by = ["-signkey", key] if signer is None else ["-CA", signer[0], "-CAkey", signer[1], "-CAcreateserial"]
    make(["openssl", "x509", "-req", "-in", request, "-out", cert, "-days", "2", "-extfile", about, *by])
    return cert, key


def test_tls_and_mutual_tls(tmp_path):
    authority = certificate(tmp_path, "authority")
    server, client = (certificate(tmp_path, name, signer=authority) for name in ("server", "client"))
    pair = [(server[1].read_bytes(), server[0].read_bytes())]
    for mutual in (False, True):
        credentials = grpc.ssl_server_credentials(pair, authority[0].read_bytes() if mutual else None, mutual)
        mine = Tls(ca=str(authority[0]), cert=str(client[0]), key=str(client[1]))
        with SmallGateway("127.0.0.1:0", credentials=credentials) as gateway:
            with linked(gateway, tls=mine, token="t") as (_, ears):
                until(lambda ears=ears: ears.welcomes)
            stranger = Tls() if not mutual else Tls(ca=str(authority[0]))
            with linked(gateway, tls=stranger) as (link, ears):
                until(lambda link=link: "UNAVAILABLE" in link.trouble)
                assert not ears.welcomes
    with pytest.raises(ConfigError, match=r"tls: ca = .*missing\.pem.*; give a PEM file"):
        Gate("localhost:1", tls=Tls(ca=str(tmp_path / "missing.pem")))


def test_unix_sockets_will_do(tmp_path):
    with SmallGateway(f"unix:{tmp_path}/g.sock") as gateway, linked(gateway) as (_, ears):
        until(lambda: ears.welcomes)
