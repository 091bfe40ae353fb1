"""What every algorithm must do; a new one is found by its file."""

from pathlib import Path

import numpy as np
import pytest

import farfield
from farfield import config as configs
from farfield import wiring
from farfield.errors import ConfigError
from farfield.learning import hyper
from farfield.learning.learner import Learner
from farfield.types import Version

DOCS = Path(__file__).parents[2] / "docs/algorithms"
KINDS = configs.kinds("learning.algorithms")
SETTINGS = {"actors": 0, "seed": 2, "lanes": {"count": 8, "steps": 32}, "metrics": {"writers": []}}
ENV = "farfield/IdentityDiscrete-v0"


def learner(kind: str, folder: Path) -> Learner:
    """Give a learner that steps its lanes itself, as `farfield train --actors 0` makes it."""
    config = configs.resolve(ENV, run="x", file=None, settings=(), options=SETTINGS | {"algorithm": {"kind": kind}})
    folder = folder / "runs" / "x"
    folder.mkdir(parents=True, exist_ok=True)
    lanes = wiring.lanes_of(config, config.lanes.count, seed=config.seed, replayable=True)
    parts = wiring.learning_of(config, lanes.spec, folder)
    stream = wiring.repeatable_stream(config)
    actor = wiring.actor_of(config, lanes, parts.algorithm.network, stream=stream, label="0")
    actor.load(Version("x", 0, 0, None, 0, lanes.spec, parts.algorithm.network, {}), parts.algorithm.weights())
    return Learner(parts.algorithm, parts.feed, wiring.LanesSource(actor), attempt=1)


def learn(made: Learner, updates: int) -> list[dict]:
    found = []
    for update in made.updates():
        if update is not None:
            found.append(update.row)
        made.hold = len(found) >= updates
        if made.hold and made.quiet:
            return found
    raise AssertionError("updates never end by themselves")


def test_there_are_algorithms():
    assert {"ppo", "dqn", "reinforce"} <= set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_it_has_a_page_a_feed_and_says_what_each_change_takes(kind):
    module = configs.plugin("learning.algorithms", kind)
    assert (DOCS / f"{kind}.md").read_text().startswith("# ")
    assert module.FEED in ("fresh", "replay")
    assert set(hyper.changes(module.Config).values()) <= {"live", "recompile", "fixed"}
    with pytest.raises(AttributeError, match="immutable"):
        module.Config().learning_rate = 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_one_has_the_same_state_and_weights(tmp_path, kind):
    made, other = learner(kind, tmp_path / "a"), learner(kind, tmp_path / "b")
    learn(made, 3)
    kept = made.algorithm.state()
    other.algorithm.restore(kept)
    again = other.algorithm.state()
    assert kept.keys() == again.keys()
    for name, value in kept.items():
        assert value.tobytes() == again[name].tobytes(), name
    theirs = other.algorithm.weights()
    for name, value in made.algorithm.weights().items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_its_metrics_are_numbers_with_names_of_their_own(tmp_path, kind):
    made = learner(kind, tmp_path)
    names: set[str] = set()
    true_learn = made.algorithm.learn

    def watched(batch):
        metrics = true_learn(batch)
        names.update(metrics)
        return metrics

    made.algorithm.learn = watched
    row = learn(made, 2)[-1]
    assert names
    assert all(isinstance(row[name], float) for name in names)
    own = {"update", "attempt", "version", "steps", "seconds", "steps_per_second", "episodes", "return_mean", "lag"}
    assert not names & own, "the learner uses these names for something else"


@pytest.mark.parametrize("kind", KINDS)
def test_tuning_is_all_or_nothing(tmp_path, kind):
    algorithm = learner(kind, tmp_path).algorithm
    before = algorithm.state()
    fixed = [name for name, change in hyper.changes(configs.plugin("learning.algorithms", kind).Config).items()
             if change == "fixed"]  # fmt: skip
    for wrong in ({"learning_rat": 1.0}, {"learning_rate": -1.0}, *({name: 1} for name in fixed[:1])):
        with pytest.raises(ConfigError):
            algorithm.tune({"gamma": 0.5} | wrong)
    after = algorithm.state()
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_to_repeat_what_it_sees(tmp_path, kind):
    run = farfield.train(
        ENV, home=str(tmp_path), algorithm={"kind": kind}, until=7.0, steps=100_000,
        **SETTINGS | {"lanes": {"count": 8, "steps": 32}},
    )  # fmt: skip
    assert run.summary["stopped_by"] == "until", run.summary
