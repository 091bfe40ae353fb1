"""`farfield.connect`: options and files in, sessions out, and what describes a program; light enough for any host."""

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import farfield
from farfield import connecting
from farfield.canonical import spec_hash
from farfield.connecting import Options, gather
from farfield.errors import ConfigError, MissingError, SpecError
from farfield.experience.spaces import layout
from farfield.serving import native
from farfield.types import Field, Kind, Spec
from small_gateway import SPEC, SmallGateway, until

APP = """
address = "{address}"
run = "r"
client = "a test"
flush = 0.05
spool = ""
fallback = 2

[spec]
obs = {{ box = [8] }}
action = {{ discrete = 4 }}
"""


def test_a_file_says_all_that_options_say(tmp_path):
    with SmallGateway("127.0.0.1:0") as gateway:
        gateway.publish(1)
        file = tmp_path / "app.toml"
        file.write_text(APP.format(address=gateway.address))
        with farfield.connect(file, policy="main") as app:
            assert app.wait(10)
            with app.episode() as episode:
                episode.act(np.zeros(8))
        assert gateway.steps_owned() == 1
        assert {hello.client for hello in gateway.hellos} == {"a test"}
        assert gateway.hellos[0].spec == SPEC
        assert gateway.hellos[0].library == f"farfield-python {farfield.__version__}"


def test_options_lie_over_the_file(tmp_path):
    file = tmp_path / "app.toml"
    file.write_text(APP.format(address="localhost:1"))
    found = gather(file, {"flush": 9.0, "spec": None})
    assert (found.flush, found.client, found.fallback, found.spec) == (9.0, "a test", 2, None)


