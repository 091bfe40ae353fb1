"""Deciding for many at once: the same as for each alone, with errors and noise that are each one's own."""

import asyncio
from hashlib import sha256

import numpy as np
import pytest
from msgspec.structs import replace

from farfield.errors import ConfigError, MissingError, SpecError
from farfield.experience.noise import draw
from farfield.serving.policies import NumpyPolicy
from farfield.serving.predictor import SIZES, Ask, Predictor
from farfield.serving.releases import Releases
from farfield.types import Field, Head, Kind, Network, Node, Spec, Tensor, TensorRef, Version, noise_blocks
from hosting import FACTS, NETWORK, SPEC, STREAM, version

pytestmark = pytest.mark.timeout(60)
OTHER = "cd" * 16


class Registry:
    """Where the newest version is."""

    def __init__(self, *first):
        self.releases = Releases()
        self.put(*(first or version(1)))

    def put(self, made, weights):
        self.releases.seed(made, weights)
        self.weights = weights

    def newest(self):
        return self.releases.newest


def predictor(registry, *, lanes=64, draw=draw):
    return Predictor(registry.newest, draw=draw, seed=FACTS.seed, lanes=lanes)


def decide(registry, *asks, **options):
    """Ask everything at once; gives answers or errors, and how many batches that took."""

    async def run():
        one = predictor(registry, **options)

        async def ask(each):
            return await one.put(each)

        return await asyncio.gather(*map(ask, asks), return_exceptions=True), one.batches

    return asyncio.run(run())


def seen(lanes=1, seed=0):
    return {"obs": np.random.default_rng(seed).normal(size=(lanes, 4)).astype(np.float32)}


def alone(registry, ask):
    """What a client decides by itself."""
    made = registry.newest().version
    policy = NumpyPolicy(made.spec, made.network)
    policy.load(made, registry.weights)
    lanes = len(next(iter(ask.observations.values())))
    blocks, noise = noise_blocks(made.spec, made.network), None
    if ask.stream:
        noise = draw(blocks, seed=FACTS.seed, stream=ask.stream, first=ask.decision, steps=1, lanes=lanes)[0]
    choice = policy.act(ask.observations, noise=noise, memory=ask.memory or policy.memory(lanes))
    return choice, policy.log_prob(choice.logits, choice.action) if ask.stream else None


@pytest.mark.parametrize("count", [1, 3, 4, 17, 40])
def test_a_batch_decides_as_each_client_would_alone(count):
    registry = Registry()
    asks = [Ask(seen(1 + i % 3, i), {}, (STREAM, OTHER)[i % 2], 10 * i) for i in range(count)]
    answers, _ = decide(registry, *asks, lanes=1024)
    for ask, answer in zip(asks, answers, strict=True):
        choice, scores = alone(registry, ask)
        np.testing.assert_array_equal(answer.action["action"], choice.action["action"])
        np.testing.assert_allclose(answer.log_prob, scores, atol=1e-5)
        assert (answer.version, answer.attempt) == (1, 1)


def test_all_that_wait_are_decided_in_one_run_of_the_network():
    answers, batches = decide(Registry(), *[Ask(seen(), {}, STREAM, i) for i in range(60)])
    assert batches == 1
    assert len({answer.action["action"].shape for answer in answers}) == 1


def test_more_lanes_than_a_batch_holds_take_several():
    answers, batches = decide(Registry(), *[Ask(seen(3), {}, STREAM, i) for i in range(10)], lanes=8)
    assert batches == 5
    assert all(len(answer.log_prob) == 3 for answer in answers)


