"""Live programs when things go wrong around them: a few of each fault; test_live_chaos.py has the full counts."""

import os
import resource
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from farfield.serving.tokens import RFC3339, draw
from gateways import eventually, exists, gateway
from live_audit import Audit
from live_client import CONFIG, Program
from live_field import PLAIN, SECURE, Field, fielded, survived
from live_kills import Killed, killed_at_random

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_gateway_that_is_killed_again_and_again_loses_nothing(tmp_path: Path) -> None:
    killed_at_random(tmp_path, kills=4, programs=8, seed=1)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    yield from fielded(tmp_path_factory.mktemp("field") / "plain", PLAIN, secure=False)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    yield from fielded(tmp_path_factory.mktemp("field") / "secure", SECURE, secure=True)


@pytest.mark.parametrize("way", [way for way in PLAIN if way != "swallow"])
def test_bad_connections_lose_nothing(plain: Field, way: str) -> None:
    did = survived(plain, way, 5)
    assert did.counters["rubbish"] == 0
    assert way != "repeat" or plain.proxies[way].repeated > 0


@pytest.mark.parametrize("way", SECURE)
def test_bytes_that_come_twice_or_in_another_order_are_noticed_and_sent_again(secure: Field, way: str) -> None:
    survived(secure, way, 5)


def test_a_connection_of_which_only_one_end_is_left_is_noticed(plain: Field) -> None:
    proxy, program = plain.proxies["swallow"], plain.programs["swallow"]
    eventually(lambda: proxy.happened > 0, "silence")
    before = program.now
    program.until(lambda now: now["reconnects"] > before["reconnects"] or not now["connected"], "suspicion")
    assert proxy.connections >= 1
    proxy.way = "forward"  # for new connections: the old one stays as it is
    program.until(lambda now: now["owned"] > before["owned"] and now["newest"] > before["newest"], "its recovery")
    plain.audit.check(program.stop(), alone=False)


def test_programs_do_not_notice_that_their_learner_dies(plain: Field) -> None:
    program = Program(plain.home, plain.served.grpc, number=10, spool=str(plain.home / "spool"))
    try:
        first = now = program.until(lambda now: now["version"] >= 0 and now["owned"] > 0, "a version to act with")
        for _ in range(2):
            learner, newest = plain.served.learner("live"), now["newest"]
            os.kill(learner, signal.SIGKILL)
            eventually(lambda learner=learner: not exists(learner), "its end")
            dead = program.now
            program.until(lambda now, dead=dead: now["owned"] > dead["owned"] + 3, "experience without a learner")
            now = program.until(lambda now, newest=newest: now["newest"] > newest + 1, "versions of the next learner")
        did = program.stop()
    finally:
        program.end()
    assert (did.counters["reconnects"], did.counters["rubbish"]) == (0, 0)
    assert did.counters["fallbacks"] == first["fallbacks"]
    plain.audit.check(did, alone=False)
    plain.audit.check_learned()


def test_what_a_killed_program_had_finished_is_delivered_by_the_next_one(tmp_path: Path) -> None:
    """Its spool is all that is left of it; two that live share that folder meanwhile."""
    with Killed(tmp_path / "home", "--http", "", doors=1) as gateway:
        options = {"config": CONFIG, "spool": str(tmp_path / "spool"), "flush": 0.1, "pause": 0.001}
        programs = [Program(tmp_path, gateway.address, number=number, **options) for number in range(3)]
        try:
            for program in programs:
                program.until(lambda now: now["owned"] > 0, "the first fragment")
            audit = Audit(tmp_path / "home" / "runs" / "live")
            gateway.kill()
            for program in programs:
                program.until(lambda now: now["waiting"] > 10, "what nobody owns")
            finished = [program.now["steps"] for program in programs]
            for program in programs[:2]:
                program.kill()
            gateway.start()
            heir = Program(tmp_path, gateway.address, number=3, **options)
            programs.append(heir)
            heir.until(lambda now: now["adopted"] >= 20, "the inheritance")
            dids = [programs[2].stop(), heir.stop()]
        finally:
            for program in programs:
                program.end()
        audit.check(*dids, alone=False)
        steps = {
            number: {step for one in audit.stored for who, step, _ in one.steps if who == number} for number in (0, 1)
        }
        audit.close()
    for number, found in steps.items():
        assert found == set(range(len(found)))
        assert len(found) >= finished[number]
    assert not list((tmp_path / "spool").rglob("*.spool"))


@pytest.fixture(scope="module")
def wrong_clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile what makes clocks wrong."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no compiler")
    made = tmp_path_factory.mktemp("clock") / "shift.so"
    source = Path(__file__).parent / "clockshift.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", made, source, "-ldl"], check=True, timeout=120)
    return made


