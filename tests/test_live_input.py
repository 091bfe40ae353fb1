"""Bad input at both doors of a gateway: a clear answer, a dead letter with the reason, and nobody else disturbed."""

import http.client
import itertools
import re
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from msgspec import structs

from farfield import codec, columns
from farfield.canonical import spec_hash
from farfield.serving.tokens import draw
from farfield.transports import disk
from farfield.types import Credit, Dead, Fragment, Hello
from farfield.v1 import farfield_pb2 as wire
from farfield.v1.farfield_pb2_grpc import GatewayStub
from gateways import PATIENCE, Served, eventually, gateway
from live_client import CONFIG, Program, spec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
Code = grpc.StatusCode
RUN = "/api/v1/runs/live"
LIMIT = 1 << 20  # bytes of one payload
TOKENS = {
    "game": draw("game", ["ingest", "act", "create"], ["live"], None),
    "other": draw("other", ["ingest", "act"], ["elsewhere"], None),
    "old": draw("old", ["ingest", "act"], ["live"], None),
    "watcher": draw("watcher", ["read"], ["*"], None),
}
SECRET = TOKENS["game"][0]
Columns = dict[str, Any]


@dataclass
class Field:
    """A gateway with a program that is well, whatever others send."""

    served: Served
    program: Program
    log: disk.DiskTransport

    def letters(self) -> list[Dead]:
        """Read all dead letters."""
        return [codec.decode_dead(payload) for payload in self._payloads("experiences.dead")]

    def streams(self) -> set[str]:
        """Name the streams of all that is stored."""
        found = self._payloads("experiences")
        return {codec.decode_fragment(payload).stream for payload in found if codec.kind_of(payload) == "Fragment"}

    def told(self) -> Any:
        """Give what the gateway says of the run."""
        return self.served.ask(RUN, token=TOKENS["watcher"][0]).json

    def _payloads(self, topic: str) -> Iterator[Any]:
        records, place = self.log.read(topic, after={}, limit=256, timeout=0.0)
        while records:
            yield from (record.payload for record in records)
            records, place = self.log.read(topic, after=place, limit=256, timeout=0.0)


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    folder = tmp_path_factory.mktemp("input")
    ended = f"{datetime.now(UTC) - timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
    lines = ['grpc = "127.0.0.1:0"', 'http = "127.0.0.1:0"', f"limit = {LIMIT}", f"quota = {2 * LIMIT}"]
    for name, (_, token) in TOKENS.items():
        lines += ["[[tokens]]", f'name = "{name}"', f'sha256 = "{token.sha256}"', f"scopes = {list(token.scopes)}"]
        lines += [f"runs = {list(token.runs)}"] + ([f"expires = {ended}"] if name == "old" else [])
    (folder / "server.toml").write_text("\n".join(lines))
    with gateway(folder / "home", "--config", str(folder / "server.toml")) as served:
        program = Program(folder, served.grpc, token=SECRET, config=CONFIG, flush=0.2)
        try:
            program.until(lambda now: now["version"] >= 0 and now["owned"] > 0, "a version to act with")
            run = folder / "home" / "runs" / "live"
            log = disk.make(disk.Config(str(run / "log")))
            log.note("experiences", "test", {})
            yield Field(served, program, log)
            log.close()
        finally:
            program.end()


@pytest.fixture(autouse=True)
def undisturbed(field: Field) -> Iterator[None]:
    """See before and after each test that the other program is well."""
    before = field.program.now
    yield
    now = field.program.until(lambda now: now["owned"] > before["owned"], "experience of the other program")
    for name in ("reconnects", "rubbish", "refused", "dropped_steps", "fallbacks"):
        assert now[name] == before[name], name
    assert "Traceback" not in field.served.log


def facts(steps: int = 4, lanes: int = 1) -> Columns:
    """Make columns of a good fragment."""
    return {
        "obs": np.zeros((steps + 1, lanes, 3), np.float32),
        "mask": np.tile(np.asarray([True, True, False]), (steps + 1, lanes, 1)),
        "action": np.zeros((steps, lanes), np.int64),
        "reward": np.ones((steps, lanes), np.float32),
        "terminated": np.zeros((steps, lanes), bool),
        "truncated": np.zeros((steps, lanes), bool),
        "valid": np.ones((steps, lanes), bool),
        "first": np.zeros((steps, lanes), bool),
        "log_prob": np.full((steps, lanes), -1.0, np.float32),
    }


numbers = itertools.count(1)


