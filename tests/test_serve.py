"""`farfield serve`: what it refuses to be, what it listens on, and what of a home comes back after a kill."""

import json
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest

from farfield import wiring
from farfield.errors import ConfigError
from farfield.gateway import addresses, journal, runs, settings
from farfield.gateway.learners import Condition, Learners, State
from farfield.serving import gauges, rest
from farfield.serving.desk import Desk, Status
from farfield.serving.host import Host
from farfield.serving.tokens import SCOPES, Token, Tokens, draw
from gateways import eventually, exists, gateway

TOKEN = draw("game", ["ingest", "act"], ["lander"], None)[1]
FIELD = {"name": "obs", "kind": "box", "dtype": "float32", "shape": [3]}
SPEC = {
    "observations": [FIELD], "actions": [{"name": "action", "kind": "discrete", "dtype": "int64", "sizes": [2]}],
}  # fmt: skip


def toml(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "number", "local"),
    [
        ("127.0.0.1:0", "127.0.0.1", True), ("127.8.8.8:1", "127.8.8.8", True), ("localhost:1", "127.0.0.1", True),
        ("[::1]:1", "::1", True), ("0.0.0.0:1", "0.0.0.0", False), (":1", "0.0.0.0", False), ("[::]:1", "::", False),
        ("10.0.0.7:1", "10.0.0.7", False), ("[::ffff:10.0.0.7]:1", "::ffff:a00:7", False),
        ("[2001:db8::1]:1", "2001:db8::1", False),
    ],
)  # fmt: skip
def test_an_address_is_a_number_that_is_local_or_not(text: str, number: str, local: bool) -> None:
    address = addresses.parse(text, "http")
    assert address is not None
    assert (address.host, address.local) == (number, local)


def test_a_name_that_leads_to_other_machines_is_not_local(monkeypatch: pytest.MonkeyPatch) -> None:
    def lookup(*_: object, **__: object) -> list[object]:
        return [(2, 1, 6, "", ("192.0.2.1", 0))]

    monkeypatch.setattr(addresses.socket, "getaddrinfo", lookup)
    address = addresses.parse("localhost:1", "grpc")  # somebody wrote this into a hosts file
    assert address is not None
    assert not address.local


