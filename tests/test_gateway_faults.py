"""The gateway when things go wrong: kills, crashing learners, strangers, old clients; and certificates."""

import os
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from farfield import codec
from farfield.serving.tokens import draw
from farfield.types import Hello
from farfield.v1 import farfield_pb2 as wire
from farfield.v1.farfield_pb2_grpc import GatewayStub
from fragments import PLAIN_SPEC, ROWS, SPEC, TINY, payload
from gateways import Served, eventually, exists, gateway

RUN = "/api/v1/runs/lander"
Code = grpc.StatusCode


@contextmanager
def stub(address: str, credentials: grpc.ChannelCredentials | None = None) -> Iterator[GatewayStub]:
    channel = grpc.secure_channel(address, credentials) if credentials else grpc.insecure_channel(address)
    with channel:
        yield GatewayStub(channel)


def greet(
    served: Served, token: str = "", credentials: grpc.ChannelCredentials | None = None, **hello: Any
) -> wire.Welcome:
    with stub(served.grpc, credentials) as door:
        metadata = [("authorization", f"Bearer {token}")] if token else []
        facts = {"run": "lander", "spec": SPEC} | hello
        return door.Greet(codec.write_hello(Hello(**facts)), metadata=metadata, timeout=60)


def refused(served: Served, token: str = "", **hello: Any) -> tuple[Code, str]:
    with pytest.raises(grpc.RpcError) as caught:
        greet(served, token, **hello)
    return caught.value.code(), caught.value.details()


def begin(served: Served, config: dict[str, Any] = TINY) -> None:
    """Make the run, as its first client."""
    reply = served.ask(f"{RUN}/greet", {"spec": PLAIN_SPEC, "config": config})
    assert reply.status == 200, reply.body


def send(served: Served, first: int, stop: int) -> None:
    for seq in range(first, stop):
        assert served.ask(f"{RUN}/fragments", payload(seq)).json == {"owned": 1, "refused": []}


def learned(served: Served) -> int:
    return (served.run("lander").get("metrics") or {}).get("steps", 0)


@pytest.mark.slow
def test_a_kill_loses_neither_runs_nor_what_was_acked(tmp_path: Path) -> None:
    with gateway(tmp_path) as served:
        begin(served)
        served.ask("/api/v1/runs/waiting/greet", {"config": TINY})  # its first client never said its spec
        learner = served.learner("lander")
        send(served, 0, 5)
        served.kill()
        eventually(lambda: not exists(learner), "the end of the learner with its gateway")
    with gateway(tmp_path) as served:
        eventually(lambda: served.ask("/readyz").status == 200, "readiness")
        states = {row["run"]: row["state"] for row in served.ask("/api/v1/runs").json["runs"]}
        assert states["waiting"] == "waiting"
        assert served.learner("lander") != learner
        send(served, 0, 5)  # nobody told the client that they had arrived
        assert served.run("lander")["counters"]["total"]["repeated"] == 5
        send(served, 5, 8)
        eventually(lambda: learned(served) == 8 * ROWS, "everything that was acked, once")
        assert served.stop() == 0


@pytest.mark.slow
def test_many_kills_lose_nothing_and_store_nothing_twice(tmp_path: Path) -> None:
    sent = 0
    for _ in range(4):
        with gateway(tmp_path) as served:
            if not sent:
                begin(served)
            eventually(lambda: served.ask("/readyz").status == 200, "readiness")
            send(served, max(0, sent - 2), sent + 4)  # the last two again: their answers might have been lost
            sent += 4
            served.kill()
    with gateway(tmp_path) as served:
        eventually(lambda: learned(served) == sent * ROWS, "everything that was acked, once")
        served.stop()
    names = (tmp_path / "runs/lander/ledger.jsonl").read_text()
    assert names


@pytest.mark.slow
def test_a_stop_leaves_no_process_and_a_checkpoint(tmp_path: Path) -> None:
    with gateway(tmp_path) as served:
        begin(served)
        learner = served.learner("lander")
        send(served, 0, 4)
        eventually(lambda: learned(served) == 4 * ROWS, "the updates")
        assert served.stop() == 0
        assert not exists(learner)
        assert "stopped" in served.log.splitlines()[-1]
    assert list((tmp_path / "runs/lander/checkpoints").glob("*.safetensors"))
    with gateway(tmp_path) as served:
        send(served, 4, 6)
        eventually(lambda: learned(served) == 6 * ROWS, "learning that goes on")
        assert served.run("lander")["metrics"]["attempt"] == 2


