"""The C++ client: built from its sources, tested by its own tests, and run against the gateway of this package."""

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest

import farfield
from farfield.codec import decode_fragment, kind_of
from farfield.experience.spool import Spool
from gateways import eventually, gateway, start

ROOT = Path(__file__).parent.parent
CLIENT = ROOT / "clients" / "cpp"
GOLDEN = CLIENT / "tests" / "golden" / "frames.spool"
SPEC = farfield.spec(obs=farfield.box(8), action=farfield.discrete(4))
CONFIG = {"algorithm": {"kind": "ppo", "minibatch": 64, "epochs": 2}, "lanes": {"count": 4, "steps": 32}}
TOOLS = ("cmake", "c++", "cc", "protoc", "grpc_cpp_plugin")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason=f"needs {', '.join(TOOLS)} and their libraries"),
]


def run(*words, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{words}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="session")
def built():
    """Everything, with warnings as errors; what did not change is not built again."""
    folder = ROOT / "build" / "cpp"
    run("cmake", "-S", CLIENT, "-B", folder, "-DFARFIELD_TESTS=ON", "-DFARFIELD_EXAMPLES=ON", "-DFARFIELD_STRICT=ON")
    run("cmake", "--build", folder)
    return folder


@pytest.fixture
def drive(built, tmp_path):
    """Run the program in C++; gives what it counted."""

    def words(address, name, **options):
        given = {"spool": tmp_path / "spool", "config": json.dumps(CONFIG)} | options
        flags = [word for key, value in given.items() for word in (f"--{key}", str(value))]
        return [str(built / "tests" / "driver"), "--address", address, "--run", name, *flags]

    def drive(address, name, **options):
        return json.loads(run(*words(address, name, **options), timeout=300))

    drive.words = words
    return drive


def stored(home, name):
    """Every fragment and credit in the log of a run."""
    from farfield.transports import disk

    log = disk.make(disk.Config(folder=str(home / "runs" / name / "log")))
    try:
        found, cursor = [], {}
        while True:
            records, cursor = log.read("experiences", after=cursor, limit=1000, timeout=0.2)
            if not records:
                return found
            found += [bytes(record.payload) for record in records]
    finally:
        log.close()


def steps(payloads):
    """Count valid steps, each fragment once; no stream may have a gap."""
    fragments = {(f.stream, f.seq): f for f in map(decode_fragment, payloads)}
    streams: dict[str, set[int]] = {}
    for stream, seq in fragments:
        streams.setdefault(stream, set()).add(seq)
    for seqs in streams.values():
        assert seqs == set(range(len(seqs)))
    return sum(int(np.count_nonzero(f.columns["valid"])) for f in fragments.values())


def frames(path):
    """Read a spool file as its format is written down, without any code of ours."""
    found, data = [], path.read_bytes()
    while data:
        size, check = struct.unpack("<II", data[:8])
        payload, data = data[8 : 8 + size], data[8 + size :]
        assert zlib.crc32(payload) == check
        found.append(payload)
    return found


def test_its_own_tests_pass(built):
    run("ctest", "--test-dir", built, "--output-on-failure", "--timeout", "600")


def test_few_files_pay_for_grpc():
    sources = [*CLIENT.glob("src/*"), *CLIENT.glob("include/farfield/*")]
    assert [path.name for path in sources if re.search(r"#include.*(grpc|\.pb\.h)", path.read_text())] == ["link.cpp"]


def test_python_reads_and_writes_the_golden_frames(tmp_path):
    payloads = frames(GOLDEN)
    assert [kind_of(payload) for payload in payloads] == ["Fragment", "Credit"]
    (tmp_path / "adopted").mkdir()
    shutil.copy(GOLDEN, tmp_path / "adopted" / "0123456789abcdef.spool")
    spool = Spool(tmp_path / "adopted", 1 << 20)
    assert [spool.read(place) for place in spool.adopt()] == payloads
    spool.close()
    ours = Spool(tmp_path / "written", 1 << 20)
    for payload in payloads:
        assert ours.write(payload)
    assert next((tmp_path / "written").glob("*.spool")).read_bytes() == GOLDEN.read_bytes()
    ours.close()


def test_a_run_is_created_and_every_step_arrives(drive, tmp_path):
    with gateway(tmp_path / "home") as served:
        told = drive(served.grpc, "first", steps=2000, version=90)
        assert told["acted"] == told["steps"] == 2000
        assert told["owned"] == told["fragments"]
        assert (told["refused"], told["dropped_fragments"], told["remaining"]) == (0, 0, 0)
        assert told["fallbacks"] == 0
        assert told["version"] >= 0
        assert served.stop() == 0
    payloads = stored(tmp_path / "home", "first")
    assert steps(payloads) == 2000
    fragment = decode_fragment(payloads[0])
    assert fragment.columns["reward"].shape == (32, 1)
    assert fragment.source == ""
    assert not list((tmp_path / "spool").rglob("*.spool"))