def test_who_asks_without_a_stream_gets_the_best_action():
    registry = Registry()
    asks = [Ask(seen(2, i), {}, "" if i % 2 else STREAM, i) for i in range(20)]
    answers, batches = decide(registry, *asks)
    assert batches == 1
    for ask, answer in zip(asks, answers, strict=True):
        np.testing.assert_array_equal(answer.action["action"], alone(registry, ask)[0].action["action"])
        assert (answer.log_prob is None) == (not ask.stream)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (Ask({}), "expected ['obs'], came []"),
        (Ask(seen() | {"more": np.zeros(1)}), "came ['more', 'obs']"),
        (Ask({"obs": np.zeros(4, np.float32)}), "expected float32 [4, 4], came float32 [4]"),
        (Ask({"obs": np.float32(3.0)}), "lanes: expected 1 to 64"),
        (Ask({"obs": np.zeros((0, 4), np.float32)}), "lanes: expected 1 to 64 in one request, came 0"),
        (Ask({"obs": np.zeros((65, 4), np.float32)}), "came 65"),
        (Ask({"obs": np.zeros((1, 4))}), "expected float32 [1, 4], came float64"),
        (Ask({"obs": np.full((1, 4), np.nan, np.float32)}), "finite"),
        (Ask(seen(), {"gru": np.zeros((1, 3), np.float32)}), "memory 'gru' is unknown"),
        (Ask(seen(), {}, "AB" * 16), "stream: expected 32 lower-case"),
        (Ask(seen(), {}, STREAM, -1), "decision: expected 0"),
    ],
)
def test_a_bad_request_is_refused_and_its_neighbours_are_decided(ask, words):
    (before, bad, after), _ = decide(Registry(), Ask(seen(), {}, STREAM), ask, Ask(seen(), {}, STREAM))
    assert isinstance(bad, SpecError)
    assert words in str(bad)
    assert before.action.keys() == after.action.keys() == {"action"}


def test_without_noise_it_can_only_be_greedy():
    (greedy, exploring), _ = decide(Registry(), Ask(seen()), Ask(seen(), {}, STREAM), draw=None)
    assert greedy.version == 1
    assert isinstance(exploring, ConfigError)


def test_it_goes_on_with_the_newest_version():
    registry = Registry()

    async def run():
        one = predictor(registry)
        first = await one.put(Ask(seen()))
        registry.put(*version(2))
        second = await one.put(Ask(seen()))
        wide = replace(NETWORK, nodes=(*NETWORK.nodes, Node("more", "tanh", ("value",))))
        made, weights = version(3)
        registry.put(replace(made, network=wide), weights)
        return [first.version, second.version, (await one.put(Ask(seen()))).version]

    assert asyncio.run(run()) == [1, 2, 3]


def test_there_is_nothing_to_decide_with_before_the_first_version():
    async def run():
        Predictor(lambda: None, draw=draw, seed=0, lanes=8).put(Ask(seen()))

    with pytest.raises(MissingError, match="no version yet"):
        asyncio.run(run())


def test_a_network_that_cannot_run_is_said_and_nobody_waits_for_ever():
    broken = replace(NETWORK, nodes=(NETWORK.nodes[0], replace(NETWORK.nodes[1], tensors={"kernel": "logits/kernel"})))
    made, weights = version(1)
    (first, second), _ = decide(Registry(replace(made, network=broken), weights), Ask(seen()), Ask(seen()))
    assert "cannot be acted with" in str(first)
    assert "cannot be acted with" in str(second)


def test_who_gave_up_does_not_disturb_the_others():
    async def run():
        one = predictor(Registry())
        left, stayed = one.put(Ask(seen())), one.put(Ask(seen()))
        left.cancel()
        return await stayed

    assert asyncio.run(run()).version == 1


def test_a_slow_network_runs_beside_the_loop_and_decides_the_same(monkeypatch):
    monkeypatch.setattr("farfield.serving.predictor.INLINE", -1.0)
    registry = Registry()
    asks = [Ask(seen(2, i), {}, STREAM, i) for i in range(5)]
    answers, _ = decide(registry, *asks)
    for ask, answer in zip(asks, answers, strict=True):
        np.testing.assert_array_equal(answer.action["action"], alone(registry, ask)[0].action["action"])