@pytest.mark.slow
def test_a_stop_ends_open_streams_with_a_word_to_try_again(tmp_path: Path) -> None:
    with gateway(tmp_path) as served:
        begin(served)
        hello = codec.write_hello(Hello(run="lander", spec=SPEC))
        told: list[Code] = []
        begun = threading.Event()

        def up() -> Iterator[wire.Up]:
            yield wire.Up(hello=hello)
            yield wire.Up(payloads=[payload(0)])
            begun.wait()

        with stub(served.grpc) as door:
            replies = door.Append(up())
            assert next(replies).welcome.run == "lander"
            while next(replies).owned < 1:
                pass
            versions = door.Versions(wire.VersionsRequest(hello=hello))
            next(versions)
            assert served.stop() == 0
            for call in (replies, versions):
                with pytest.raises(grpc.RpcError) as caught:
                    list(call)
                told.append(caught.value.code())
            begun.set()
        assert told == [Code.UNAVAILABLE, Code.UNAVAILABLE]


@pytest.mark.slow
def test_a_killed_learner_is_started_again_and_clients_do_not_notice(tmp_path: Path) -> None:
    with gateway(tmp_path) as served:
        begin(served)
        first = served.learner("lander")
        send(served, 0, 4)
        os.kill(first, signal.SIGKILL)
        send(served, 4, 8)
        eventually(lambda: served.run("lander")["learner"]["pid"] not in (None, first), "another learner")
        assert "was killed by SIGKILL" in served.run("lander")["learner"]["error"]
        eventually(lambda: learned(served) == 8 * ROWS, "everything")


BROKEN = """
from msgspec import Struct

FEED = "fresh"


class Config(Struct):
    learning_rate: float = 1.0


def make(config, **parts):
    raise RuntimeError("the arithmetic broke")
"""


