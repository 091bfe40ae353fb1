"""The whole journey: environment, fragments, transport, learner, versions, and back; audited by the ledger."""

from collections import Counter
from pathlib import Path

import pytest

import farfield
from farfield import wiring
from farfield.learning import ledger
from farfield.telemetry import metrics

SMALL = {"lanes": {"count": 4, "steps": 32}, "algorithm": {"kind": "ppo", "minibatch": 64}, "metrics": {"writers": []}}


def test_equal_seeds_give_equal_runs_in_one_process(tmp_path: Path) -> None:
    settings = SMALL | {"actors": 0, "steps": 1500, "until": None}
    one = farfield.train("CartPole-v1", name="one", home=str(tmp_path), seed=5, **settings)
    two = farfield.train("CartPole-v1", name="two", home=str(tmp_path), seed=5, **settings)
    other = farfield.train("CartPole-v1", name="other", home=str(tmp_path), seed=6, **settings)
    assert one.summary["sha256"] == two.summary["sha256"] != other.summary["sha256"]
    assert [row["returns"] for row in one.metrics()] == [row["returns"] for row in two.metrics()]


def test_a_version_can_be_read_with_no_model_code(tmp_path: Path) -> None:
    run = farfield.train("CartPole-v1", home=str(tmp_path), **(SMALL | {"actors": 0, "steps": 500, "until": None}))
    registry = wiring.registry_of(wiring.read_config(run.folder), run.folder)
    first, last = registry.version(0), registry.head()
    assert last is not None
    assert (first.number, first.steps, first.parent) == (0, 0, None)
    assert last.steps == run.summary["steps"]
    assert {head.action for head in last.network.heads} == {"action"}
    policy = wiring.policy_of(last)
    policy.load(last, registry.fetch(last))


@pytest.mark.slow
def test_two_actors_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    settings = SMALL | {"actors": 2, "steps": 20_000, "until": None, "feed": {"max_lag": 1_000_000}}
    run = farfield.train("CartPole-v1", home=str(tmp_path), **settings)
    entries = ledger.read(run.folder / "ledger.jsonl")
    used = Counter((stream, seq) for entry in entries for stream, seq in entry.fragments)
    assert max(used.values()) == 1
    assert len({stream for stream, _ in used}) == 2
    for stream in {stream for stream, _ in used}:
        seqs = sorted(seq for name, seq in used if name == stream)
        assert seqs == list(range(len(seqs))), "a fragment was lost"
    rows = metrics.read(run.folder)
    assert [row["update"] for row in rows] == list(range(1, len(rows) + 1)) == [entry.update for entry in entries]
    assert run.summary["dropped"] == 0
    assert run.summary["steps"] == rows[-1]["steps"] >= 20_000


@pytest.mark.slow
def test_resuming_with_actors_goes_on_from_where_it_was(tmp_path: Path) -> None:
    settings = SMALL | {"actors": 1, "steps": 5_000, "until": None}
    first = farfield.train("CartPole-v1", name="run", home=str(tmp_path), **settings)
    second = farfield.train(name="run", home=str(tmp_path), resume=True, steps=10_000)
    assert second.summary["steps"] >= 10_000
    assert second.summary["updates"] > first.summary["updates"]
    assert second.summary["version"] > first.summary["version"]
    entries = ledger.read(second.folder / "ledger.jsonl")
    assert [entry.update for entry in entries] == list(range(1, len(entries) + 1))
    assert {entry.attempt for entry in entries} == {1, 2}
