"""Weights into actions: what is chosen, how it is scored, and what is refused."""

import math

import numpy as np
import pytest

from farfield.errors import ConfigError, CorruptError, MissingError, SpecError
from farfield.learning import networks
from farfield.learning.networks import Config
from farfield.serving import policies
from farfield.serving.policies import NumpyPolicy
from farfield.types import Field, Kind, Network, Node, Spec, Version, acting

LANES = 8
OBS = Field("obs", Kind.BOX, "float32", (4,))
MASK = Field("mask", Kind.MULTI_BINARY, "bool", (3,))
ONE = Field("action", Kind.DISCRETE, "int64", (), (3,))
MASKED = Field("action", Kind.DISCRETE, "int64", (), (3,), mask="mask")
SEVERAL = Field("action", Kind.MULTI_DISCRETE, "int64", (2,), (3, 4))
LAMPS = Field("action", Kind.MULTI_BINARY, "int8", (3,))
FORCE = Field("action", Kind.BOX, "float32", (2,))


def version(spec, network):
    return Version("r", 3, 0, None, 0, spec, network, {})


def loaded(action, *, observations=(OBS,), config=None, style="policy", change=()):
    spec = Spec(observations, (action,))
    network = networks.build(config or Config(), spec, style=style)
    weights = networks.initialise(network, seed=1)
    for name, value in weights.items():  # first heads are nearly flat; make them say something
        if name.endswith("kernel") and name.startswith(("policy/action", "q/out")):
            weights[name] = 100 * value
    weights |= dict(change)
    policy = policies.make(spec, network)
    policy.load(version(spec, network), weights)
    return policy, weights


def observed(seed=0, lanes=LANES):
    return np.random.default_rng(seed).standard_normal((lanes, 4), np.float32)


def by_hand(weights, obs, last="policy/action/logits"):
    prefix = last.split("/")[0]
    for layer in ("0", "1"):
        obs = np.tanh(obs @ weights[f"{prefix}/{layer}/kernel"] + weights[f"{prefix}/{layer}/bias"])
    return obs @ weights[f"{last}/kernel"] + weights[f"{last}/bias"]


def test_equal_noise_gives_the_gumbel_argmax():
    policy, weights = loaded(ONE)
    obs, noise = observed(), np.random.default_rng(1).gumbel(size=(LANES, 3)).astype(np.float32)
    choice = policy.act({"obs": obs}, noise=noise, memory={})
    logits = by_hand(weights, obs)
    assert choice.action["action"].tolist() == [int(np.argmax(logits[i] + noise[i])) for i in range(LANES)]
    assert choice.action["action"].tolist() != logits.argmax(1).tolist()
    assert choice.action["action"].dtype == np.int64
    np.testing.assert_allclose(choice.logits["policy/action/logits"], logits, rtol=1e-5, atol=1e-6)


def test_gumbel_noise_draws_from_the_softmax():
    policy, weights = loaded(ONE)
    obs = np.repeat(observed(lanes=1), 4000, axis=0)
    noise = np.random.default_rng(1).gumbel(size=(4000, 3)).astype(np.float32)
    drawn = policy.act({"obs": obs}, noise=noise, memory={}).action["action"]
    logits = by_hand(weights, obs[:1])[0]
    chance = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 4000, chance, atol=0.03)


def test_no_noise_is_greedy():
    policy, weights = loaded(ONE)
    choice = policy.act({"obs": observed()}, noise=None, memory={})
    assert choice.action["action"].tolist() == by_hand(weights, observed()).argmax(1).tolist()
    assert choice.logits == {}


def test_each_block_of_a_multi_discrete_action_is_chosen_by_itself():
    policy, weights = loaded(SEVERAL)
    noise = np.random.default_rng(1).gumbel(size=(LANES, 7)).astype(np.float32)
    scores = by_hand(weights, observed()) + noise
    action = policy.act({"obs": observed()}, noise=noise, memory={}).action["action"]
    assert action.tolist() == [[row[:3].argmax(), row[3:].argmax()] for row in scores]


def test_switches_are_on_where_logit_and_noise_are_positive():
    policy, weights = loaded(LAMPS)
    noise = np.random.default_rng(1).logistic(size=(LANES, 3)).astype(np.float32)
    action = policy.act({"obs": observed()}, noise=noise, memory={}).action["action"]
    assert action.dtype == np.int8
    assert action.tolist() == (by_hand(weights, observed()) + noise > 0).astype(int).tolist()
    greedy = policy.act({"obs": observed()}, noise=None, memory={}).action["action"]
    assert greedy.tolist() == (by_hand(weights, observed()) > 0).astype(int).tolist()


