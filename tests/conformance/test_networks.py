"""Every interpreter against every kind of network: equal within 1e-5, memory and episode starts included."""

import os
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax
import msgspec
import numpy as np
import pytest

from farfield.learning import graph, networks
from farfield.learning.networks import Config
from farfield.serving import interpreter, native
from farfield.types import Array, Columns, Field, Kind, Memory, Network, Spec, Weights

STEPS, LANES = 6, 5
VECTOR = Field("obs", Kind.BOX, "float32", (4,))
TWO = Field("action", Kind.DISCRETE, "int64", (), (2,))


class Case(NamedTuple):
    observations: tuple[Field, ...]
    actions: tuple[Field, ...]
    config: Config
    style: networks.Style = "policy"
    log_std: str = "free"
    dueling: bool = False


def picture(size: int, channels: int = 3) -> Field:
    return Field("obs", Kind.BOX, "uint8", (size, size, channels))


MIXED = (
    Field("obs/camera", Kind.BOX, "uint8", (9, 7, 2)),
    Field("obs/pose/0", Kind.BOX, "float32", (2, 3)),
    Field("obs/gear", Kind.DISCRETE, "int64", (), (5,)),
    Field("obs/town", Kind.DISCRETE, "int64", (), (100,)),
    Field("obs/cards", Kind.MULTI_DISCRETE, "int64", (3,), (4, 2, 7)),
    Field("obs/tiles", Kind.MULTI_DISCRETE, "int64", (2,), (40, 50)),
    Field("obs/lamps", Kind.MULTI_BINARY, "int8", (2, 2)),
    Field("obs/ram", Kind.BOX, "uint8", (8,)),
)
MANY = (
    Field("action/jump", Kind.DISCRETE, "int64", (), (3,), mask="mask/jump"),
    Field("action/hands", Kind.MULTI_DISCRETE, "int64", (2,), (4, 3), mask="mask/hands"),
    Field("action/lamps", Kind.MULTI_BINARY, "int8", (3,)),
    Field("action/steer", Kind.BOX, "float32", (2, 2), low=(-1.0,), high=(1.0,)),
)
MASKS = (
    Field("mask/jump", Kind.MULTI_BINARY, "bool", (3,)),
    Field("mask/hands", Kind.MULTI_BINARY, "bool", (7,)),
)
MASKED = Field("action", Kind.DISCRETE, "int64", (), (6,), mask="mask")
MASK = Field("mask", Kind.MULTI_BINARY, "bool", (6,))
TORQUE = Field("action", Kind.BOX, "float32", (3,))

CASES = {
    "mlp, separate": Case((VECTOR,), (TWO,), Config()),
    "mlp, shared, relu": Case((VECTOR,), (TWO,), Config(shared=True, activation="relu", hidden=(16, 8, 4))),
    "linear": Case((VECTOR,), (TWO,), Config(hidden=())),
    "matrix observations": Case((Field("obs", Kind.BOX, "float32", (3, 4)),), (TWO,), Config()),
    "normalised": Case((VECTOR,), (TWO,), Config(normalise=True)),
    "normalised matrix": Case((Field("obs", Kind.BOX, "float32", (3, 4)),), (TWO,), Config(normalise=True)),
    "one-hot": Case((Field("obs", Kind.DISCRETE, "int64", (), (16,)),), (TWO,), Config()),
    "embedded": Case((Field("obs", Kind.DISCRETE, "int64", (), (500,)),), (TWO,), Config(embed=7)),
    "gaussian, free": Case((VECTOR,), (TORQUE,), Config()),
    "gaussian, by state": Case((VECTOR,), (TORQUE,), Config(), log_std="state"),
    "flat picture": Case((picture(7),), (TWO,), Config()),
    "nature": Case((picture(40),), (TWO,), Config(kind="cnn")),
    "nature, separate": Case((picture(36, 4),), (TWO,), Config(kind="cnn", shared=False, hidden=(8,))),
    "impala": Case((picture(11),), (TWO,), Config(kind="cnn", cnn="impala")),
    "impala, one pixel": Case((picture(1),), (TWO,), Config(kind="cnn", cnn="impala")),
    "lstm": Case((VECTOR,), (TWO,), Config(kind="lstm", core=12)),
    "gru": Case((VECTOR,), (TWO,), Config(kind="gru", core=12)),
    "gru, own last layers": Case((VECTOR,), (TORQUE,), Config(kind="gru", core=12, shared=False)),
    "lstm on pictures": Case((picture(12),), (TWO,), Config(kind="lstm", cnn="impala", core=8)),
    "many inputs and heads": Case((*MIXED, *MASKS), MANY, Config(kind="cnn", cnn="impala", normalise=True)),
    "many, separate": Case((*MIXED, *MASKS), MANY, Config(normalise=True), log_std="state"),
    "many, lstm": Case((*MIXED, *MASKS), MANY, Config(kind="lstm", cnn="flat")),
    "masked": Case((VECTOR, MASK), (MASKED,), Config()),
    "policy only": Case((VECTOR,), (TWO,), Config(), style="policy_only"),
    "q": Case((VECTOR, MASK), (MASKED,), Config(), style="q"),
    "q, dueling": Case((VECTOR, MASK), (MASKED,), Config(), style="q", dueling=True),
    "q, dueling, gru": Case((VECTOR,), (TWO,), Config(kind="gru"), style="q", dueling=True),
}