@pytest.mark.parametrize(
    ("text", "error", "why"),
    [
        ('adress = "x:1"\nrun = "r"', ConfigError, "unknown option 'adress'; did you mean address"),
        ('address = "x:1"', ConfigError, "run is missing"),
        ('run = "r"', ConfigError, "address is missing"),
        ('address = "localhost"\nrun = "r"', ConfigError, "address 'localhost': expected host:port"),
        ('address = "http://x:1"\nrun = "r"', ConfigError, "expected host:port or unix:/path"),
        ('address = "x:1"\nrun = "a/b"', ConfigError, "run 'a/b': expected letters"),
        ('address = "x:1"\nrun = "r"\nflush = "soon"', ConfigError, "Expected `float`, got `str`"),
        ('address = "x:1"\nrun = "r"\nflush = -1', ConfigError, "flush: expected at least 0"),
        ('address = "x:1"\nrun = "r"\nmemory = 5', ConfigError, "memory: expected at least 1048576"),
        ('address = "x:1"\nrun = "r"\nfallback = "first"', ConfigError, "fallback: expected one of"),
        ('address = "x:1"\nrun = "r"\ncore = "rust"', ConfigError, "core: expected 'native' or 'numpy'"),
        ('address = "x:1"\nrun = "r"\n[tls]\ncert_file = "x"', ConfigError, "tls: expected"),
        ('address = "x:1"\nrun = "r"\n[spec]\nobs = { box = [8] }', SpecError, "action is missing"),
        ('address = "x:1"\nrun = "r"\n[spec]\nobs = {}\naction = {}', SpecError, "obs: expected a table"),
        ('address = "x:1"\nrun = "r"\n[spec]\nobservations = 1', SpecError, "unknown key 'observations'"),
        (
            'address = "x:1"\nrun = "r"\n[spec]\nobs={box=[1],lower=1}\naction={discrete=2}',
            SpecError,
            "did you mean low",
        ),
        ('address = "x:1"\nrun = "r"\n[spec]\nobs={box=[1]}\naction={discrete=0}', SpecError, "at least 1"),
        ("address = ", ConfigError, "is not TOML"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_cure(tmp_path, text, error, why):
    file = tmp_path / "app.toml"
    file.write_text(text)
    with pytest.raises(error, match=why):
        farfield.connect(file, wait=0)


def test_what_is_no_spec_or_file_is_refused(tmp_path):
    with pytest.raises(SpecError, match=r"expected what farfield\.spec gives, came int"):
        farfield.connect("localhost:1", run="r", spec=8)
    with pytest.raises(ConfigError, match="existing TOML file"):
        farfield.connect(tmp_path / "none.toml")


def test_the_spool_is_where_it_is_said_or_where_users_keep_state(monkeypatch, tmp_path):
    monkeypatch.delenv("FARFIELD_SPOOL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert connecting._spool(None) == tmp_path / "state/farfield/spool"
    assert connecting._spool("") is None
    assert connecting._spool("~/here") == Path.home() / "here"
    monkeypatch.setenv("FARFIELD_SPOOL", str(tmp_path / "own"))
    assert connecting._spool(None) == tmp_path / "own"


def test_numpy_does_the_same_where_the_native_core_is_missing(monkeypatch):
    assert connecting.choose("numpy").name == "numpy"
    if native.available():
        assert connecting.choose("").name == connecting.choose("native").name == "native"
    monkeypatch.setitem(sys.modules, "farfield._native", None)
    monkeypatch.delattr(farfield, "_native", raising=False)
    assert connecting.choose("").name == "numpy"
    with pytest.raises(MissingError, match="native core was not built"):
        connecting.choose("native")


def test_specs_are_described_in_short():
    found = farfield.spec(
        obs={"place": farfield.box((2, 3), low=-1, high=[[1, 2, 3], [4, 5, 6]]), "kind": farfield.discrete(5)},
        action={
            "move": farfield.discrete(3),
            "lamps": farfield.multi_binary(2),
            "many": farfield.multi_discrete([2, 4]),
        },
        mask=["move"],
    )
    place, kind, mask = found.observations
    assert (place.name, place.dtype, place.shape, place.low, place.high) == (
        "obs/place", "float32", (2, 3), (-1.0,), (1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
    )  # fmt: skip
    assert (kind.kind, kind.sizes) == (Kind.DISCRETE, (5,))
    assert mask == Field("mask/move", Kind.MULTI_BINARY, "bool", (3,))
    assert [(action.name, action.mask) for action in found.actions] == [
        ("action/move", "mask/move"), ("action/lamps", ""), ("action/many", ""),
    ]  # fmt: skip
    everything = farfield.spec(farfield.box(4), {"a": farfield.discrete(2), "b": farfield.box(1)}, mask=True)
    assert [field.name for field in everything.observations] == ["obs", "mask/a"]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: farfield.spec(farfield.box(4), farfield.box(2), mask=True), "no action has choices"),
        (lambda: farfield.spec(farfield.box(4), farfield.discrete(2), mask=["moves"]), "'moves' is no action"),
        (lambda: farfield.spec({}, farfield.discrete(2)), "at least one space"),
        (lambda: farfield.spec("obs", farfield.discrete(2)), "came str"),
        (lambda: farfield.discrete(0), "at least 1"),
        (lambda: farfield.box(0), "lengths of at least 1"),
        (lambda: farfield.box(2, low=[1, 2, 3]), "expected one number or shape"),
        (lambda: farfield.spec(farfield.box(4), spaces.Discrete(3, start=1)), "does not count from 0"),
        (lambda: farfield.spec(spaces.Text(4), farfield.discrete(2)), "came Text"),
    ],
)
def test_what_describes_nothing_is_refused(make, why):
    with pytest.raises(SpecError, match=why):
        make()


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0"])
def test_spaces_of_gymnasium_give_the_spec_that_training_has(env):
    made = gymnasium.make(env)
    by_training = layout(env, made.observation_space, made.action_space, {}).spec
    assert farfield.spec(made.observation_space, made.action_space) == by_training


def test_nested_spaces_are_named_like_those_of_training():
    seen = spaces.Dict({"a": spaces.Box(0, 255, (4, 4, 3), np.uint8), "b": spaces.Tuple((spaces.MultiBinary(3),))})
    acts = spaces.Dict({"x": spaces.MultiDiscrete([3, 4]), "y": spaces.Box(-1, 1, (2,), np.float64)})
    assert farfield.spec(seen, acts) == layout("e", seen, acts, {}).spec


def test_a_table_gives_the_same_spec_as_python():
    table = {
        "obs": {"place": {"box": [2], "low": -1.0, "high": [1.0, 2.0]}, "kind": {"discrete": 3}},
        "action": {"multi_discrete": [2, 3]},
        "mask": True,
    }
    from farfield.experience.specs import from_table

    by_hand = farfield.spec(
        {"place": farfield.box(2, -1.0, [1.0, 2.0]), "kind": farfield.discrete(3)},
        farfield.multi_discrete([2, 3]),
        mask=True,
    )
    assert spec_hash(from_table(table)) == spec_hash(by_hand)
    assert isinstance(by_hand, Spec)


def test_a_host_is_not_burdened():
    script = """
        import sys, numpy as np, farfield
        def memory():
            return int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1])
        app = farfield.connect(sys.argv[1], run="r", spool=sys.argv[2])
        assert app.wait(20)
        with app.episode() as episode:
            for _ in range(5000):
                episode.act(np.zeros(8))
        assert not app.flush(20)
        heavy = {"gymnasium", "jax", "typer", "matplotlib", "safetensors", "torch", "farfield.wiring"}
        print(memory(), *(heavy & set(sys.modules)))
        app.close()
    """
    bare = """
        import numpy as np
        print(int(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")).split()[1]))
    """
    with SmallGateway("127.0.0.1:0") as gateway:
        gateway.publish(1)
        ours, before = (
            subprocess.run(
                [sys.executable, "-c", textwrap.dedent(text), gateway.address, ""],
                capture_output=True, text=True, check=True, timeout=60,
            ).stdout.split()
            for text in (script, bare)
        )  # fmt: skip
    assert len(ours) == 1, f"imported: {ours[1:]}"
    assert int(ours[0]) - int(before[0]) <= 40 * 1024


def test_every_option_and_counter_is_on_its_page():
    page = (Path(__file__).parent.parent / "docs/live.md").read_text()
    from farfield.experience.counters import Counters

    for name in (*Options.__struct_fields__, *Counters.__struct_fields__):
        assert f"| `{name}` |" in page, name


def test_a_program_keeps_the_interpreter_free_to_leave():
    script = (
        'import farfield, sys; farfield.connect("127.0.0.1:1", run="r", spec=None or '
        'farfield.spec(farfield.box(1), farfield.discrete(2)), wait=0, spool=""); sys.exit(7)'
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 7


def test_a_run_is_asked_for_with_its_config(tmp_path):
    with SmallGateway("127.0.0.1:0") as gateway:
        config = {"algorithm": {"kind": "dqn"}}
        with farfield.connect(gateway.address, run="r", spec=SPEC, config=config, spool=tmp_path):
            until(lambda: gateway.hellos)
        assert gateway.hellos[0].config == config


def test_the_file_on_the_page_can_be_read(tmp_path):
    page = (Path(__file__).parent.parent / "docs/live.md").read_text()
    (tmp_path / "app.toml").write_text(re.search(r"^~~~toml\n(.*?)^~~~", page, re.MULTILINE | re.DOTALL)[1])
    found = gather(tmp_path / "app.toml", {})
    assert [field.name for field in found.spec.observations] == ["obs/place", "obs/kind", "mask"]
    assert found.tls == {"ca": "authority.pem"}


def test_ping_times_what_a_program_needs(capsys):
    from farfield.cli import main

    with SmallGateway("127.0.0.1:0") as gateway:
        gateway.publish(4)
        main_or_exit(main, ["ping", gateway.address, "--run", "r", "--json"])
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["step"] for line in lines] == [
            "handshake", "open append", "durable append 1", "durable append 2", "durable append 3", "versions",
        ]  # fmt: skip
        assert all(line["seconds"] > 0 for line in lines)
        assert lines[-1]["found"] == "version 4 of attempt 1"
        gateway.token = "secret"
        assert main_or_exit(main, ["ping", gateway.address, "--run", "r"]) == 2
        assert "no such token" in capsys.readouterr().err
        assert main_or_exit(main, ["ping", gateway.address, "--run", "r", "--token", "secret"]) == 0
        assert "1024 bytes are owned" in capsys.readouterr().out
    assert main_or_exit(main, ["ping", gateway.address, "--run", "r", "--timeout", "5"]) == 2
    assert "see that farfield serve runs there" in capsys.readouterr().err


def main_or_exit(main, words):
    """Run a command, and give its exit code."""
    try:
        main(words)
    except SystemExit as end:
        return end.code or 0
    return 0


def test_nothing_depends_on_the_time_of_day():
    folder = Path(farfield.__file__).parent
    session = ["connecting.py", "experience/session.py", "experience/episode.py", "experience/parts.py",
               "experience/outbox.py", "experience/spool.py", "experience/tracks.py"]  # fmt: skip
    for file in [*(folder / name for name in session), *(folder / "transports/link").glob("*.py")]:
        assert not re.search(r"\btime\.time\b|import time\b|datetime|perf_counter", file.read_text()), file
