"""Live programs when things go wrong around them, again and again: the full counts of test_live_faults.py."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateways import PATIENCE, eventually, exists, gateway
from live_audit import Audit
from live_client import CONFIG, Program
from live_field import PLAIN, SECURE, Field, fielded, survived
from live_kills import killed_at_random

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]
TIMES = 60  # that something happens to a connection
LONG = 6 * PATIENCE  # a run whose learner crashed five times in a row is left alone for a minute, then for two


def test_fifty_kills_of_a_gateway_under_eight_programs_lose_nothing(tmp_path: Path) -> None:
    killed_at_random(tmp_path, kills=50, programs=8, seed=2)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    yield from fielded(tmp_path_factory.mktemp("field") / "plain", PLAIN[:-1], secure=False)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    yield from fielded(tmp_path_factory.mktemp("field") / "secure", SECURE, secure=True)


@pytest.mark.parametrize("way", PLAIN[:-1])
def test_very_bad_connections_lose_nothing(plain: Field, way: str) -> None:
    survived(plain, way, TIMES)


@pytest.mark.parametrize("way", SECURE)
def test_connections_that_change_bytes_again_and_again_lose_nothing(secure: Field, way: str) -> None:
    survived(secure, way, TIMES)


def test_six_deaths_of_a_learner_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    with gateway(tmp_path / "home") as served:
        programs = [Program(tmp_path, served.grpc, number=number, config=CONFIG) for number in range(4)]
        try:
            programs[0].until(lambda now: now["newest"] >= 0, "a version")
            audit = Audit(tmp_path / "home" / "runs" / "live")
            for _ in range(6):
                newest = programs[0].now["newest"]
                programs[0].until(lambda now, newest=newest: now["newest"] > newest, "a newer version", LONG)
                learner = served.learner("live")
                os.kill(learner, signal.SIGKILL)
                eventually(lambda learner=learner: not exists(learner), "its end")
            newest = programs[0].now["newest"]
            programs[0].until(lambda now: now["newest"] > newest, "the last learner", LONG)
            dids = [program.stop() for program in programs]
        finally:
            for program in programs:
                program.end()
        audit.check(*dids)
        audit.check_learned(LONG)
        audit.close()
    assert all(did.counters["reconnects"] == 0 for did in dids)