# Gives the wanted nodes [T, B, …] and the memory after the last row, from columns [T, B, …].
Interpreter = Callable[[Spec, Network, Weights, Columns, Array, Memory], tuple[Columns, Memory]]


def by_jax(
    spec: Spec, network: Network, weights: Weights, columns: Columns, first: Array, memory: Memory
) -> tuple[Columns, Memory]:
    found = compiled(msgspec.json.encode(network))(weights, columns, memory, first)
    after = {name: np.asarray(found[f"memory/{name}"]) for name in network.memory}
    return {name: np.asarray(found[name]) for name in wanted(network)}, after


@cache
def compiled(encoded: bytes) -> Callable[..., dict[str, jax.Array]]:
    """Compile once for each network; its JSON is enough."""
    network = msgspec.json.decode(encoded, type=Network)
    names = [*wanted(network), *(f"memory/{name}" for name in network.memory)]

    def compute(weights: Weights, columns: Columns, memory: Memory, first: Array) -> dict[str, jax.Array]:
        return graph.apply(network, weights, columns, names, memory=memory, first=first)

    return jax.jit(compute)


def by_numpy(
    spec: Spec, network: Network, weights: Weights, columns: Columns, first: Array, memory: Memory
) -> tuple[Columns, Memory]:
    def decide(row: Columns, memory: Memory) -> tuple[Columns, Memory]:
        return interpreter.evaluate(network, weights, row, wanted(network), memory=memory)

    return row_by_row(decide, columns, first, memory)


def by_onnx(
    spec: Spec, network: Network, weights: Weights, columns: Columns, first: Array, memory: Memory
) -> tuple[Columns, Memory]:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from farfield.serving import onnx

    return row_by_row(onnx.load(onnx.export(spec, network, weights)), columns, first, memory)


def row_by_row(
    decide: Callable[[Columns, Memory], tuple[Columns, Memory]], columns: Columns, first: Array, memory: Memory
) -> tuple[Columns, Memory]:
    """Play a sequence as an actor does: the caller zeroes the memory where an episode starts."""
    rows: list[Columns] = []
    for t in range(len(first)):
        memory = {name: np.where(first[t][:, None], np.float32(0), state) for name, state in memory.items()}
        row, memory = decide({name: column[t] for name, column in columns.items()}, memory)
        rows.append(row)
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}, memory


def by_native(
    spec: Spec, network: Network, weights: Weights, columns: Columns, first: Array, memory: Memory
) -> tuple[Columns, Memory]:
    if not native.available() and os.environ.get("CI") != "true":
        pytest.skip("farfield._native was not built here: no C++ compiler, or not installed by pip")

    def decide(row: Columns, memory: Memory) -> tuple[Columns, Memory]:
        return native.evaluate(network, weights, row, wanted(network), memory=memory)

    return row_by_row(decide, columns, first, memory)