def test_what_it_learns_comes_back(drive, tmp_path):
    with gateway(tmp_path / "home") as served:
        told = drive(served.grpc, "learning", until=5, version=90, pause=0.5)
    assert told["version"] >= 5
    assert told["versions"] >= 2


def counted(served, name):
    """Wait until a gateway has steps of a run, and give how many."""
    return eventually(lambda: served.run(name).get("counters", {}).get("total", {}).get("steps"), "a step")


def more(served, name):
    """Wait until it has more of them."""
    before = counted(served, name)
    eventually(lambda: counted(served, name) > before, "more steps")


def test_a_gateway_that_is_killed_gets_everything_in_the_end(drive, tmp_path):
    home = tmp_path / "home"
    served = start(home)
    address = served.grpc
    try:
        words = drive.words(address, "killed", steps=3000, pause=2, version=90, close=120)
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as program:
            for _ in range(2):
                more(served, "killed")
                served.kill()
                served = start(home, "--grpc", address)
            told = json.loads(program.communicate(timeout=300)[0])
        assert served.stop() == 0
    finally:
        served.process.kill()
    assert told["remaining"] == 0
    assert told["reconnects"] >= 1
    assert steps(stored(home, "killed")) == 3000


def test_python_delivers_what_a_killed_program_left(drive, tmp_path):
    words = drive.words("127.0.0.1:1", "left", steps=500, wait=0, die=1)
    assert subprocess.run(words, capture_output=True, check=False).returncode == -signal.SIGKILL
    folder = tmp_path / "spool" / "left"
    left = [payload for path in folder.glob("*.spool") for payload in frames(path)]
    assert steps(left) >= 499  # the row that was open died with it
    with gateway(tmp_path / "home") as served:
        with farfield.connect(served.grpc, run="left", spec=SPEC, config=CONFIG, spool=tmp_path / "spool") as app:
            eventually(lambda: app.counters().adopted == len(left) and app.counters().waiting == 0, "delivery")
        assert served.stop() == 0
    assert not list(folder.glob("*.spool"))
    assert sorted(stored(tmp_path / "home", "left")) == sorted(left)