def test_numbers_scatter_around_their_mean():
    spread = np.array([-1.0, 0.5], np.float32)
    policy, weights = loaded(FORCE, change={"policy/action/log_std": spread})
    noise = np.random.default_rng(1).standard_normal((LANES, 2), np.float32)
    mean = by_hand(weights, observed(), "policy/action/mean")
    action = policy.act({"obs": observed()}, noise=noise, memory={}).action["action"]
    np.testing.assert_allclose(action, mean + np.exp(spread) * noise, rtol=1e-5, atol=1e-6)
    greedy = policy.act({"obs": observed()}, noise=None, memory={}).action["action"]
    np.testing.assert_allclose(greedy, mean, rtol=1e-5, atol=1e-6)


def test_what_a_mask_forbids_is_never_chosen():
    policy, _ = loaded(MASKED, observations=(OBS, MASK))
    mask = np.zeros((LANES, 3), bool)
    mask[:, 1] = True
    mask[3:, 2] = True
    for seed in range(20):
        noise = np.random.default_rng(seed).gumbel(size=(LANES, 3)).astype(np.float32)
        action = policy.act({"obs": observed(), "mask": mask}, noise=noise, memory={}).action["action"]
        assert mask[np.arange(LANES), action].all()


def test_epsilon_takes_any_allowed_action_that_often():
    lanes = 6000
    policy, weights = loaded(MASKED, observations=(OBS, MASK), style="q", change={"epsilon": np.float32(0.3)})
    obs = np.repeat(observed(lanes=1), lanes, axis=0)
    mask = np.repeat(np.array([[True, True, False]]), lanes, axis=0)
    rng = np.random.default_rng(1)
    noise = np.concatenate([rng.gumbel(size=(lanes, 3)), rng.random((lanes, 1))], axis=1).astype(np.float32)
    choice = policy.act({"obs": obs, "mask": mask}, noise=noise, memory={})
    best = int(by_hand(weights, obs[:1], "q/out")[0, :2].argmax())
    share = np.bincount(choice.action["action"], minlength=3) / lanes
    assert share[2] == 0
    assert share[best] == pytest.approx(0.85, abs=0.02)
    every = {"action": np.tile(np.arange(3), lanes // 3)}
    scores = policy.log_prob(choice.logits, every)
    expected = {best: math.log(0.85), 1 - best: math.log(0.15), 2: -1e9}
    np.testing.assert_allclose(scores[:3], [expected[i] for i in range(3)], rtol=1e-5)
    greedy = policy.act({"obs": obs, "mask": mask}, noise=None, memory={}).action["action"]
    assert (greedy == best).all()


@pytest.mark.parametrize("action", [ONE, SEVERAL, LAMPS, FORCE], ids=lambda field: field.kind)
def test_log_probabilities_take_any_leading_dimensions(action):
    policy, _ = loaded(action)
    width = {ONE: 3, SEVERAL: 7, LAMPS: 3, FORCE: 2}[action]
    rows = []
    for seed in range(3):
        noise = np.random.default_rng(seed).logistic(size=(LANES, width)).astype(np.float32)
        choice = policy.act({"obs": observed(seed)}, noise=noise, memory={})
        rows.append((choice.logits, choice.action, policy.log_prob(choice.logits, choice.action)))
    logits = {name: np.stack([row[0][name] for row in rows]) for name in rows[0][0]}
    actions = {name: np.stack([row[1][name] for row in rows]) for name in rows[0][1]}
    whole = policy.log_prob(logits, actions)
    assert whole.dtype == np.float32
    np.testing.assert_allclose(whole, np.stack([row[2] for row in rows]), rtol=1e-6)


def test_a_decision_stays_after_the_next_one():
    policy, _ = loaded(FORCE, config=Config(kind="gru", core=5))
    noise = np.zeros((LANES, 2), np.float32)
    first = policy.act({"obs": observed(1)}, noise=noise, memory=policy.memory(LANES))
    kept = [array.copy() for part in first for array in part.values()]
    policy.act({"obs": observed(2)}, noise=noise + 1, memory=first.memory)
    for before, after in zip(kept, [array for part in first for array in part.values()], strict=True):
        np.testing.assert_array_equal(before, after)


def test_memory_begins_at_zero_and_carries_on():
    policy, _ = loaded(ONE, config=Config(kind="lstm", core=5))
    nothing = policy.memory(LANES)
    assert nothing["core"].shape == (LANES, 10)
    assert not nothing["core"].any()
    noise = np.zeros((LANES, 3), np.float32)
    first = policy.act({"obs": observed()}, noise=noise, memory=nothing)
    again = policy.act({"obs": observed()}, noise=noise, memory=first.memory)
    assert not np.allclose(first.logits["policy/action/logits"], again.logits["policy/action/logits"])


def test_the_number_of_lanes_may_change():
    policy, weights = loaded(ONE)
    for lanes in [*range(1, 20), 8]:
        choice = policy.act({"obs": observed(lanes=lanes)}, noise=np.zeros((lanes, 3), np.float32), memory={})
        expected = by_hand(weights, observed(lanes=lanes))
        np.testing.assert_allclose(choice.logits["policy/action/logits"], expected, rtol=1e-4, atol=1e-5)


def test_the_next_decision_uses_what_was_loaded():
    policy, weights = loaded(FORCE, config=Config(normalise=True))
    noise = np.ones((LANES, 2), np.float32)
    before = policy.act({"obs": observed()}, noise=noise, memory={}).logits
    assert (before["policy/action/log_std"] == 0).all()
    other = weights | {"policy/action/log_std": np.full(2, -2, np.float32)}
    other["normalise/obs/var"] = np.full(4, 9, np.float32)
    policy.load(version(policy.spec, policy.network), other)
    after = policy.act({"obs": observed()}, noise=noise, memory={}).logits
    assert (after["policy/action/log_std"] == -2).all()
    expected = by_hand(other, observed() / 3, "policy/action/mean")
    np.testing.assert_allclose(after["policy/action/mean"], expected, rtol=1e-4, atol=1e-5)


def test_loading_needs_only_what_acting_reads():
    policy, weights = loaded(ONE)
    assert not any(name.startswith("value") for name in acting(policy.network))
    policy.load(version(policy.spec, policy.network), {name: weights[name] for name in acting(policy.network)})


def test_a_missing_tensor_is_named_and_nothing_changes():
    policy, weights = loaded(ONE)
    before = policy.act({"obs": observed()}, noise=None, memory={}).action["action"]
    broken = {name: value + 1 for name, value in weights.items() if name != "policy/1/bias"}
    with pytest.raises(CorruptError, match=r"version 3 of 'r': tensor 'policy/1/bias' \[64\] is missing"):
        policy.load(version(policy.spec, policy.network), broken)
    assert (policy.act({"obs": observed()}, noise=None, memory={}).action["action"] == before).all()


def test_a_wrong_shape_is_named():
    policy, weights = loaded(ONE)
    weights["policy/0/kernel"] = np.zeros((5, 64), np.float32)
    with pytest.raises(CorruptError, match=r"'policy/0/kernel': expected float32 \[4, 64\], came float32 \[5, 64\]"):
        policy.load(version(policy.spec, policy.network), weights)


def test_acting_before_loading_says_so():
    spec = Spec((OBS,), (ONE,))
    with pytest.raises(MissingError, match="load a version"):
        policies.make(spec, networks.build(Config(), spec, style="policy")).act(
            {"obs": observed()}, noise=None, memory={}
        )


def test_observations_and_noise_of_other_shapes_are_refused():
    policy, _ = loaded(ONE)
    with pytest.raises(SpecError, match=r"'obs': expected shape \(8, 4\), came \(8, 3\)"):
        policy.act({"obs": np.zeros((8, 3), np.float32)}, noise=None, memory={})
    with pytest.raises(SpecError, match=r"noise: expected shape \(8, 3\), came \(8, 2\)"):
        policy.act({"obs": observed()}, noise=np.zeros((8, 2), np.float32), memory={})
    with pytest.raises(SpecError, match=r"column 'obs' is missing; did you mean ob"):
        policy.act({"ob": observed()}, noise=None, memory={})
    recurrent, _ = loaded(ONE, config=Config(kind="gru", core=5))
    with pytest.raises(SpecError, match=r"memory 'core': expected shape \(8, 5\), came \(1, 5\)"):
        recurrent.act({"obs": observed()}, noise=None, memory=recurrent.memory(1))


def test_an_unknown_operator_is_named():
    spec = Spec((OBS,), (ONE,))
    network = networks.build(Config(), spec, style="policy")
    nodes = tuple(
        Node(node.name, "tahn" if node.op == "tanh" else node.op, node.inputs, node.tensors, node.options)
        for node in network.nodes
    )
    with pytest.raises(ConfigError, match=r"unknown operator 'tahn'; did you mean tanh"):
        NumpyPolicy(spec, Network(nodes, network.tensors, network.heads, network.outputs))
