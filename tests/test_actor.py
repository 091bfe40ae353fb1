"""The actor: lanes and versions in, fragments out; a new version is used from the very next step."""

import numpy as np

from farfield import acting, config, wiring
from farfield.codec import decode_fragment, encode_announcement, encode_fragment
from farfield.experience.actor import Actor
from farfield.learning import networks
from farfield.learning.feeds import FreshFeed
from farfield.learning.learner import Learner
from farfield.transports import memory
from farfield.types import Announcement, Fragment, Version, Weights
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