@pytest.mark.slow
def test_a_learner_that_crashes_again_and_again_is_told_and_experience_is_kept(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    file = tmp_path / "lander.toml"
    file.write_text('[algorithm]\nkind = "broken"\n[lanes]\ncount = 2\nsteps = 4\n')
    paths = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    with gateway(tmp_path / "home", str(file), environment=paths) as served:
        assert served.ask(f"{RUN}/greet", {"spec": PLAIN_SPEC}).status == 200
        served.ask("/api/v1/runs/other/greet", {"spec": PLAIN_SPEC, "config": TINY})
        send(served, 0, 2)
        eventually(lambda: served.run("lander")["state"] == "failed", "the end of patience")
        learner = served.run("lander")["learner"]
        assert "RuntimeError: the arithmetic broke" in learner["error"]
        assert learner["crashes"] == learner["starts"] == 5
        assert "run lander failed" in served.log
        send(served, 2, 4)
        assert served.run("lander")["counters"]["total"]["fragments"] == 4
        eventually(lambda: served.ask("/api/v1/runs/other/versions/newest").status == 200, "a version of the other run")


@pytest.mark.slow
def test_settings_that_only_the_learner_finds_wrong_fail_at_once(tmp_path: Path) -> None:
    with gateway(tmp_path) as served:
        begin(served, TINY | {"algorithm": {"kind": "ppo", "minibatch": 3}})
        eventually(lambda: served.run("lander")["state"] == "failed", "the failure")
        learner = served.run("lander")["learner"]
        assert "minibatch = 3 does not divide" in learner["error"]
        assert str(tmp_path) not in learner["error"]
        assert learner["starts"] == 1


@pytest.mark.slow
def test_a_finished_run_takes_experience_and_learns_on_when_told_to(tmp_path: Path) -> None:
    file = tmp_path / "lander.toml"
    text = 'steps = {steps}\n[lanes]\ncount = 2\nsteps = 4\n[algorithm]\nkind = "ppo"\nminibatch = 8\nepochs = 1\n'
    file.write_text(text.format(steps=8))
    with gateway(tmp_path / "home", str(file)) as served:
        served.ask(f"{RUN}/greet", {"spec": PLAIN_SPEC})
        send(served, 0, 4)
        eventually(lambda: served.run("lander")["state"] == "finished", "the end of the run")
        assert served.run("lander")["learner"]["pid"] is None
        send(served, 4, 6)
        assert served.ask(f"{RUN}/act", {"observations": [[0, 0, 0]]}).status == 200
        served.stop()
    with gateway(tmp_path / "home", str(file)) as served:  # it is not begun again
        eventually(lambda: served.ask("/readyz").status == 200, "readiness")
        assert served.run("lander")["state"] == "finished"
        served.stop()
    file.write_text(text.format(steps=24))
    with gateway(tmp_path / "home", str(file)) as served:
        eventually(lambda: learned(served) == 24, "the rest")
        served.stop()


def test_a_run_keeps_for_life_what_it_was_begun_with(tmp_path: Path) -> None:
    file = tmp_path / "lander.toml"
    file.write_text("[lanes]\ncount = 2\nsteps = 4\n")
    with gateway(tmp_path / "home", str(file)) as served:
        assert served.ask(f"{RUN}/greet", {}).status == 422  # there is no spec yet
        served.stop()
    file.write_text("[lanes]\ncount = 4\nsteps = 4\n")
    words = ["serve", "--home", str(tmp_path / "home"), "--grpc", "127.0.0.1:0", "--http", "", str(file)]
    done = subprocess.run(
        [sys.executable, "-m", "farfield", *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "lanes.count was 2 when run 'lander' began and cannot become 4" in done.stderr.splitlines()[-1]


TOKENS = {
    "game": draw("game", ["ingest", "act"], ["lander"], None),
    "watcher": draw("watcher", ["read"], ["*"], None),
    "drain": draw("drain", ["operate"], ["*"], None),
    "maker": draw("maker", ["ingest", "create"], ["l*"], None),
    "old": draw("old", ["admin"], ["*"], None),
    "boss": draw("boss", ["admin"], ["*"], None),
}


def server_toml(folder: Path, more: str = "") -> Path:
    lines = ['grpc = "127.0.0.1:0"', 'http = "127.0.0.1:0"']
    for name, (_, token) in TOKENS.items():
        lines += ["[[tokens]]", f'name = "{name}"', f'sha256 = "{token.sha256}"', f"scopes = {list(token.scopes)}"]
        lines += [f"runs = {list(token.runs)}"] + (["expires = 2026-01-01T00:00:00Z"] if name == "old" else [])
    path = folder / "server.toml"
    path.write_text("\n".join(lines) + "\n" + more)
    return path


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("guarded")
    with gateway(folder / "home", "--config", str(server_toml(folder))) as served:
        greet(served, TOKENS["maker"][0], config=TINY)
        yield served


@pytest.mark.parametrize(
    ("holder", "run", "code", "text"),
    [
        ("", "lander", Code.UNAUTHENTICATED, "no token came"),
        ("nobody", "lander", Code.UNAUTHENTICATED, "unknown token"),
        ("old", "lander", Code.UNAUTHENTICATED, "token 'old' expired at 2026-01-01T00:00:00Z"),
        ("game", "other", Code.PERMISSION_DENIED, "is for other runs than 'other'"),
        ("drain", "lander", Code.PERMISSION_DENIED, "this takes ingest"),
        ("maker", "lost", Code.NOT_FOUND, "no run 'lost' here"),
    ],
)
def test_each_wrong_token_hears_what_is_wrong_with_it(
    guarded: Served, holder: str, run: str, code: Code, text: str
) -> None:
    secret = TOKENS[holder][0] if holder in TOKENS else holder
    found, said = refused(guarded, secret, run=run)
    assert (found, text in said) == (code, True), said
    statuses = {Code.UNAUTHENTICATED: 401, Code.PERMISSION_DENIED: 403, Code.NOT_FOUND: 404}
    reply = guarded.ask(f"/api/v1/runs/{run}/greet", {}, token=secret)
    assert (reply.status, text in reply.json["detail"]) == (statuses[code], True), reply.body
    for told in (said, reply.body.decode(), str(reply.headers), guarded.log):
        assert not secret or secret not in told
    assert (reply.headers.get("www-authenticate") == "Bearer") == (reply.status == 401)


def test_each_right_token_may_do_its_own(guarded: Served) -> None:
    game, watcher, maker, boss = (TOKENS[name][0] for name in ("game", "watcher", "maker", "boss"))
    assert greet(guarded, game).run == "lander"
    assert guarded.ask(f"{RUN}/fragments", payload(0), token=game).status == 200
    assert guarded.ask(f"{RUN}/fragments", payload(1), token=watcher).status == 403
    assert guarded.ask(RUN, token=game).status == 403
    assert guarded.ask(RUN, token=watcher).status == 200
    assert guarded.ask(RUN).status == 401
    assert guarded.ask("/metrics").status == 401
    assert guarded.ask("/metrics", token=watcher).status == 200
    assert guarded.ask("/livez").status == 200
    assert refused(guarded, game, run="lander.two", config=TINY)[0] is Code.PERMISSION_DENIED  # it may not create
    assert greet(guarded, maker, run="lander.two", config=TINY).created
    assert refused(guarded, maker, run="other", config=TINY)[0] is Code.PERMISSION_DENIED
    assert greet(guarded, boss, run="other", config=TINY).created
    assert {row["run"] for row in guarded.ask("/api/v1/runs", token=watcher).json["runs"]} >= {"lander", "other"}


def test_a_token_is_looked_at_before_a_body_is_read(guarded: Served) -> None:
    reply = guarded.ask(f"{RUN}/fragments", b"", content_length="1000000", method="POST", token="unknown")
    assert reply.status == 401


@pytest.mark.parametrize("protocol", [0, 2])
def test_a_client_of_another_protocol_hears_which_is_expected(guarded: Served, protocol: int) -> None:
    code, text = refused(guarded, TOKENS["game"][0], protocol=protocol, library="farfield-cpp 0.0.1")
    assert code is Code.FAILED_PRECONDITION
    assert f"expected 1, came {protocol} from 'farfield-cpp 0.0.1'" in text


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an authority, a gateway's and a client's certificate, and a client of somebody else's authority."""
    folder = tmp_path_factory.mktemp("certificates")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for ca in ("ca", "strange"):
        openssl(
            folder,
            "req",
            "-x509",
            *key,
            "-keyout",
            f"{ca}.key",
            "-out",
            f"{ca}.pem",
            "-subj",
            f"/CN={ca}",
            "-days",
            "2",
        )
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    for name, ca in (("server", "ca"), ("client", "ca"), ("stranger", "strange")):
        openssl(folder, "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl(
            folder, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial",
            "-out", f"{name}.pem", "-days", "2", "-extfile", "names",
        )  # fmt: skip
    return folder


def tls_toml(folder: Path, certificates: Path, *, mutual: bool) -> Path:
    more = f'[tls]\ncert = "{certificates}/server.pem"\nkey = "{certificates}/server.key"\n'
    return server_toml(folder, more + (f'client_ca = "{certificates}/ca.pem"\n' if mutual else ""))


def shown(certificates: Path, who: str = "") -> grpc.ChannelCredentials:
    pair = [(certificates / f"{who}.{part}").read_bytes() for part in ("key", "pem")] if who else [None, None]
    return grpc.ssl_channel_credentials((certificates / "ca.pem").read_bytes(), *pair)


def context(certificates: Path, who: str = "") -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    if who:
        made.load_cert_chain(certificates / f"{who}.pem", certificates / f"{who}.key")
    return made


def test_tls_is_spoken_on_both_doors(tmp_path: Path, certificates: Path) -> None:
    with gateway(tmp_path / "home", "--config", str(tls_toml(tmp_path, certificates, mutual=False))) as served:
        assert served.http.startswith("https://")
        maker = TOKENS["maker"][0]
        assert greet(served, maker, shown(certificates), config=TINY).created
        assert served.ask("/livez", tls=context(certificates)).status == 200
        with pytest.raises(ssl.SSLError):
            served.ask("/livez", tls=ssl.create_default_context())  # it does not know who vouches for the gateway
        code, _ = refused(served, maker)  # without TLS
        assert code is Code.UNAVAILABLE


def test_with_mutual_tls_a_client_shows_who_it_is(tmp_path: Path, certificates: Path) -> None:
    with gateway(tmp_path / "home", "--config", str(tls_toml(tmp_path, certificates, mutual=True))) as served:
        maker = TOKENS["maker"][0]
        assert greet(served, maker, shown(certificates, "client"), config=TINY).created
        assert served.ask("/livez", tls=context(certificates, "client")).status == 200
        for who in ("", "stranger"):
            with pytest.raises(grpc.RpcError):
                greet(served, maker, shown(certificates, who))
            with pytest.raises((ssl.SSLError, ConnectionError)):
                served.ask("/livez", tls=context(certificates, who))
        assert refused(served, "", run="lander")[0] is Code.UNAVAILABLE


def test_a_key_that_is_not_the_certificates_is_refused_in_one_line(tmp_path: Path, certificates: Path) -> None:
    file = tls_toml(tmp_path, certificates, mutual=False)
    file.write_text(file.read_text().replace("server.key", "client.key"))
    words = ["serve", "--home", str(tmp_path / "home"), "--config", str(file)]
    done = subprocess.run(
        [sys.executable, "-m", "farfield", *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "[tls]" in done.stderr.splitlines()[-1]