@pytest.mark.parametrize("text", ["50051", "host", "127.0.0.1:x", "127.0.0.1:70000", "::1:50051", "no such name:1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:50051"):
        addresses.parse(text, "grpc")


@pytest.mark.parametrize("text", ["0.0.0.0:0", "[::]:0", "10.0.0.7:0", ":0"])
@pytest.mark.parametrize("door", ["grpc", "http"])
def test_listening_beyond_this_machine_takes_tokens_or_a_word(door: str, text: str) -> None:
    with pytest.raises(ConfigError, match=r"can be reached from other machines.*farfield token"):
        settings.resolve(None, {door: text}).addresses()
    settings.resolve(None, {door: text, "insecure": True}).addresses()
    settings.resolve(None, {door: text, "tokens": [wiring.msgspec.to_builtins(TOKEN)]}).addresses()


def test_a_gateway_without_doors_is_none() -> None:
    with pytest.raises(ConfigError, match="at least one door"):
        settings.resolve(None, {"grpc": "", "http": ""}).addresses()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('grcp = ""', "unknown key grcp: did you mean grpc"),
        ("[tls]\ncret = 'x'", r"unknown key tls\.cret: did you mean cert"),
        ("[[tokens]]\nname = 'a'\nscope = ['act']", r"unknown key tokens\.scope: did you mean scopes"),
        ("[[tokens]]\nname = 'a'\nsha256 = 'x'\nscopes = ['act']", "sha256|64"),
        (f"[[tokens]]\nname = 'a'\nsha256 = '{'0' * 64}'\nscopes = ['acts']", "acts"),
        (f"[[tokens]]\nname = 'a'\nsha256 = '{'0' * 64}'\nscopes = []", "scopes"),
        (f"[[tokens]]\nname = 'a'\nsha256 = '{'0' * 64}'\nscopes = ['act']\nexpires = 2026-01-01T00:00:00", "expires"),
        ("[defaults]\nsteeps = 3", "unknown key steeps: did you mean steps"),
        ("[defaults]\nenv = 'CartPole-v1'", "env cannot be the same for all runs"),
        ("clients = 0", "clients"),
        ("log_level = 'loud'", "loud"),
        ("quota", "not TOML"),
    ],
)  # fmt: skip
def test_a_servers_file_is_read_strictly(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        settings.resolve(toml(tmp_path / "server.toml", text), {})


def test_options_go_before_the_file(tmp_path: Path) -> None:
    file = toml(
        tmp_path / "server.toml", 'grpc = "127.0.0.1:1"\nhttp = "127.0.0.1:2"\nquota = 100000000\n[defaults]\nseed = 7'
    )
    found = settings.resolve(file, {"http": ""})
    assert (found.grpc, found.http, found.quota, found.defaults) == ("127.0.0.1:1", "", 100000000, {"seed": 7})


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        ({"transport": {"folder": "/etc"}}, "may not choose 'transport'"),
        ({"registry": {"url": "file:///etc"}}, "may not choose 'registry'"),
        ({"metrics": {"writers": ["os"]}}, "may not choose 'metrics'"),
        ({"env": "CartPole-v1"}, "may not choose 'env'"),
        ({"lanes": {"options": {}}}, "of 'lanes' a client may choose count, steps, not 'options'"),
        ({"algorithm": {"kind": "os"}}, "a client brings no code"),
        ({"network": {"kind": "os:system"}}, "a client brings no code"),
        ({"run": "other"}, "leave `run` out"),
        ({"algorithm": "ppo"}, "algorithm"),
    ],
)
def test_a_client_chooses_nothing_that_names_files_or_code_of_the_server(asked: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        runs.permitted("lander", asked)


def test_a_client_chooses_algorithm_network_and_what_they_take() -> None:
    asked = {"algorithm": {"kind": "dqn", "gamma": 0.9}, "network": {"hidden": [8]}, "lanes": {"count": 4, "steps": 8}}
    assert runs.permitted("lander", asked) == asked | {"run": "lander"}


def refused(*words: str) -> str:
    """Start one that must end at once; gives the one line that it says."""
    done = subprocess.run(
        [sys.executable, "-m", "farfield", "serve", *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    return line


def test_the_process_says_in_one_line_why_it_does_not_start(tmp_path: Path) -> None:
    assert "can be reached from other machines" in refused("--home", str(tmp_path), "--http", "0.0.0.0:0")
    assert list(tmp_path.iterdir()) == []
    missing = toml(tmp_path / "server.toml", "[tls]\ncert = 'absent.pem'\nkey = 'absent.key'")
    line = refused("--home", str(tmp_path), "--config", str(missing), "--grpc", "127.0.0.1:0", "--http", "")
    assert f"[tls] cert = '{tmp_path}/absent.pem': No such file" in line


def test_two_gateways_do_not_share_a_home_or_a_port(tmp_path: Path) -> None:
    with gateway(tmp_path / "a") as served:
        line = refused("--home", str(tmp_path / "a"), "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
        assert f"belongs to the gateway with process id {served.pid}" in line
        line = refused("--home", str(tmp_path / "b"), "--grpc", served.grpc, "--http", "127.0.0.1:0")
        assert f"cannot serve on {served.grpc!r}" in line
        line = refused("--home", str(tmp_path / "b"), "--grpc", "", "--http", served.http.removeprefix("http://"))
        assert "cannot be listened on (Address already in use)" in line
        assert served.stop() == 0
    with gateway(tmp_path / "a") as served:  # the lock went with its process
        served.kill()
    with gateway(tmp_path / "a"):
        pass


HERE = "import pathlib, signal, sys, time; here = pathlib.Path(sys.argv[1]); "


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Callable[..., Learners]]:
    """Watch learners that run a line of Python instead of learning."""
    made: list[Learners] = []

    def watch(code: str, *, ended: str = "", retry: float = 60.0) -> Learners:
        def command(folder: Path) -> list[str]:
            return [
                sys.executable,
                "-c",
                "import pathlib, signal, sys, time; here = pathlib.Path(sys.argv[1]); " + code,
                str(folder),
            ]

        made.append(Learners(ended=lambda _: ended, lost=lambda: None, command=command, retry=retry))
        made[-1].begin("lander", tmp_path)
        return made[-1]

    yield watch
    for learners in made:
        learners.stop()


def condition(learners: Learners) -> str:
    state = learners.state("lander")
    return "" if state is None else state.condition


def test_a_learner_that_is_done_is_not_started_again(supervised: Callable[..., Learners]) -> None:
    learners = supervised("time.sleep(0.2)", ended="steps")
    eventually(lambda: condition(learners) == "finished")
    state = learners.state("lander")
    assert (state.starts, state.pid, state.error) == (1, None, "stopped by steps")


def test_a_learner_that_was_told_to_stop_by_somebody_else_is_started_again(supervised: Callable[..., Learners]) -> None:
    learners = supervised(
        "time.sleep(1000 if here.joinpath('second').exists() else here.joinpath('second').write_text('') * 0)"
    )
    eventually(lambda: (learners.state("lander") or State("waiting")).starts == 2)
    eventually(lambda: condition(learners) == "running")


def test_a_failed_learner_is_tried_again_after_a_while(supervised: Callable[..., Learners]) -> None:
    code = (
        "there = here / 'lives'; n = len(there.read_text()) if there.exists() else 0; there.write_text('x' * (n + 1)); "
    )
    learners = supervised(code + "sys.exit('Error: no luck') if n < 6 else time.sleep(1000)", retry=0.5)
    eventually(lambda: condition(learners) == "failed")
    assert "Error: no luck" in learners.state("lander").error
    eventually(lambda: learners.state("lander").pid is not None and learners.state("lander").starts == 7)
    assert condition(learners) == "failed"  # until it has lived for a while


def test_one_whose_settings_are_wrong_fails_at_its_first_word(supervised: Callable[..., Learners]) -> None:
    learners = supervised("print('minibatch is wrong'); sys.exit(2)")
    eventually(lambda: condition(learners) == "failed")
    state = learners.state("lander")
    assert (state.starts, state.error) == (1, "learner 0 gave up: minibatch is wrong")


def test_all_learners_are_stopped_together_and_may_finish_their_sentence(
    supervised: Callable[..., Learners], tmp_path: Path
) -> None:
    code = "signal.signal(15, lambda *_: (time.sleep(2.5), here.joinpath('said').write_text('x'), sys.exit(0))); "
    learners = supervised(code + "here.joinpath('up').write_text('x'); time.sleep(1000)")
    eventually(lambda: (tmp_path / "up").exists())
    pid = learners.state("lander").pid
    learners.stop()
    assert (tmp_path / "said").exists()
    assert not exists(pid)
    assert condition(learners) == "stopped"


def test_the_process_hears_when_nobody_looks_after_learners_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lost = threading.Event()

    def command(folder: Path) -> list[str]:
        raise LookupError("nobody foresaw this")

    learners = Learners(ended=lambda _: "", lost=lost.set, command=command)
    learners.begin("lander", tmp_path)
    assert lost.wait(60)
    learners.stop()
    assert "nobody foresaw this" in caplog.text


def test_a_log_that_dies_with_the_process_is_none_for_live_runs(tmp_path: Path) -> None:
    file = toml(tmp_path / "lander.toml", '[transport]\nkind = "memory"')
    assert "kind = 'memory' would not outlive the gateway" in refused("--home", str(tmp_path), "--http", "", str(file))
    assert not (tmp_path / "runs/lander").exists()


def test_defaults_of_the_server_yield_to_another_algorithm() -> None:
    defaults = {"algorithm": {"kind": "dqn", "n_step": 3}, "feed": {"ratio": 2}, "seed": 4}
    assert runs._suited(defaults, {"algorithm": {"kind": "ppo"}}) == {"seed": 4}
    assert runs._suited(defaults, {"algorithm": {"kind": "dqn"}}) == defaults
    assert runs._suited(defaults, {"algorithm": {"gamma": 0.9}}) == defaults


def test_nothing_that_comes_from_outside_makes_a_line_of_its_own() -> None:
    record = logging.LogRecord(
        "farfield.gateway", logging.INFO, "", 0, "run %s", ("a\n2026 error\x1b[2J\u2028b",), None
    )
    line = journal.Line().format(record)
    assert line.endswith(r"Z info run a | 2026 error\x1b[2J\x2028b")
    assert "\n" not in line
    assert json.loads(journal.Json().format(record))["event"].startswith("run a\n")


PAGE = (Path(__file__).parent.parent / "docs/serve.md").read_text()


def test_the_servers_file_on_the_page_is_one_and_every_key_has_a_row(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```toml server\.toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert settings.resolve(toml(tmp_path / "server.toml", text), {}).tokens[0].name == "lander-game"
    for kind in (settings.Settings, settings.Tls, Token):
        for key in kind.__struct_fields__:
            assert f"\n| `{key}` |" in PAGE, key
    for scope in SCOPES:
        assert f"\n| `{scope}` |" in PAGE


def test_every_call_and_every_number_is_on_the_page() -> None:
    app = rest.make(Desk(Host(lambda *_: None, Tokens()), Tokens(), Status), limit=1, ready=bool, local=True)
    for route in app.routes:
        assert route.path.replace("{run:str}", "{run}") in PAGE, route.path
    for name in (*(f"{name}_total" for name in (*gauges.COUNTERS, "dead_letters")), *gauges.GAUGES):
        assert f"`farfield_gateway_{name}`" in PAGE, name
    for state in get_args(Condition):
        assert f"\n| `{state}` |" in PAGE, state