INTERPRETERS: dict[str, Interpreter] = {"jax": by_jax, "numpy": by_numpy, "onnx": by_onnx, "native": by_native}


def wanted(network: Network) -> list[str]:
    return [*dict.fromkeys(name for head in network.heads for name in head.inputs), *network.outputs.values()]


def drawn(field: Field, rng: np.random.Generator) -> Array:
    shape = (STEPS, LANES, *field.shape)
    if field.kind is Kind.BOX and field.dtype == "float32":
        return 3 * rng.standard_normal(shape, np.float32)
    most = {Kind.BOX: (256,), Kind.MULTI_BINARY: (2,)}.get(field.kind, field.sizes)
    return rng.integers(0, most[0] if len(most) == 1 else most, shape).astype(field.dtype)


@cache
def prepared(case: str) -> tuple[Spec, Network, Weights, Columns, Array, Memory]:
    observations, actions, config, style, log_std, dueling = CASES[case]
    spec = Spec(observations, actions)
    network = networks.build(config, spec, style=style, log_std=log_std, dueling=dueling)
    rng = np.random.default_rng(7)
    weights = networks.initialise(network, seed=3)
    for name, tensor in weights.items():  # biases, statistics and small heads must matter
        low, high = (0.5, 2) if name.startswith("normalise") else (-0.05, 0.05)
        weights[name] = tensor + rng.uniform(low, high, tensor.shape).astype(np.float32)
    columns = {field.name: drawn(field, rng) for field in spec.observations}
    first = rng.random((STEPS, LANES)) < 0.3
    memory = {node: rng.uniform(-1, 1, (LANES, *shape)).astype(np.float32) for node, shape in network.memory.items()}
    return spec, network, weights, columns, first, memory


@cache
def expected(name: str) -> tuple[Columns, Memory]:
    return by_jax(*prepared(name))


@pytest.mark.parametrize("kind", [kind for kind in INTERPRETERS if kind != "jax"])
@pytest.mark.parametrize("name", CASES)
def test_interpreters_agree(name, kind):
    came, after = INTERPRETERS[kind](*prepared(name))
    nodes, states = expected(name)
    for node, value in nodes.items():
        assert came[node].shape == value.shape, node
        np.testing.assert_allclose(came[node], value, rtol=1e-5, atol=1e-5, err_msg=node)
    assert after.keys() == states.keys()
    for node, value in states.items():
        np.testing.assert_allclose(after[node], value, rtol=1e-5, atol=1e-5, err_msg=node)


@pytest.mark.parametrize("name", CASES)
def test_outputs_depend_on_lanes_and_rows(name):
    nodes, _ = expected(name)
    for node, value in nodes.items():
        assert value.shape[:2] == (STEPS, LANES)
        assert np.isfinite(value).all(), node
        if not node.endswith("log_std") and node != "epsilon":
            assert np.ptp(value, axis=(0, 1)).max() > 1e-4, node


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.config.kind in ("lstm", "gru")])
def test_an_episode_start_forgets_what_was_before(name):
    spec, network, weights, columns, _, memory = prepared(name)
    other = {field: np.concatenate([column[3:], column[3:]]) for field, column in columns.items()}
    nothing = {node: np.zeros_like(state) for node, state in memory.items()}
    never = np.zeros((STEPS, LANES), bool)
    first = never.copy()
    first[3] = True
    for begins, equal in ((first, True), (never, False)):
        one, _ = by_jax(spec, network, weights, columns, begins, memory)
        two, _ = by_jax(spec, network, weights, other, begins, nothing)
        for node in one:
            if node != "epsilon" and not node.endswith("log_std"):
                assert (np.abs(one[node][3:] - two[node][3:]).max() < 1e-6) == equal, node


@pytest.mark.parametrize("name", CASES)
def test_a_network_read_back_equals_the_one_written(name):
    network = prepared(name)[1]
    assert msgspec.json.decode(msgspec.json.encode(network), type=Network) == network


@pytest.mark.parametrize("name", CASES)
def test_exports_are_checked_equal(name):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from farfield.serving import onnx

    spec, network, weights, *_ = prepared(name)
    assert onnx.check(onnx.export(spec, network, weights), spec, network, weights) <= 1e-5
