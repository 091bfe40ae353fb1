"""The actor: lanes and versions in, fragments out; a new version is used from the very next step."""

from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from farfield import acting, config, wiring
from farfield.codec import decode_fragment, encode_announcement, encode_fragment
from farfield.errors import ConfigError, FullError
from farfield.experience.actor import Actor
from farfield.learning import networks
from farfield.learning.feeds import FreshFeed
from farfield.learning.learner import Learner
from farfield.transports import memory
from farfield.types import Announcement, Columns, Fragment, Tick, Version, Weights
from farfield.weights.registry import Registry

STEPS, LANES = 8, 3
CONFIG = config.resolve(
    "farfield/IdentityDiscrete-v0",
    run="r",
    file=None,
    settings=[f"lanes.steps={STEPS}", f"lanes.count={LANES}"],
    options={},
)
LANES_OF_ALL = wiring.lanes_of(CONFIG, LANES, seed=1, replayable=False)
NETWORK = networks.build(CONFIG.network, LANES_OF_ALL.spec, style="policy", log_std="free")


def version(number: int) -> tuple[Version, Weights]:
    """A version that prefers action `number`, much."""
    weights = networks.initialise(NETWORK, seed=number)
    head = next(node for node in NETWORK.nodes if node.name == NETWORK.heads[0].inputs[0])
    weights[head.tensors["bias"]] = np.eye(weights[head.tensors["bias"]].size, dtype=np.float32)[number] * 100
    described = Registry.describe(
        weights, run="r", number=number, attempt=1, parent=None, steps=0, spec=LANES_OF_ALL.spec, network=NETWORK
    )
    return described, weights


def actor() -> Actor:
    made = wiring.actor_of(CONFIG, LANES_OF_ALL, NETWORK, stream="0" * 32, label="0")
    made.load(*version(0))
    return made


def unrolled(at: int) -> Fragment:
    """A fragment in which version 1 came before step `at`."""
    asked = iter(range(STEPS))
    return actor().unroll(lambda: version(1) if next(asked) == at else None)


def test_a_version_that_comes_inside_a_fragment_acts_at_once() -> None:
    fragment = unrolled(5)
    assert fragment.version == 0
    assert fragment.columns["version"].tolist() == [0] * 5 + [1] * 3
    chosen = fragment.columns["action"]
    assert (chosen[:5] == 0).all()
    assert (chosen[5:] == 1).all()
    assert np.allclose(fragment.columns["log_prob"], 0, atol=1e-3), "each step is scored by the version that chose"
    again = decode_fragment(encode_fragment(fragment))
    assert again.columns["version"].tolist() == fragment.columns["version"].tolist()


def test_a_fragment_of_one_version_says_it_once() -> None:
    assert "version" not in actor().unroll().columns
    begun = unrolled(0)
    assert "version" not in begun.columns
    assert begun.version == 1


def test_what_was_seen_is_kept_although_the_environment_writes_into_the_same_array() -> None:
    class InPlace:
        """Lanes that give one and the same array every time."""

        def __init__(self) -> None:
            self.lanes = wiring.lanes_of(CONFIG, LANES, seed=1, replayable=False)
            self.spec, self.count, self.obs = self.lanes.spec, self.lanes.count, self.lanes.reset()

        def reset(self) -> Columns:
            return self.obs

        def step(self, action: Columns) -> Tick:
            tick = self.lanes.step(action)
            for name, value in tick.obs.items():
                self.obs[name][...] = value
            return tick._replace(obs=self.obs)

    plain, same = actor(), actor()
    plain.lanes, same.lanes = wiring.lanes_of(CONFIG, LANES, seed=1, replayable=False), InPlace()  # type: ignore[assignment]
    one, other = plain.unroll(), same.unroll()
    assert len(np.unique(one.columns["obs"])) > 1
    assert np.array_equal(one.columns["obs"], other.columns["obs"])


def test_an_actor_shows_that_it_lives_with_every_step() -> None:
    made = actor()
    seen: list[int] = []
    made.unroll(lambda: seen.append(made.stepped))
    assert seen == [LANES * t for t in range(STEPS)]


class Crowded:
    """A transport without room: at once, then later, and then with another trouble if there is one."""

    def __init__(self, trouble: Exception | None = None) -> None:
        self.asked, self.trouble = 0, trouble

    def append(self, topic: str, payload: bytes, *, key: str) -> "Future[None]":
        self.asked += 1
        if self.asked == 1:
            raise FullError("no room")
        done: Future[None] = Future()
        error = FullError("no room") if self.asked == 2 else self.trouble
        done.set_exception(error) if error else done.set_result(None)
        return done


def test_a_fragment_without_room_is_sent_again_and_one_that_is_refused_ends_the_actor() -> None:
    crowded: Any = Crowded()
    underway = [acting.send(crowded, b"", key="k")]
    underway = acting.unowned(crowded, underway, key="k")
    assert acting.unowned(crowded, underway, key="k") == []
    assert crowded.asked == 3
    crowded = Crowded(ConfigError("can never fit"))
    underway = acting.unowned(crowded, [acting.send(crowded, b"", key="k")], key="k")
    with pytest.raises(ConfigError, match="can never fit"):
        acting.unowned(crowded, underway, key="k")


def test_lag_is_counted_step_by_step() -> None:
    feed = FreshFeed(LANES_OF_ALL.spec, steps=STEPS, lanes=LANES, max_lag=9)

    class Still:
        """An algorithm and a source that only pass through."""

        def learn(self, batch: object) -> dict[str, float]:
            return {}

        def weights(self) -> Weights:
            return {}

        def arrive(self, wait: bool) -> list[Fragment]:
            return [unrolled(6)] if wait else []

    learner = Learner(Still(), feed, Still(), attempt=1)  # type: ignore[arg-type]
    learner.begin(0)
    learner.counters.updates = learner.counters.version = 4
    update = next(update for update in learner.updates() if update)
    assert update.row["lag_max"] == 4
    assert update.row["lag"] == (6 * 4 + 2 * 3) / STEPS


def test_a_follower_gives_each_version_once_and_the_newest() -> None:
    log = memory.make(memory.Config())
    follower = acting.Follower(log)
    assert follower.newer() is None
    for number in (0, 1):
        described, weights = version(number)
        log.append(wiring.UPDATES, encode_announcement(Announcement(described, weights, True, {})), key="r")
    follower.follow(0.0)
    found = follower.newer()
    assert found is not None
    assert found[0].number == 1
    assert found[1].keys() == version(1)[1].keys()
    assert follower.newer() is None
    log.close()
