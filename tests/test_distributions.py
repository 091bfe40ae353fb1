"""Log-probabilities and entropies against slow and obvious arithmetic, and against the policies that act."""

import itertools
import math

import jax
import numpy as np
import pytest

from farfield.learning import distributions, networks
from farfield.learning.networks import Config
from farfield.serving import policies
from farfield.types import Field, Head, Kind, Network, Spec

OBS = Field("obs", Kind.BOX, "float32", (4,))
ONE = Field("action", Kind.DISCRETE, "int64", (), (3,))
SEVERAL = Field("action", Kind.MULTI_DISCRETE, "int64", (2,), (3, 4))
LAMPS = Field("action", Kind.MULTI_BINARY, "int8", (3,))
FORCE = Field("action", Kind.BOX, "float32", (2,))


def headed(field, kind, *inputs):
    return Network((), {}, (Head(field.name, kind, inputs),)), Spec((OBS,), (field,))


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def softmax(logits):
    powers = [math.exp(value) for value in logits]
    return [power / sum(powers) for power in powers]


def test_a_choice():
    network, spec = headed(ONE, "categorical", "x")
    logits, action = normal(4, 5, 3), np.random.default_rng(0).integers(0, 3, (4, 5))
    came = distributions.log_prob(network, spec, {"x": logits}, {"action": action})
    entropy = distributions.entropy(network, spec, {"x": logits})
    for place in np.ndindex(4, 5):
        chance = softmax(logits[place])
        assert came[place] == pytest.approx(math.log(chance[action[place]]), rel=1e-5)
        assert entropy[place] == pytest.approx(-sum(p * math.log(p) for p in chance), rel=1e-5)


def test_several_choices_add_up():
    network, spec = headed(SEVERAL, "categorical", "x")
    logits = normal(6, 7)
    action = np.array(list(itertools.product(range(3), range(2))))
    came = distributions.log_prob(network, spec, {"x": logits}, {"action": action})
    entropy = distributions.entropy(network, spec, {"x": logits})
    for i in range(6):
        one, two = softmax(logits[i, :3]), softmax(logits[i, 3:])
        assert came[i] == pytest.approx(math.log(one[action[i, 0]] * two[action[i, 1]]), rel=1e-5)
        both = [p * q for p in one for q in two]
        assert entropy[i] == pytest.approx(-sum(p * math.log(p) for p in both), rel=1e-5)


def test_switches():
    network, spec = headed(LAMPS, "bernoulli", "x")
    logits = normal(8, 3)
    action = np.array(list(itertools.product((0, 1), repeat=3)), np.int8)
    came = distributions.log_prob(network, spec, {"x": logits}, {"action": action})
    entropy = distributions.entropy(network, spec, {"x": logits})
    for i in range(8):
        on = [1 / (1 + math.exp(-value)) for value in logits[i]]
        chances = [p if a else 1 - p for p, a in zip(on, action[i], strict=True)]
        assert came[i] == pytest.approx(math.log(math.prod(chances)), rel=1e-4)
        assert entropy[i] == pytest.approx(-sum(p * math.log(p) + (1 - p) * math.log(1 - p) for p in on), rel=1e-4)


def test_numbers():
    network, spec = headed(FORCE, "gaussian", "mean", "log_std")
    mean, log_std, action = normal(5, 2), normal(5, 2, seed=1), normal(5, 2, seed=2)
    outputs = {"mean": mean, "log_std": log_std}
    came = distributions.log_prob(network, spec, outputs, {"action": action})
    entropy = distributions.entropy(network, spec, outputs)
    for i in range(5):
        score = sum(
            -0.5 * ((a - m) / math.exp(s)) ** 2 - math.log(math.exp(s) * math.sqrt(2 * math.pi))
            for a, m, s in zip(action[i], mean[i], log_std[i], strict=True)
        )
        assert came[i] == pytest.approx(score, rel=1e-4)
        assert entropy[i] == pytest.approx(
            sum(0.5 * math.log(2 * math.pi * math.e * math.exp(s) ** 2) for s in log_std[i]), rel=1e-4, abs=1e-5
        )


def test_epsilon_greedy_choices():
    network, spec = headed(ONE, "epsilon", "q", "epsilon")
    q = np.array([[1, 3, 2], [1, -1e9, 2], [1, -1e9, 2], [5, 4, 3]], np.float32)
    epsilon = np.array([0.3, 0.2, 0.2, 0], np.float32)
    action = np.array([1, 2, 1, 0])
    outputs = {"q": q, "epsilon": epsilon}
    came = distributions.log_prob(network, spec, outputs, {"action": action})
    np.testing.assert_allclose(came, [math.log(0.8), math.log(0.9), -1e9, 0], rtol=1e-5, atol=1e-6)
    entropy = distributions.entropy(network, spec, outputs)
    assert entropy[1] == pytest.approx(-0.9 * math.log(0.9) - 0.1 * math.log(0.1), rel=1e-5)
    assert entropy[3] == pytest.approx(0, abs=1e-6)


def test_masked_choices_count_for_nothing_and_gradients_stay_finite():
    network, spec = headed(ONE, "categorical", "x")
    logits = np.array([[1, -1e9, 2], [-1e9, -1e9, -1e9]], np.float32)

    def total(logits):
        scores = distributions.log_prob(network, spec, {"x": logits}, {"action": np.array([0, 1])})
        return (scores + distributions.entropy(network, spec, {"x": logits})).sum()

    chance = softmax([1, 2])
    entropy = distributions.entropy(network, spec, {"x": logits})
    assert entropy[0] == pytest.approx(-sum(p * math.log(p) for p in chance), rel=1e-5)
    assert np.isfinite(jax.grad(total)(logits)).all()


@pytest.mark.parametrize(
    "actions",
    [(ONE,), (SEVERAL,), (LAMPS,), (FORCE,)],
    ids=lambda actions: actions[0].kind,
)
def test_acting_and_learning_score_alike(actions):
    spec = Spec((OBS,), actions)
    network = networks.build(Config(), spec, style="policy")
    policy = policies.make(spec, network)
    outputs = {name: normal(6, 5, *shape(network, name)) for head in network.heads for name in head.inputs}
    rng = np.random.default_rng(3)
    field = actions[0]
    action = {
        Kind.DISCRETE: lambda: rng.integers(0, 3, (6, 5)),
        Kind.MULTI_DISCRETE: lambda: rng.integers(0, (3, 4), (6, 5, 2)),
        Kind.MULTI_BINARY: lambda: rng.integers(0, 2, (6, 5, 3)).astype(np.int8),
        Kind.BOX: lambda: normal(6, 5, 2, seed=4),
    }[field.kind]()
    ours = policy.log_prob(outputs, {"action": action})
    np.testing.assert_allclose(
        ours, distributions.log_prob(network, spec, outputs, {"action": action}), rtol=1e-5, atol=1e-5
    )


def shape(network, name):
    node = next(node for node in network.nodes if node.name == name)
    return network.tensors[node.tensors.get("bias", name)].shape
