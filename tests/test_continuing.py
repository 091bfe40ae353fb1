"""What may change when a run goes on: what can be tuned is, what is kept for life is refused and harms nothing."""

from pathlib import Path

import pytest

import farfield
from farfield import config as configs
from farfield.errors import ConfigError

SMALL = {"actors": 0, "lanes": {"count": 4, "steps": 32}, "metrics": {"writers": []}, "until": None}


def begin(home: Path) -> farfield.Run:
    return farfield.train(
        "CartPole-v1", name="one", home=str(home), steps=300, algorithm={"kind": "ppo", "minibatch": 64}, **SMALL
    )


def test_a_changed_hyper_parameter_is_used_and_stays(tmp_path: Path) -> None:
    begin(tmp_path)
    again = farfield.train(name="one", resume=True, home=str(tmp_path), steps=600, algorithm={"learning_rate": 1e-5})
    assert again.metrics()[-1]["learning_rate"] == pytest.approx(1e-5)
    last = farfield.train(name="one", resume=True, home=str(tmp_path), steps=900)
    assert last.metrics()[-1]["learning_rate"] == pytest.approx(1e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"network": {"hidden": (32,)}}, "network.hidden"),
        ({"algorithm": {"log_std": "state"}}, "algorithm.log_std"),
        ({"algorithm": {"kind": "dqn"}}, "algorithm.kind"),
        ({"lanes": {"count": 8}}, "lanes.count"),
        ({"seed": 9}, "seed"),
        ({"actors": 1}, "actors"),
        ({"algorithm": {"minibatch": 100}}, "minibatch"),
    ],
)
def test_what_cannot_change_is_refused_and_the_run_can_still_go_on(tmp_path: Path, changes: dict, words: str) -> None:
    folder = begin(tmp_path).folder
    before = (folder / "config.toml").read_bytes()
    with pytest.raises(ConfigError, match=words):
        farfield.train(name="one", resume=True, home=str(tmp_path), steps=600, **changes)
    assert (folder / "config.toml").read_bytes() == before
    assert farfield.train(name="one", resume=True, home=str(tmp_path), steps=600).summary["steps"] >= 600


def test_limits_and_places_may_change() -> None:
    kept = {"run": "one", "env": "CartPole-v1", "actors": 2}
    changes = {"actors": 3, "steps": 5, "patience": 7, "checkpoint": {"interval": 3.0}, "feed": {"max_lag": 3}}
    now = configs.continued(kept, [changes])
    assert (now.actors, now.steps, now.patience, now.checkpoint.interval, now.feed["max_lag"]) == (3, 5, 7, 3.0, 3)
