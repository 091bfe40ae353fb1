"""Sessions against the real gateway: what they finish is stored once, whoever is killed; versions and credits come."""

import socket
import threading
from collections import Counter

import numpy as np
import pytest

import farfield
from farfield.codec import decode_credit, decode_fragment, kind_of
from farfield.transports import disk
from gateways import eventually, gateway

SPEC = farfield.spec(obs=farfield.box(4), action=farfield.discrete(3), mask=True)
CONFIG = {
    "algorithm": {"kind": "ppo", "epochs": 1, "minibatch": 32},
    "lanes": {"count": 2, "steps": 16},
    "network": {"hidden": [8]},
    "checkpoint": {"interval": 1e9},  # so that nothing is forgotten before it was counted
}
MASK = [True, False, True]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def stored(home, run):
    """All payloads in the log of a run."""
    log = disk.make(disk.Config(str(home / "runs" / run / "log")))
    payloads, cursor = [], {}
    while True:
        records, cursor = log.read("experiences", after=cursor, limit=1000, timeout=0.0)
        if not records:
            log.close()
            return payloads
        payloads += [bytes(record.payload) for record in records]


def live(app, stop, rows):
    """Play until told to stop; every row has a reward of its own."""
    with app.episode() as episode:
        while not stop.is_set():
            for _ in range(20):
                action = episode.act(np.zeros(4), mask=MASK)
                assert action != 1
                episode.reward(float(len(rows)))
                rows.append(action)
            episode.end()
            stop.wait(0.01)


def killed_again_and_again(tmp_path, kills, clients):
    address = f"127.0.0.1:{free_port()}"
    options = ("--grpc", address, "--http", "")
    stop, rows = threading.Event(), [[] for _ in range(clients)]
    with gateway(tmp_path, *options, doors=1) as served:
        apps = [
            farfield.connect(address, run="r", spec=SPEC, config=CONFIG, spool=tmp_path / "spool", wait=60)
            for _ in range(clients)
        ]
        threads = [threading.Thread(target=live, args=(app, stop, own)) for app, own in zip(apps, rows, strict=True)]
        for thread in threads:
            thread.start()
        eventually(lambda: apps[0].counters().owned > 0)
        served.kill()
    for n in range(kills):
        with gateway(tmp_path, *options, doors=1) as served:
            enough = sum(app.counters().owned for app in apps) + n  # at another moment each time
            eventually(lambda enough=enough: sum(app.counters().owned for app in apps) > enough)
            served.kill()
    with gateway(tmp_path, *options, doors=1) as served:
        stop.set()
        for thread in threads:
            thread.join()
        assert not any(app.flush(60) for app in apps)
        counters = [app.counters() for app in apps]
        assert not any(app.close(10) for app in apps)
        served.kill()
    assert [one.refused + one.dropped_fragments + one.damaged_bytes for one in counters] == [0] * clients
    assert sum(one.reconnects for one in counters) >= kills
    return rows, counters


def check(tmp_path, rows, counters):
    fragments = [decode_fragment(payload) for payload in stored(tmp_path, "r")]
    assert Counter(Counter(fragment.name for fragment in fragments).values()) == {1: len(fragments)}
    assert len(fragments) == sum(one.fragments for one in counters)
    assert sum(int(fragment.columns["valid"].sum()) for fragment in fragments) == sum(map(len, rows))
    by_stream: dict[str, list] = {}
    for fragment in sorted(fragments, key=lambda one: one.seq):
        by_stream.setdefault(fragment.stream, []).append(fragment.columns["reward"].ravel())
    arrived = sorted(np.concatenate(parts).tolist() for parts in by_stream.values())
    assert sum(map(len, arrived)) == sum(map(len, rows))
    assert Counter(np.concatenate(arrived).tolist()) == Counter(float(n) for own in rows for n in range(len(own)))
    assert not list((tmp_path / "spool").rglob("*.spool"))


@pytest.mark.slow
def test_every_finished_step_is_stored_once_while_the_gateway_is_killed(tmp_path):
    check(tmp_path, *killed_again_and_again(tmp_path, kills=3, clients=3))


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_every_finished_step_is_stored_once_after_fifty_kills(tmp_path):
    check(tmp_path, *killed_again_and_again(tmp_path, kills=50, clients=8))


@pytest.mark.slow
def test_a_program_gets_better_while_it_runs(tmp_path):
    with (
        gateway(tmp_path, "--http", "", doors=1) as served,
        farfield.connect(
            served.grpc, run="bandit", spec=SPEC, spool=tmp_path / "spool", pace=True, wait=60,
            config={
                "algorithm": {"kind": "ppo", "learning_rate": 0.02, "minibatch": 64, "epochs": 4},
                "lanes": {"count": 4, "steps": 32},
                "network": {"hidden": [16]},
            },
        ) as app,
        app.episode() as episode,
    ):  # fmt: skip
        assert app.wait(90)
        recent: list[float] = []

        def better():
            for _ in range(200):
                right = episode.act(np.zeros(4), mask=MASK) == 2
                episode.reward(float(right))
                episode.end()
                recent.append(right)
            return np.mean(recent[-200:]) > 0.95

        eventually(better, "a policy that knows what pays")
        assert app.counters().version > 0
        best, chance, _ = episode.advise(np.zeros(4), mask=MASK)[0]
        assert (best, chance > 0.9) == (2, True)
        credited = episode.decision
        app.flush(30)
        assert app.credit(credited, 1.0, id="late")
        assert not app.flush(30)
        assert app.counters().refused == 0
        served.kill()
    kinds = Counter(kind_of(payload) for payload in stored(tmp_path, "bandit"))
    assert kinds["Credit"] == 1
    (credit,) = (decode_credit(p) for p in stored(tmp_path, "bandit") if kind_of(p) == "Credit")
    assert (credit.stream, credit.n, credit.id) == (*credited, "late")