def test_it_delivers_what_a_killed_python_program_left(drive, tmp_path):
    child = os.fork()
    if child == 0:
        app = farfield.connect("127.0.0.1:1", run="left", spec=SPEC, spool=tmp_path / "spool", wait=0.0)
        episode = app.episode()
        for _ in range(300):
            episode.act(np.zeros(8))
            episode.reward(1.0)
        app.flush(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    left = [payload for path in (tmp_path / "spool" / "left").glob("*.spool") for payload in frames(path)]
    assert steps(left) == 299
    with gateway(tmp_path / "home") as served:
        told = drive(served.grpc, "left", steps=10, close=60)
        assert told["adopted"] == len(left)
        assert told["remaining"] == 0
        assert served.stop() == 0
    assert steps(stored(tmp_path / "home", "left")) == 309


def test_another_spec_is_refused_and_named(drive, tmp_path):
    with gateway(tmp_path / "home") as served:
        other = farfield.spec(obs=farfield.box(3), action=farfield.discrete(4))
        farfield.connect(served.grpc, run="other", spec=other, config=CONFIG, spool="").close()
        done = subprocess.run(drive.words(served.grpc, "other"), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "field 'obs': shape: expected [3], came [8]" in done.stderr


@pytest.fixture(scope="session")
def papers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("papers")
    run(
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
        *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"),
        cwd=folder,
    )
    return folder


@pytest.fixture
def guarded(tmp_path, papers):
    """A gateway with a token and with certificates on both sides."""
    from farfield.serving.tokens import digest

    (tmp_path / "server.toml").write_text(f"""
home = "{tmp_path / "home"}"
grpc = "localhost:0"
http = ""
[[tokens]]
name = "driver"
sha256 = "{digest("secret")}"
scopes = ["ingest", "create"]
[tls]
cert = "{papers / "cert.pem"}"
key = "{papers / "key.pem"}"
client_ca = "{papers / "cert.pem"}"
""")
    with gateway(tmp_path / "home", "--config", str(tmp_path / "server.toml"), doors=1) as served:
        yield served


def test_tokens_and_certificates_are_shown(drive, guarded, papers):
    keys = {"ca": papers / "cert.pem", "cert": papers / "cert.pem", "key": papers / "key.pem"}
    told = drive(guarded.grpc, "guarded", token="secret", steps=100, **keys)
    assert told["owned"] == told["fragments"] > 0
    words = drive.words(guarded.grpc, "guarded", token="wrong", **keys)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "unknown token" in done.stderr
    assert "wrong" not in done.stderr
    told = drive(guarded.grpc, "guarded", token="secret", steps=100, wait=1, close=0)  # without any encryption
    assert told["remaining"] > 0


def ping(built, *words):
    done = subprocess.run(
        [str(built / "farfield_ping"), *map(str, words)], capture_output=True, text=True, check=False, timeout=120
    )
    return done.returncode, done.stdout, done.stderr


def test_ping_times_each_step(built, drive, tmp_path):
    with gateway(tmp_path / "home") as served:
        drive(served.grpc, "pinged", steps=10, version=90)
        code, out, err = ping(built, served.grpc, "--run", "pinged", "--count", "5")
        assert (code, err) == (0, "")
        assert [line.split()[0] for line in out.splitlines()] == ["handshake", "append", "versions"]
        assert all(re.match(r"\w+ +[\d.]+ ms  ", line) for line in out.splitlines())
        assert "5 durable appends" in out
        assert "6 tensors" in out
        code, out, err = ping(built, served.grpc, "--run", "nowhere")
        assert (code, out) == (1, "")
        assert "nowhere" in err
    code, out, err = ping(built, "127.0.0.1:1", "--run", "pinged")
    assert code == 1
    assert "is the gateway running there" in err
    for words in ((), ("127.0.0.1:1",), ("127.0.0.1:1", "--run"), ("127.0.0.1:1", "--run", "x", "--count", "0")):
        code, out, err = ping(built, *words)
        assert code == 2
        assert "usage: " in err


def test_ping_shows_a_token_and_trusts_an_authority(built, drive, guarded, papers):
    keys = ("--tls-ca", papers / "cert.pem", "--tls-cert", papers / "cert.pem", "--tls-key", papers / "key.pem")
    drive(
        *(guarded.grpc, "guarded"), token="secret", steps=10,
        ca=papers / "cert.pem", cert=papers / "cert.pem", key=papers / "key.pem",
    )  # fmt: skip
    assert ping(built, guarded.grpc, "--run", "guarded", "--token", "secret", *keys)[0] == 0
    code, _, err = ping(built, guarded.grpc, "--run", "guarded", *keys)
    assert code == 1
    assert "give --token" in err
    code, _, err = ping(built, guarded.grpc, "--run", "guarded", "--token", "secret")
    assert code == 1


def test_the_page_works_in_a_project_of_its_own(built, tmp_path):
    """Installs, and writes each block of docs/cpp.md into the file that it names."""
    run("cmake", "--install", built, "--prefix", tmp_path / "prefix")
    project = tmp_path / "game"
    project.mkdir()
    page = (ROOT / "docs" / "cpp.md").read_text()
    for name, text in re.findall(r"^```\w+\n(?://|#) (\S+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        (project / name).write_text(text)
    with (project / "CMakeLists.txt").open("a") as file:
        file.write("add_executable(c thermostat.c)\ntarget_link_libraries(c farfield::client)\n")
        file.write("add_executable(small small.cpp)\ntarget_link_libraries(small farfield::core)\n")
    (project / "small.cpp").write_text("""
#include <farfield/sha256.hpp>
#include <cstdio>
int main() { std::puts(farfield::hex(farfield::sha256("abc")).c_str()); }
""")
    run("cmake", "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={tmp_path / 'prefix'}")
    run("cmake", "--build", project / "build")
    assert run(project / "build" / "small").startswith("ba7816bf")
    environment = {**os.environ, "FARFIELD_SPOOL": str(tmp_path / "spool")}
    with gateway(tmp_path / "home") as served:
        out = run(project / "build" / "thermostat", served.grpc, env=environment)
        assert re.fullmatch(r"version -?\d+, 0 payloads left\n", out)
        assert served.stop() == 0
    assert steps(stored(tmp_path / "home", "thermostat-cpp")) == 2400
    run(project / "build" / "c", env=environment)
    assert (tmp_path / "prefix" / "bin" / "farfield_ping").exists()


def test_the_lander_learns_to_land(built, tmp_path):
    with gateway(tmp_path / "home") as served:
        environment = {**os.environ, "FARFIELD_SPOOL": str(tmp_path / "spool")}
        words = ("--address", served.grpc, "--seed", 1, "--steps", 1_000_000, "--target", 150)
        out = run(built / "lander", *words, env=environment, timeout=900)
    returns = [float(found) for found in re.findall(r"return +(-?[\d.]+)", out)]
    assert returns[0] < -100
    assert returns[-1] >= 150
    assert "payloads remain" not in out
