"""Configurations into networks and first weights, and the JAX interpreter against slow and obvious arithmetic."""

import jax
import numpy as np
import pytest

from farfield.errors import ConfigError, SpecError
from farfield.learning import graph, networks
from farfield.learning.networks import Config
from farfield.types import Field, Kind, Network, Node, Spec, Tensor, acting

OBS = Field("obs", Kind.BOX, "float32", (4,))
TWO = Field("action", Kind.DISCRETE, "int64", (), (2,))
FORCE = Field("action", Kind.BOX, "float32", (2,))
PLAIN = Spec((OBS,), (TWO,))


def picture(size):
    return Spec((Field("obs", Kind.BOX, "uint8", (size, size, 3)),), (TWO,))


def one_node(op, inputs, tensors, options):
    """Give a network of input columns a, b and one node called out, and its weights."""
    names = ["a", "b"][: len(inputs)]
    entries = tuple(
        Node(f"input/{name}", "input", (name,), {}, {"shape": x.shape[1:], "dtype": str(x.dtype)})
        for name, x in zip(names, inputs, strict=True)
    )
    out = Node("out", op, tuple(node.name for node in entries), {role: f"out/{role}" for role in tensors}, options)
    weights = {f"out/{role}": tensor for role, tensor in tensors.items()}
    shapes = {name: Tensor(tensor.shape) for name, tensor in weights.items()}
    memory = {"out": (tensors["recurrent"].shape[0] * (2 if op == "lstm" else 1),)} if op in ("gru", "lstm") else {}
    return Network((*entries, out), shapes, memory=memory), weights, dict(zip(names, inputs, strict=True))


def applied(op, inputs, tensors=None, options=None, **more):
    network, weights, columns = one_node(op, inputs, tensors or {}, options or {})
    return np.asarray(graph.apply(network, weights, columns, ["out"], **more)["out"])