def test_batches_have_few_sizes():
    assert len(SIZES) <= 8
    assert list(SIZES) == sorted(SIZES)


# -- other heads and memory ---------------------------------------------------------------------------------------


def made(spec, network, seed=0):
    """A version of any network, with random tensors."""
    generator = np.random.default_rng(seed)
    weights = {
        name: generator.normal(size=tensor.shape).astype(np.float32) if tensor.shape else np.float32(0.4).reshape(())
        for name, tensor in network.tensors.items()
    }
    refs = {
        name: TensorRef(array.dtype.name, array.shape, sha256(array.tobytes()).hexdigest())
        for name, array in weights.items()
    }
    return Version("game", 1, 1, None, 0, spec, network, refs), weights


INPUT = Node("obs", "input", ("obs",), options={"shape": [4], "dtype": "float32"})
BOX = Spec(SPEC.observations, (Field("action", Kind.BOX, "float32", (2,)),))
SMALL = Spec(SPEC.observations, (Field("action", Kind.DISCRETE, "int8", (), (3,)),))


def dense(width):
    return {"head/kernel": Tensor((4, width)), "head/bias": Tensor((width,))}


HEAD = Node("head", "dense", ("obs",), {"kernel": "head/kernel", "bias": "head/bias"})
GAUSSIAN = Network(
    (INPUT, HEAD, Node("log_std", "param", (), {"tensor": "log_std"})), dense(2) | {"log_std": Tensor((2,))},
    (Head("action", "gaussian", ("head", "log_std")),),
)  # fmt: skip
EPSILON = Network(
    (INPUT, HEAD, Node("epsilon", "param", (), {"tensor": "epsilon"})), dense(3) | {"epsilon": Tensor(())},
    (Head("action", "epsilon", ("head", "epsilon")),),
)  # fmt: skip


@pytest.mark.parametrize(("spec", "network"), [(BOX, GAUSSIAN), (SMALL, EPSILON)], ids=["gaussian", "epsilon"])
def test_every_head_can_be_greedy_and_exploring_in_one_batch(spec, network):
    registry = Registry(*made(spec, network))
    asks = [Ask(seen(3, i), {}, "" if i % 2 else STREAM, i) for i in range(8)]
    answers, batches = decide(registry, *asks)
    assert batches == 1
    for ask, answer in zip(asks, answers, strict=True):
        choice, _ = alone(registry, ask)
        np.testing.assert_allclose(answer.action["action"], choice.action["action"], atol=1e-6)
        assert answer.action["action"].dtype == spec.actions[0].dtype


RECURRENT = Network(
    (
        INPUT,
        Node("gru", "gru", ("obs",), {"input": "k", "recurrent": "r", "bias": "b"}),
        Node("head", "dense", ("gru",), {"kernel": "head/kernel", "bias": "head/bias"}),
    ),
    {"k": Tensor((4, 9)), "r": Tensor((3, 9)), "b": Tensor((9,)),
     "head/kernel": Tensor((3, 3)), "head/bias": Tensor((3,))},
    (Head("action", "categorical", ("head",)),), memory={"gru": (3,)},
)  # fmt: skip


def test_everybody_has_a_memory_of_their_own():
    registry = Registry(*made(SPEC, RECURRENT))
    asks = [Ask(seen(2, i), {"gru": np.full((2, 3), i / 10, np.float32)}, STREAM, i) for i in range(5)]
    asks.append(Ask(seen(1, 9), {}, STREAM, 9))  # nothing is remembered
    answers, batches = decide(registry, *asks)
    assert batches == 1
    for ask, answer in zip(asks, answers, strict=True):
        choice, _ = alone(registry, ask)
        np.testing.assert_allclose(answer.memory["gru"], choice.memory["gru"], atol=1e-6)
    (bad,), _ = decide(registry, Ask(seen(), {"gru": np.zeros((1, 4), np.float32)}))
    assert "expected float32 [1, 3], came float32 [1, 4]" in str(bad)
