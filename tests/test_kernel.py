"""The network that all slots share: it knows no slot from another, and every interpreter computes the same."""

import numpy as np
import pytest

from farfield.errors import ConfigError
from farfield.learning import graph, networks
from farfield.learning.networks import Config
from farfield.serving import interpreter, native
from farfield.types import Array, Columns, Field, Kind, Network, Spec, Weights

SLOTS = 128
JOBS = Field("obs/jobs", Kind.BOX, "float32", (SLOTS, 8), (), (0.0,), (1.0,))
MASK = Field("mask", Kind.MULTI_BINARY, "bool", (SLOTS,))
CHOICE = Field("action", Kind.DISCRETE, "int64", (), (SLOTS,), mask="mask")
SPEC = Spec((JOBS, MASK), (CHOICE,))
KIND = Config(kind="farfield.learning.kernel:build")


def drawn(network: Network) -> tuple[Weights, Columns]:
    rng = np.random.default_rng(2)
    weights = networks.initialise(network, seed=1)
    weights = {name: tensor + rng.normal(0, 0.05, tensor.shape).astype(np.float32) for name, tensor in weights.items()}
    columns: Columns = {"obs/jobs": rng.random((4, SLOTS, 8), np.float32), "mask": rng.random((4, SLOTS)) < 0.6}
    return weights, columns


def logits(network: Network, weights: Weights, columns: Columns) -> Array:
    name = network.heads[0].inputs[0]
    return interpreter.evaluate(network, weights, columns, [name])[0][name]


def test_who_swaps_slots_swaps_their_logits() -> None:
    network = networks.build(KIND, SPEC, style="policy")
    weights, columns = drawn(network)
    order = np.random.default_rng(5).permutation(SLOTS)
    swapped = {name: column[:, order] for name, column in columns.items()}
    np.testing.assert_allclose(
        logits(network, weights, swapped), logits(network, weights, columns)[:, order], atol=1e-6
    )


def test_the_policy_is_as_small_as_its_layers_say() -> None:
    network = networks.build(KIND, SPEC, style="policy")
    shapes = [network.tensors[f"policy/{name}/kernel"].shape for name in (0, 1, 2, "out")]
    assert shapes == [(1, 1, 8, 32), (1, 1, 32, 16), (1, 1, 16, 8), (1, 1, 8, 1)]
    acting = {name for node in interpreter.needed(network, network.heads[0].inputs) for name in node.tensors.values()}
    assert sum(int(np.prod(network.tensors[name].shape)) for name in acting) == 961


def test_interpreters_agree_on_it() -> None:
    pytest.importorskip("onnxruntime")
    from farfield.serving import onnx

    network = networks.build(KIND, SPEC, style="policy")
    weights, columns = drawn(network)
    wanted = [network.heads[0].inputs[0], network.outputs["value"]]
    expected = graph.apply(network, weights, columns, wanted)
    found = [interpreter.evaluate(network, weights, columns, wanted)[0]]
    found.append(onnx.load(onnx.export(SPEC, network, weights))(columns, {})[0])
    if native.available():
        found.append(native.evaluate(network, weights, columns, wanted, memory={})[0])
    for came in found:
        for name in wanted:
            np.testing.assert_allclose(came[name], np.asarray(expected[name]), rtol=1e-5, atol=1e-5)
    assert onnx.check(onnx.export(SPEC, network, weights), SPEC, network, weights) <= 1e-5


def test_a_spec_without_slots_is_refused() -> None:
    spec = Spec((Field("obs", Kind.BOX, "float32", (4,)),), (Field("action", Kind.DISCRETE, "int64", (), (2,)),))
    with pytest.raises(ConfigError, match=r"obs \[4\]"):
        networks.build(KIND, spec, style="policy")


def test_a_choice_without_a_mask_will_do() -> None:
    spec = Spec((JOBS,), (Field("action", Kind.DISCRETE, "int64", (), (SLOTS,)),))
    assert networks.build(KIND, spec, style="policy").heads[0].inputs == ("policy/logits",)