def rows(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def test_separate_trunks_have_readable_names():
    network = networks.build(Config(), PLAIN, style="policy")
    assert list(network.tensors) == [
        f"{place}/{role}"
        for place in ("policy/0", "policy/1", "value/0", "value/1", "policy/action/logits", "value/out")
        for role in ("kernel", "bias")
    ]
    assert network.outputs == {"value": "value"}
    assert network.heads[0].inputs == ("policy/action/logits",)


def test_the_critic_is_not_needed_for_acting():
    separate = acting(networks.build(Config(), PLAIN, style="policy"))
    assert {name.split("/")[0] for name in separate} == {"policy"}
    shared = acting(networks.build(Config(shared=True), PLAIN, style="policy"))
    assert {name.split("/")[0] for name in shared} == {"trunk", "policy"}


def test_a_core_is_one_for_policy_and_value():
    network = networks.build(Config(kind="lstm", core=7), PLAIN, style="policy")
    assert network.memory == {"core": (14,)}
    assert network.tensors["core/input"].shape == (64, 28)


def test_policy_only_has_no_value():
    network = networks.build(Config(), PLAIN, style="policy_only")
    assert network.outputs == {}
    assert not any(name.startswith("value") for name in network.tensors)


def test_statistics_and_epsilon_are_not_trainable():
    network = networks.build(Config(normalise=True), PLAIN, style="q")
    fixed = {name for name, tensor in network.tensors.items() if not tensor.trainable}
    assert fixed == {"normalise/obs/mean", "normalise/obs/var", "normalise/obs/count", "epsilon"}
    weights = networks.initialise(network, seed=1)
    assert weights["normalise/obs/var"].tolist() == [1, 1, 1, 1]
    assert weights["epsilon"] == 1


def test_first_weights_are_orthogonal_with_their_gains():
    network = networks.build(Config(), PLAIN, style="policy")
    weights = networks.initialise(network, seed=1)
    for name, gain in (("policy/1", 2**0.5), ("value/0", 2**0.5), ("policy/action/logits", 0.01), ("value/out", 1)):
        kernel = weights[f"{name}/kernel"]
        assert kernel.dtype == np.float32
        small = kernel.T @ kernel if kernel.shape[0] >= kernel.shape[1] else kernel @ kernel.T
        np.testing.assert_allclose(small, gain**2 * np.eye(len(small)), atol=1e-5)
        assert not weights[f"{name}/bias"].any()


def test_first_weights_depend_on_the_seed_alone():
    network = networks.build(Config(kind="gru"), PLAIN, style="policy")
    one, same, other = (networks.initialise(network, seed=seed) for seed in (1, 1, 2))
    assert one.keys() == network.tensors.keys()
    assert all((one[name] == same[name]).all() for name in one)
    assert any((one[name] != other[name]).any() for name in one)


def test_a_mask_of_wrong_size_is_refused():
    action = Field("action", Kind.DISCRETE, "int64", (), (3,), mask="mask")
    spec = Spec((OBS, Field("mask", Kind.MULTI_BINARY, "bool", (2,))), (action,))
    with pytest.raises(ConfigError, match=r"mask 'mask' has 2 values, but .* chooses among 3"):
        networks.build(Config(), spec, style="policy")


@pytest.mark.parametrize(
    ("config", "spec", "style", "message"),
    [
        (Config(kind="cnn"), picture(20), "policy", '20 x 20 .* needs 36 x 36; use cnn = "impala"'),
        (Config(kind="cnn"), PLAIN, "policy", 'needs pictures .* obs float32.*use kind = "mlp"'),
        (Config(kind="lstn"), PLAIN, "policy", "kind = 'lstn' is unknown; did you mean lstm"),
        (Config(hidden=(64, 0)), PLAIN, "policy", "widths must be at least 1"),
        (Config(), Spec((OBS,), (FORCE,)), "q", r"exactly one Discrete action, but there is action \(box\); use ppo"),
        (Config(), PLAIN, "polizy", "unknown style 'polizy' of a network; did you mean policy"),
        (Config(), Spec((), (TWO,)), "policy", "at least one observation"),
    ],
)
def test_what_cannot_be_built_says_why(config, spec, style, message):
    with pytest.raises(ConfigError, match=message):
        networks.build(config, spec, style=style)


def test_a_dense_layer_is_a_sum_of_products():
    x, kernel, bias = rows(3, 4), rows(4, 2, seed=1), rows(2, seed=2)
    slow = [[sum(x[n, i] * kernel[i, o] for i in range(4)) + bias[o] for o in range(2)] for n in range(3)]
    np.testing.assert_allclose(applied("dense", [x], {"kernel": kernel, "bias": bias}), slow, rtol=1e-5)


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (2, 1)])
def test_a_convolution_slides_a_kernel(stride, padding):
    x, kernel, bias = rows(2, 7, 6, 3), rows(3, 3, 3, 4, seed=1), rows(4, seed=2)
    edge = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    high, wide = ((side + 2 * padding - 3) // stride + 1 for side in (7, 6))
    slow = np.zeros((2, high, wide, 4))
    for n, i, j, o in np.ndindex(*slow.shape):
        window = edge[n, i * stride : i * stride + 3, j * stride : j * stride + 3]
        slow[n, i, j, o] = (window * kernel[..., o]).sum() + bias[o]
    came = applied("conv2d", [x], {"kernel": kernel, "bias": bias}, {"stride": stride, "padding": padding})
    np.testing.assert_allclose(came, slow, rtol=1e-4, atol=1e-5)


def test_pooling_takes_the_largest():
    x = rows(2, 5, 6, 3)
    edge = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    came = applied("max_pool", [x], {}, {"size": 3, "stride": 2, "padding": 1})
    assert came.shape == (2, 3, 3, 3)
    for n, i, j, c in np.ndindex(*came.shape):
        assert came[n, i, j, c] == edge[n, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3, c].max()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_a_gru_follows_its_formula():
    x, w, u, b = rows(5, 2, 3), rows(3, 12, seed=1), rows(4, 12, seed=2), rows(12, seed=3)
    h, slow = rows(2, 4, seed=4), []
    begin = {"out": h}
    for t in range(5):
        a, r = x[t] @ w + b, h @ u
        reset, update = sigmoid(a[:, :4] + r[:, :4]), sigmoid(a[:, 4:8] + r[:, 4:8])
        candidate = np.tanh(a[:, 8:] + reset * r[:, 8:])
        h = (1 - update) * candidate + update * h
        slow.append(h)
    network, weights, _ = one_node("gru", [x[0]], {"input": w, "recurrent": u, "bias": b}, {})
    came = graph.apply(network, weights, {"a": x}, ["out", "memory/out"], memory=begin)
    np.testing.assert_allclose(came["out"], slow, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(came["memory/out"], h, rtol=1e-4, atol=1e-5)


def test_an_lstm_follows_its_formula():
    x, w, u, b = rows(5, 2, 3), rows(3, 16, seed=1), rows(4, 16, seed=2), rows(16, seed=3)
    state, slow = rows(2, 8, seed=4), []
    begin = {"out": state}
    h, c = state[:, :4], state[:, 4:]
    for t in range(5):
        a = x[t] @ w + b + h @ u
        c = sigmoid(a[:, 4:8]) * c + sigmoid(a[:, :4]) * np.tanh(a[:, 8:12])
        h = sigmoid(a[:, 12:]) * np.tanh(c)
        slow.append(h)
    network, weights, _ = one_node("lstm", [x[0]], {"input": w, "recurrent": u, "bias": b}, {})
    came = graph.apply(network, weights, {"a": x}, ["out", "memory/out"], memory=begin)
    np.testing.assert_allclose(came["out"], slow, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(came["memory/out"], np.concatenate([h, c], 1), rtol=1e-4, atol=1e-5)


def test_small_operators_do_what_they_say():
    x, y = rows(3, 4), rows(3, 4, seed=1)
    np.testing.assert_allclose(applied("centre", [x]), x - x.mean(1, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(applied("add", [x, y[:, :1].copy()]), x + y[:, :1], atol=1e-6)
    np.testing.assert_array_equal(applied("concat", [x, y]), np.concatenate([x, y], 1))
    np.testing.assert_array_equal(applied("relu", [x]), np.where(x > 0, x, 0))
    masked = applied("mask", [x, (y > 0).astype(np.float32)], {}, {"value": -1e9})
    np.testing.assert_array_equal(masked, np.where(y > 0, x, np.float32(-1e9)))
    statistics = {"mean": rows(4, seed=2), "var": np.float32([1, 4, 1e-6, 9]), "count": np.float32(5)}
    slow = np.clip((x - statistics["mean"]) / np.sqrt(statistics["var"] + 1e-8), -10, 10)
    came = applied("normalise", [x], statistics, {"epsilon": 1e-8, "clip": 10.0})
    np.testing.assert_allclose(came, slow, rtol=1e-5)
    assert np.abs(came).max() == 10
    values = np.array([[0, 2], [1, 0]], np.int32)
    one_hot = applied("one_hot", [values], {}, {"sizes": (2, 3)})
    assert one_hot.tolist() == [[1, 0, 0, 0, 1], [0, 1, 1, 0, 0]]
    table = rows(5, 3)
    embedded = applied("embed", [values], {"table": table}, {"sizes": (2, 3)})
    np.testing.assert_array_equal(embedded, [[*table[0], *table[4]], [*table[1], *table[2]]])


def test_the_interpreter_differentiates_under_jit():
    network = networks.build(Config(kind="gru", core=6, normalise=True), PLAIN, style="policy")
    weights = networks.initialise(network, seed=1)
    obs, first = rows(5, 3, 4), np.zeros((5, 3), bool)

    @jax.jit
    def loss(weights):
        return (graph.apply(network, weights, {"obs": obs}, ["value"], first=first)["value"] ** 2).sum()

    change = jax.jit(jax.grad(loss))(weights)
    for name in ("core/recurrent", "trunk/0/kernel", "value/out/bias"):
        assert np.abs(change[name]).max() > 0, name
    place, step = (2, 3), 1e-2
    up, down = ({**weights, "core/recurrent": weights["core/recurrent"].copy()} for _ in range(2))
    up["core/recurrent"][place] += step
    down["core/recurrent"][place] -= step
    slope = (loss(up) - loss(down)) / (2 * step)
    assert float(change["core/recurrent"][place]) == pytest.approx(float(slope), rel=0.02, abs=1e-4)


def test_unknown_names_are_answered_with_the_nearest():
    network = networks.build(Config(), PLAIN, style="policy")
    weights = networks.initialise(network, seed=1)
    with pytest.raises(ConfigError, match="no node 'valeu'; did you mean value"):
        graph.apply(network, weights, {"obs": rows(2, 4)}, ["valeu"])
    with pytest.raises(SpecError, match="none of the network's columns"):
        graph.apply(network, weights, {"obz": rows(2, 4)}, ["value"])
    with pytest.raises(ConfigError, match="unknown operator 'denze'; did you mean dense"):
        applied("denze", [rows(2, 4)])