HOUR = 3600


def test_clocks_may_jump(tmp_path: Path, wrong_clock: Path) -> None:
    """Only a token that ends at a time of day has to do with it, and what it kept out waits on the disk."""
    shift = tmp_path / "shift"
    shift.write_bytes(struct.pack("d", 0))

    def jump(hours: float) -> None:
        with shift.open("r+b") as file:
            file.write(struct.pack("d", hours * HOUR))

    secret, token = draw("game", ["ingest", "create"], ["live"], datetime.now(UTC) + timedelta(days=1))
    (tmp_path / "server.toml").write_text(
        f'http = ""\n[[tokens]]\nname = "game"\nsha256 = "{token.sha256}"\nscopes = {list(token.scopes)}\n'
        f'runs = ["live"]\nexpires = {token.expires:{RFC3339}}\n'
    )
    clock = {"LD_PRELOAD": str(wrong_clock), "CLOCK_SHIFT": str(shift)}
    options = {"token": secret, "config": CONFIG, "spool": str(tmp_path / "spool"), "flush": 0.2, "environment": clock}
    with Killed(tmp_path / "home", "--config", str(tmp_path / "server.toml"), environment=clock, doors=1) as gateway:
        program = Program(tmp_path, gateway.address, number=0, **options)
        heir = None
        try:
            program.until(lambda now: now["newest"] >= 0, "a version")
            audit = Audit(tmp_path / "home" / "runs" / "live")
            for hours in (5, -9, 3):
                jump(hours)
                now = program.now
                program.until(lambda now, then=now: now["owned"] > then["owned"] + 2, "experience")
                program.until(lambda now, then=now: now["newest"] > then["newest"], "versions")
            gateway.kill()
            jump(-20)
            gateway.start()
            now = program.now
            program.until(lambda now, then=now: now["owned"] > then["owned"] + 2, "experience after a restart")
            gateway.kill()
            jump(48)
            gateway.start()
            now = program.until(lambda now: "expired" in now["trouble"], "the end of the token")
            program.until(lambda now, then=now: now["waiting"] > then["waiting"] + 2, "experience that waits")
            program.kill()
            jump(0)
            heir = Program(tmp_path, gateway.address, number=1, **options)
            heir.until(lambda now: now["adopted"] > 2, "the inheritance")
            did = heir.stop()
        finally:
            for each in (program, heir):
                if each is not None:
                    each.end()
        audit.check(did, alone=False)
        audit.check_learned()
        audit.close()


def test_a_gateway_whose_disk_is_full_refuses_nothing_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with gateway(tmp_path / "home", "--http", "", doors=1) as served:
        options = {"config": CONFIG, "flush": 0.1, "pause": 0.001}
        programs = [Program(tmp_path, served.grpc, number=0, **options),
                    Program(tmp_path, served.grpc, number=1, spool=str(tmp_path / "spool"), **options)]  # fmt: skip
        try:
            for program in programs:
                program.until(lambda now: now["owned"] > 0, "the first fragment")
            run = tmp_path / "home" / "runs" / "live"
            audit = Audit(run)
            for _ in range(2):
                largest = max(path.stat().st_size for path in (run / "log").iterdir())
                resource.prlimit(served.pid, resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
                for program in programs:
                    full = program.until(lambda now: now["waiting"] > 20, "what the gateway has no room for")
                    program.until(lambda now, full=full: now["acts"] > full["acts"] + 100, "acting all the same")
                resource.prlimit(served.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                for program in programs:
                    program.until(lambda now: now["waiting"] < 20, "room")
            dids = [program.stop() for program in programs]
        finally:
            for program in programs:
                program.end()
        audit.check(*dids)
        audit.close()
        assert served.process.poll() is None


def test_a_program_that_was_there_first_is_learned_from(tmp_path: Path) -> None:
    """Nobody told it how long fragments may be; from the next run of the program on it knows."""
    config = CONFIG | {"lanes": {"count": 2, "steps": 16}, "algorithm": {"kind": "ppo", "minibatch": 32, "epochs": 1}}
    gateway = Killed(tmp_path / "home", "--http", "", doors=1)
    program = Program(tmp_path, gateway.address, number=0, config=config, wait=0.1, flush=60.0)
    try:
        program.until(lambda now: now["steps"] > 128, "a whole fragment")
        with gateway:
            program.until(lambda now: now["newest"] > 1, "versions")
            audit = Audit(tmp_path / "home" / "runs" / "live")
            audit.check(program.stop())
            audit.close()
    finally:
        program.end()
    assert {one.rows for one in audit.stored if not one.source and one.seq > 0} & {16}