def fragment(**changes: Any) -> Fragment:
    """Make a good fragment of a stream of its own, or one with something changed."""
    made = Fragment("live", f"{next(numbers):032x}", 0, 0, 1, spec_hash(spec()), facts(), decision=0)
    return structs.replace(made, **changes)


def changed(name: str, column: Any) -> bytes:
    """Encode a fragment with another column, or without it."""
    found = facts() | {name: column}
    return codec.encode_fragment(fragment(columns={name: it for name, it in found.items() if it is not None}))


def spoilt(name: str, value: object) -> bytes:
    """Encode a fragment with another number in the middle of a column."""
    column = facts()[name].copy()
    column[1, 0, ...] = value
    return changed(name, column)


def announced(size: int) -> bytes:
    """Give a payload that says it is longer than it is."""
    good = codec.encode_fragment(fragment())
    return good[:1] + struct.pack("<I", size) + good[5:]


def credit(**changes: Any) -> bytes:
    return codec.encode_credit(structs.replace(Credit("live", f"{1:032x}", 0, 1.0, "add", "id"), **changes))


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "shape": (lambda: changed("obs", np.zeros((5, 1, 4), np.float32)), "column 'obs'.*3.*4"),
    "rows": (lambda: changed("obs", np.zeros((4, 1, 3), np.float32)), "column 'obs'"),
    "dtype": (lambda: changed("obs", np.zeros((5, 1, 3))), "column 'obs'.*float32.*float64"),
    "text": (lambda: changed("reward", np.zeros((4, 1), np.int64)), "column 'reward'.*float32.*int64"),
    "nan": (lambda: spoilt("obs", np.nan), "column 'obs'.*nan"),
    "nan reward": (lambda: spoilt("reward", np.nan), "column 'reward'.*nan"),
    "infinite reward": (lambda: spoilt("reward", np.inf), "column 'reward'.*inf"),
    "unlikely": (lambda: spoilt("log_prob", -np.inf), "column 'log_prob'.*inf"),
    "unknown action": (lambda: spoilt("action", 3), "column 'action'.*3"),
    "negative action": (lambda: spoilt("action", -1), "column 'action'.*-1"),
    "forbidden action": (lambda: spoilt("action", 2), r"column 'action', row 1.*\[0, 1\].*'mask' allows, came 2"),
    "missing": (lambda: changed("action", None), "column 'action' is missing"),
    "unknown": (lambda: changed("bonus", np.zeros(4, np.float32)), "column 'bonus' is unknown"),
    "another run": (lambda: codec.encode_fragment(fragment(run="elsewhere")), "expected 'live', came 'elsewhere'"),
    "another spec": (lambda: codec.encode_fragment(fragment(spec="0" * 64)), "spec: expected"),
    "nothing": (lambda: codec.encode_fragment(fragment(columns=facts(0))), "reward"),
    "too many lanes": (lambda: codec.encode_fragment(fragment(columns=facts(1, 2000))), "1024"),
    "too large": (lambda: codec.encode_fragment(fragment(columns=facts(40, 1000))), "over the limit of 1048576"),
    "rubbish": (lambda: bytes(range(256)), ""),
    "half": (lambda: (found := codec.encode_fragment(fragment()))[: len(found) // 2], ""),
    "announces 2 GiB": (lambda: announced((1 << 31) - 1), ""),
    "infinite credit": (lambda: credit(reward=float("inf")), "credit 'id': reward.*inf"),
    "credit of another run": (lambda: credit(run="elsewhere"), "expected 'live', came 'elsewhere'"),
}  # fmt: skip


@contextmanager
def dialled(field: Field) -> Iterator[GatewayStub]:
    with grpc.insecure_channel(field.served.grpc) as channel:
        yield GatewayStub(channel)


def bearer(secret: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {secret}")] if secret else []


def said(**options: Any) -> wire.Hello:
    return codec.write_hello(Hello(**{"run": "live", "spec": spec(), "client": "bad"} | options))


def appended(field: Field, *payloads: bytes) -> list[Any]:
    """Send payloads over one call; gives the refusals, once all are dealt with."""
    ups = [wire.Up(hello=said()), *(wire.Up(payloads=[payload]) for payload in payloads)]
    with dialled(field) as stub:
        downs = list(stub.Append(iter(ups), metadata=bearer(SECRET), timeout=PATIENCE))
    assert downs[-1].owned == len(payloads)
    return [refusal for down in downs for refusal in down.refusals]


@pytest.mark.parametrize("name", BAD)
def test_bad_payloads_are_refused_at_both_doors_with_a_dead_letter(field: Field, name: str) -> None:
    make, pattern = BAD[name]
    payload, before = make(), field.told()["counters"]
    good = [fragment() for _ in range(2)]
    (refusal,) = appended(field, codec.encode_fragment(good[0]), payload, codec.encode_fragment(good[1]))
    assert refusal.index == 1
    assert refusal.kind in ("SpecError", "CorruptError")
    reply = field.served.ask(f"{RUN}/fragments", payload, token=SECRET)
    assert reply.status in (400, 422), reply.body
    for text in (refusal.text, reply.json["detail"]):
        assert re.search(pattern, text), text

    def letters() -> list[Dead]:
        return [letter for letter in field.letters() if letter.payload == payload[: 64 << 10]]

    eventually(
        lambda: {letter.sender.split()[0] for letter in letters()} == {"bad", "rest"}, "dead letters from both doors"
    )
    assert {letter.size for letter in letters()} == {len(payload)}
    assert refusal.text in {letter.reason for letter in letters()}
    assert {one.stream for one in good} <= field.streams()
    after = field.told()["counters"]
    assert after["dead_letters"] == before["dead_letters"] + 2
    assert after["total"]["refused"] == before["total"]["refused"] + 2


@pytest.mark.parametrize(
    ("holder", "code", "text"),
    [
        ("", Code.UNAUTHENTICATED, "no token came"),
        ("nobody", Code.UNAUTHENTICATED, "unknown token"),
        ("old", Code.UNAUTHENTICATED, "token 'old' expired"),
        ("other", Code.PERMISSION_DENIED, "is for other runs than 'live'"),
    ],
)
def test_every_call_looks_at_the_token_and_says_what_is_wrong(field: Field, holder: str, code: Code, text: str) -> None:
    secret = TOKENS[holder][0] if holder in TOKENS else holder
    options = {"metadata": bearer(secret), "timeout": PATIENCE}
    ask = wire.ActRequest(hello=said(), observations=columns.write({"obs": np.zeros((1, 3), np.float32)}))
    with dialled(field) as stub:
        calls: dict[str, Callable[[], Any]] = {
            "Append": lambda: list(stub.Append(iter([wire.Up(hello=said())]), **options)),
            "Versions": lambda: list(stub.Versions(wire.VersionsRequest(hello=said()), **options)),
            "Act": lambda: list(stub.Act(iter([ask]), **options)),
            "ActOnce": lambda: stub.ActOnce(ask, **options),
            "Credit": lambda: stub.Credit(wire.CreditRequest(hello=said(), payloads=[credit()]), **options),
        }
        for name, call in calls.items():
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert (caught.value.code(), text in caught.value.details()) == (code, True), (name, caught.value.details())
    status = {Code.UNAUTHENTICATED: 401, Code.PERMISSION_DENIED: 403}[code]
    for path in ("greet", "fragments", "credits", "act"):
        reply = field.served.ask(f"{RUN}/{path}", {}, token=secret)
        assert (reply.status, text in reply.json["detail"]) == (status, True), (path, reply.body)


@pytest.mark.parametrize("protocol", [0, 99])
def test_a_client_of_another_time_hears_which_protocol_is_spoken(field: Field, protocol: int) -> None:
    hello = said(protocol=protocol, library="farfield-cpp 0.0.1")
    expected = f"expected 1, came {protocol} from 'farfield-cpp 0.0.1'"
    with dialled(field) as stub:
        for call in (
            lambda: stub.Greet(hello, metadata=bearer(SECRET), timeout=PATIENCE),
            lambda: list(stub.Append(iter([wire.Up(hello=hello)]), metadata=bearer(SECRET), timeout=PATIENCE)),
            lambda: list(stub.Versions(wire.VersionsRequest(hello=hello), metadata=bearer(SECRET), timeout=PATIENCE)),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert caught.value.code() is Code.FAILED_PRECONDITION
            assert expected in caught.value.details()
    reply = field.served.ask(f"{RUN}/greet", {"protocol": protocol, "library": "farfield-cpp 0.0.1"}, token=SECRET)
    assert (reply.status, expected in reply.json["detail"]) == (412, True), reply.body


def test_a_spec_that_is_another_one_is_refused_by_field(field: Field) -> None:
    ours = spec()
    other = structs.replace(
        ours, observations=(structs.replace(ours.observations[0], shape=(4,)), ours.observations[1])
    )
    with dialled(field) as stub, pytest.raises(grpc.RpcError) as caught:
        stub.Greet(said(spec=other), metadata=bearer(SECRET), timeout=PATIENCE)
    assert caught.value.code() is Code.INVALID_ARGUMENT
    assert re.search(r"'obs'.*shape.*3.*4", caught.value.details())


def test_what_fits_into_no_batch_is_counted_and_does_not_end_learning(field: Field) -> None:
    """Its sender had no way to know; the learner of everybody else goes on."""
    before = field.program.now["newest"]
    assert appended(field, codec.encode_fragment(fragment(columns=facts(16, 100)))) == []
    eventually(lambda: (field.told()["metrics"] or {}).get("dropped", 0) > 0, "its count")
    field.program.until(lambda now: now["newest"] > before + 1, "versions")
    assert field.told()["learner"]["starts"] == 1


def memory(pid: int) -> int:
    """Say how many bytes a process has ever had at once."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10


HUGE, ALLOWED = 2 << 30, 96 << 20


@pytest.fixture
def flat(field: Field) -> Iterator[None]:
    """See that the gateway takes no memory for what it will not take."""
    before = memory(field.served.pid)
    yield
    assert memory(field.served.pid) - before < ALLOWED


def literal(name: str, value: str) -> bytes:
    """Write a header in HPACK, as plainly as it can be."""
    assert max(len(name), len(value)) < 127
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def frame(kind: int, flags: int, stream: int, data: bytes) -> bytes:
    return struct.pack(">I", len(data))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + data


def until_refused(door: socket.socket) -> None:
    """Read HTTP/2 until the call has ended: trailers, a reset, or the end of everything."""
    reader = door.makefile("rb")
    while head := reader.read(9):
        size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        reader.read(size)
        if kind in (3, 7) or (kind == 1 and flags & 1):
            return


def test_a_message_of_two_gigabytes_is_refused_when_it_is_announced(field: Field, flat: None) -> None:
    host, _, port = field.served.grpc.rpartition(":")
    headers = {
        ":method": "POST", ":scheme": "http", ":path": "/farfield.v1.Gateway/Append", ":authority": field.served.grpc,
        "te": "trailers", "content-type": "application/grpc", "authorization": f"Bearer {SECRET}",
    }  # fmt: skip
    up = wire.Up(hello=said()).SerializeToString()
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as door:
        door.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
        door.sendall(frame(1, 4, 1, b"".join(literal(*pair) for pair in headers.items())))
        door.sendall(frame(0, 0, 1, b"\x00" + struct.pack(">I", len(up)) + up))
        door.sendall(frame(0, 0, 1, b"\x00" + struct.pack(">I", HUGE) + bytes(10_000)))
        until_refused(door)


def test_a_body_of_two_gigabytes_is_refused_when_it_is_announced(field: Field, flat: None) -> None:
    reply = field.served.ask(f"{RUN}/fragments", b"", token=SECRET, method="POST", content_length=str(HUGE))
    assert reply.status == 413
    assert "larger than this gateway takes" in reply.json["detail"]


def test_a_body_without_end_is_refused_while_it_comes(field: Field, flat: None) -> None:
    host, _, port = field.served.http.removeprefix("http://").rpartition(":")
    chunk, sent = bytes(1 << 20), 0
    line = http.client.HTTPConnection(host, int(port), timeout=PATIENCE)
    line.putrequest("POST", f"{RUN}/fragments")
    for name, value in {"authorization": f"Bearer {SECRET}", "content-type": "application/x-protobuf"}.items():
        line.putheader(name, value)
    line.putheader("transfer-encoding", "chunked")
    line.endheaders()
    assert line.sock is not None
    while sent < HUGE and not select.select([line.sock], [], [], 0)[0]:
        line.send(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        sent += len(chunk)
    assert line.sock.recv(12).endswith(b"413")
    line.close()
    assert sent < ALLOWED


def test_a_flood_of_payloads_waits_outside(field: Field, flat: None) -> None:
    """A client that sends far more than its quota, and waits for nothing."""
    payload = codec.encode_fragment(fragment(columns=facts(50, 400)))
    ups = (wire.Up(hello=said()) if number == 0 else wire.Up(payloads=[payload]) for number in range(500))
    with dialled(field) as stub:
        *_, last = stub.Append(ups, metadata=bearer(SECRET), timeout=PATIENCE)
    assert last.owned == 499
    assert 499 * len(payload) > 2 * ALLOWED
