"""DQN: its loss beside a slow textbook one, tasks that it must learn, and everything that must not change it."""

import os
import subprocess
import sys
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from farfield.errors import ConfigError
from farfield.learning import graph, networks, qvalues
from farfield.learning.algorithms import dqn
from farfield.types import Array, Columns, Field, Kind, Network, Spec

SPEC = Spec(
    (Field("obs", Kind.BOX, "float32", (3,)), Field("mask", Kind.MULTI_BINARY, "bool", (4,))),
    (Field("action", Kind.DISCRETE, "int64", (), (4,), mask="mask"),),
)
PLAIN = Spec((Field("obs", Kind.BOX, "float32", (3,)),), (Field("action", Kind.DISCRETE, "int64", (), (2,)),))
LIVE = {"gamma": np.float32(0.9), "huber": np.float32(0.5), "learning_rate": np.float32(1e-2)}


def batch_of(rng: np.random.Generator, steps: int, lanes: int, *, memory: int = 0) -> Columns:
    """Draw windows with ends of all kinds in them."""
    mask = rng.random((steps + 1, lanes, 4)) < 0.6
    mask[..., 2] |= ~mask.any(-1)
    scores = rng.random((steps, lanes, 4)) * mask[:-1]
    ends = rng.random((steps, lanes))
    valid = rng.random((steps, lanes)) < 0.8
    valid[0] |= not memory
    batch = {
        "obs": rng.normal(size=(steps + 1, lanes, 3)).astype(np.float32),
        "mask": mask,
        "action": scores.argmax(-1),
        "reward": rng.normal(size=(steps, lanes)).astype(np.float32),
        "terminated": (ends < 0.15) & valid,
        "truncated": (ends > 0.85) & valid,
        "valid": valid,
        "first": rng.random((steps, lanes)) < 0.2,
        "weight": rng.random(lanes).astype(np.float32),
        "new_steps": np.array([100]),
    }
    if memory:
        batch["memory/core"] = rng.normal(size=(lanes, memory)).astype(np.float32)
    return batch


def target_of(batch: Columns, value: Array, t: int, lane: int, n: int, gamma: float) -> float:
    """Follow the rewards from a row until they stop: the textbook's n-step target."""
    total, factor = 0.0, 1.0
    for k in range(t, min(t + n, len(batch["reward"]))):
        if not batch["valid"][k, lane]:
            break
        total += factor * float(batch["reward"][k, lane])
        factor *= gamma
        stop = k + 1
        if batch["terminated"][k, lane]:
            return total
        if batch["truncated"][k, lane]:
            break
    return total + factor * float(value[stop, lane])


def huber(error: Array) -> Array:
    return np.where(np.abs(error) <= 0.5, error**2 / 2, 0.5 * (np.abs(error) - 0.25))


def values(network: Network, weights: Columns, batch: Columns, **recurrent: Any) -> Array:
    rows = {name: batch[name] for name in ("obs", "mask") if name in batch}
    node = network.outputs["q"]
    apply = jax.jit(lambda weights, rows, recurrent: graph.apply(network, weights, rows, [node], **recurrent)[node])
    return np.asarray(apply(weights, rows, recurrent))


def loss(weights: Columns, target: Columns, batch: Columns, made: qvalues.Rule, live: Columns = LIVE) -> Any:
    return jax.jit(partial(qvalues.loss, rule=made))(weights, target, {}, batch, live)


def next_values(online: Array, target: Array, double: bool) -> Array:
    found = np.zeros(online.shape[:2])
    for index in np.ndindex(found.shape):
        choice = np.argmax(online[index] if double else target[index])
        found[index] = target[index][choice]
    return found


def rule(network: Network, n: int, double: bool, *, sequences: bool = False, burn_in: int = 0) -> qvalues.Rule:
    return qvalues.Rule(network, SPEC, n, double, sequences=sequences, burn_in=burn_in)


@pytest.mark.parametrize(
    ("double", "dueling", "n", "steps"),
    [(True, False, 1, 1), (False, False, 1, 1), (True, True, 3, 3), (False, True, 2, 5)],
)
def test_the_loss_of_windows_is_the_textbooks(double: bool, dueling: bool, n: int, steps: int) -> None:
    rng = np.random.default_rng(n)
    network = networks.build(networks.Config(hidden=(8,)), SPEC, style="q", dueling=dueling)
    weights, target = (networks.initialise(network, seed=seed) for seed in (1, 2))
    batch = batch_of(rng, steps, 40)
    q = values(network, weights, batch)
    after = next_values(q, values(network, target, batch), double)
    errors = np.array([q[0, b, batch["action"][0, b]] - target_of(batch, after, 0, b, n, 0.9) for b in range(40)])
    cost, (_, found) = loss(weights, target, batch, rule(network, n, double))
    assert np.allclose(found, np.abs(errors), atol=1e-5)
    assert np.isclose(cost, (batch["weight"] * huber(errors)).mean(), atol=1e-5)


@pytest.mark.parametrize(("kind", "burn_in", "double"), [("gru", 0, False), ("gru", 2, True), ("lstm", 2, True)])
def test_the_loss_of_sequences_is_the_textbooks(kind: Any, burn_in: int, double: bool) -> None:
    rng = np.random.default_rng(burn_in)
    steps, lanes, n = 6, 10, 2
    network = networks.build(networks.Config(kind=kind, hidden=(8,), core=5), SPEC, style="q")
    weights, target = (networks.initialise(network, seed=seed) for seed in (1, 2))
    batch = batch_of(rng, steps, lanes, memory=network.memory["core"][0])
    first = np.concatenate([batch["first"], np.zeros((1, lanes), bool)])
    memory = {"core": batch["memory/core"]}
    q = values(network, weights, batch, memory=memory, first=first)
    after = next_values(q, values(network, target, batch, memory=memory, first=first), double)
    costs, sizes = [], np.full((steps, lanes), np.nan)
    for t in range(burn_in, steps):
        for b in range(lanes):
            if batch["valid"][t, b]:
                error = q[t, b, batch["action"][t, b]] - target_of(batch, after, t, b, n, 0.9)
                costs.append(batch["weight"][b] * huber(error))
                sizes[t, b] = abs(error)
    made = rule(network, n, double, sequences=True, burn_in=burn_in)
    cost, (_, found) = loss(weights, target, batch, made)
    assert np.isclose(cost, np.mean(costs), atol=1e-5)
    some = ~np.isnan(sizes).all(0)
    assert np.allclose(
        np.asarray(found)[some], 0.9 * np.nanmax(sizes[:, some], 0) + 0.1 * np.nanmean(sizes[:, some], 0), atol=1e-5
    )


def test_forbidden_actions_have_no_say_in_targets() -> None:
    network = networks.build(networks.Config(hidden=()), SPEC, style="q")
    weights = networks.initialise(network, seed=1)
    weights["q/out/bias"][:] = [1, 2, 3, 100]
    weights["q/out/kernel"][:] = 0
    batch = batch_of(np.random.default_rng(0), 1, 3)
    for name in ("terminated", "truncated"):
        batch[name][:] = False
    batch["reward"][:] = 0
    batch["action"][:] = 0
    batch["mask"][0] = True
    batch["mask"][1] = [[True, True, False, False], [True, True, True, True], [False, False, False, False]]
    _, (figures, errors) = loss(weights, weights, batch, rule(network, 1, True))
    assert np.allclose(errors, [0.9 * 2 - 1, 0.9 * 100 - 1, 1], atol=1e-4)
    assert np.isclose(figures["target"], (1.8 + 90 + 0) / 3, rtol=1e-4)


def test_rows_that_are_not_valid_do_not_matter() -> None:
    batch = batch_of(np.random.default_rng(4), 3, 30)
    network = networks.build(networks.Config(hidden=(8,)), SPEC, style="q")
    weights = networks.initialise(network, seed=1)
    one = loss(weights, weights, batch, rule(network, 3, True))
    spoilt = {name: column.copy() for name, column in batch.items()}
    spoilt["reward"][~batch["valid"]] = np.nan
    spoilt["obs"][1:][np.cumsum(~batch["valid"], 0) > 0] = 1e6
    other = loss(weights, weights, spoilt, rule(network, 3, True))
    assert float(one[0]) == float(other[0])


def made(config: dqn.Config | None = None, spec: Spec = PLAIN, *, seed: int = 1, **network: Any) -> dqn.Dqn:
    config = config or dqn.Config()
    steps, lanes = dqn.window(config)
    shape = networks.Config(**({"hidden": (32,)} | network))
    return dqn.make(config, spec=spec, network=shape, steps=steps, lanes=lanes, seed=seed)


def random_batch(rng: np.random.Generator, algorithm_config: dqn.Config, spec: Spec = PLAIN) -> Columns:
    steps, lanes = dqn.window(algorithm_config)
    batch = batch_of(rng, steps, lanes)
    batch["action"] %= spec.actions[0].sizes[0]
    if spec is PLAIN:
        del batch["mask"]
    new = rng.normal(2, 3, size=(100, 3))
    return batch | {"fresh/obs/sum": new.sum(0), "fresh/obs/square": (new**2).sum(0)}


def greedy(algorithm: dqn.Dqn, obs: Array) -> Array:
    return values(algorithm.network, algorithm.weights(), {"obs": obs})


def one_hot(places: Array, size: int) -> Array:
    return np.eye(size, dtype=np.float32)[places]


def test_it_learns_to_repeat_what_it_sees() -> None:
    config = dqn.Config(gamma=0.0, learning_rate=3e-3, n_step=1)
    algorithm = made(config)
    rng = np.random.default_rng(0)
    _, lanes = dqn.window(config)
    for _ in range(60):
        seen = rng.integers(0, 2, (2, lanes))
        batch = random_batch(rng, config) | {"obs": one_hot(seen, 3), "weight": np.ones(lanes, np.float32)}
        batch["reward"] = (batch["action"] == seen[:1]).astype(np.float32)
        algorithm.learn(batch)
    q = greedy(algorithm, one_hot(np.array([0, 1]), 3))
    assert np.allclose(q, [[1, 0], [0, 1]], atol=0.1)


@pytest.mark.parametrize(("n_step", "dueling", "double"), [(1, False, True), (3, True, False)])
def test_it_learns_the_values_of_a_corridor(n_step: int, dueling: bool, double: bool) -> None:
    """Five places; right of the last one is a door that pays 1. Random walks are cut off after their window."""
    config = dqn.Config(
        gamma=0.9, learning_rate=3e-3, n_step=n_step, dueling=dueling, double=double, target_every=20, tau=1.0
    )
    spec = Spec((Field("obs", Kind.BOX, "float32", (5,)),), PLAIN.actions)
    algorithm = made(config, spec)
    rng = np.random.default_rng(0)
    for _ in range(150):
        algorithm.learn(walk(rng, config))
    q = greedy(algorithm, one_hot(np.arange(5), 5))
    assert (q.argmax(1) == 1).all()
    assert np.allclose(q[:, 1], 0.9 ** np.arange(4, -1, -1), atol=0.1 if n_step == 1 else 0.3)


def walk(rng: np.random.Generator, config: dqn.Config) -> Columns:
    """Walk at random from random places; a third of all windows walks straight to the door."""
    steps, lanes = dqn.window(config)
    batch = random_batch(rng, config)
    place = np.zeros((steps + 1, lanes), np.int64)
    place[0] = rng.integers(0, 5, lanes)
    batch["action"][:, : lanes // 3] = 1
    valid = np.ones(lanes, bool)
    for t in range(steps):
        there = np.maximum(0, place[t] + np.where(batch["action"][t] == 1, 1, -1))
        door = there == 5
        batch["terminated"][t], batch["truncated"][t] = door & valid, False
        batch["reward"][t], batch["valid"][t] = door & valid, valid
        valid = valid & ~door
        place[t + 1] = np.minimum(there, 4)
    return batch | {"obs": one_hot(place, 5), "weight": np.ones(lanes, np.float32)}


def test_a_restored_algorithm_continues_exactly() -> None:
    config = dqn.Config(target_every=3, n_step=2)
    rng = np.random.default_rng(3)
    batches = [random_batch(rng, config) for _ in range(8)]
    one = made(config, normalise=True)
    for batch in batches[:4]:
        one.learn(batch)
    state = one.state()
    other = made(config, seed=99, normalise=True)
    other.restore({name: value.copy() for name, value in state.items()})
    for batch in batches[4:]:
        figures, again = one.learn(batch), other.learn(batch)
        assert {name: float(value) for name, value in figures.items()} == {
            name: float(value) for name, value in again.items()
        }
        assert np.array_equal(one.priorities(), other.priorities())  # type: ignore[arg-type]
    for first, second in ((one.weights(), other.weights()), (one.state(), other.state())):
        assert first.keys() == second.keys()
        assert all(np.array_equal(first[name], second[name]) for name in first)


def test_given_weights_are_copies() -> None:
    algorithm = made()
    weights = algorithm.weights()
    assert weights.keys() == algorithm.network.tensors.keys()
    kept = {name: value.copy() for name, value in weights.items()}
    for value in weights.values():
        value[...] = 7
    assert all(np.array_equal(value, kept[name]) for name, value in algorithm.weights().items())


def test_epsilon_shrinks_with_the_steps_that_were_learned_from() -> None:
    config = dqn.Config(epsilon_start=0.9, epsilon_end=0.1, epsilon_steps=400)
    algorithm = made(config)
    rng = np.random.default_rng(1)
    seen = [float(algorithm.weights()["epsilon"])]
    for _ in range(6):
        figures = algorithm.learn(random_batch(rng, config))
        seen.append(float(algorithm.weights()["epsilon"]))
        assert np.isclose(figures["epsilon"], seen[-1])
    assert np.allclose(seen, [0.9, 0.7, 0.5, 0.3, 0.1, 0.1, 0.1])


@pytest.mark.parametrize("tau", [1.0, 0.25])
def test_the_target_network_moves_when_it_is_due(tau: float) -> None:
    config = dqn.Config(updates=2, minibatch=8, target_every=4, tau=tau)
    algorithm = made(config)
    rng = np.random.default_rng(1)
    before = algorithm.state()
    algorithm.learn(random_batch(rng, config))
    state = algorithm.state()
    name = "q/0/kernel"
    assert np.array_equal(state[f"target/{name}"], before[f"target/{name}"])
    assert not np.array_equal(state[f"weights/{name}"], before[f"weights/{name}"])
    algorithm.learn(random_batch(rng, config))
    state = algorithm.state()
    expected = before[f"target/{name}"] * (1 - tau) + tau * state[f"weights/{name}"]
    assert np.allclose(state[f"target/{name}"], expected, atol=1e-6)


def test_priorities_are_the_errors_of_the_lanes_in_order() -> None:
    config = dqn.Config(updates=4, minibatch=8, learning_rate=1e-9, n_step=1)
    algorithm = made(config)
    assert algorithm.priorities() is None
    batch = random_batch(np.random.default_rng(5), config)
    before = algorithm.weights()
    algorithm.learn(batch)
    live = {"gamma": np.float32(config.gamma), "huber": np.float32(config.huber)}
    made_rule = qvalues.Rule(algorithm.network, PLAIN, 1, True, sequences=False, burn_in=0)
    _, (_, expected) = loss(before, before, batch, made_rule, live)
    assert np.allclose(algorithm.priorities(), expected, atol=1e-5)  # type: ignore[arg-type]


def test_normalisation_knows_every_new_row_once() -> None:
    config = dqn.Config(minibatch=8)
    algorithm = made(config, normalise=True)
    rng = np.random.default_rng(2)
    rows = []
    for _ in range(5):
        new = rng.normal([100, 0, -3], [1, 2, 3], size=(100, 3))
        rows.append(new)
        algorithm.learn(random_batch(rng, config) | {"fresh/obs/sum": new.sum(0), "fresh/obs/square": (new**2).sum(0)})
    weights, seen = algorithm.weights(), np.concatenate(rows)
    assert float(weights["normalise/obs/count"]) == 500
    assert np.allclose(weights["normalise/obs/mean"], seen.mean(0), rtol=1e-5)
    assert np.allclose(weights["normalise/obs/var"], seen.var(0), rtol=1e-4)


def test_tensors_that_are_not_trained_stay_as_they_are() -> None:
    algorithm = made(kind="own_networks:frozen")
    before = algorithm.weights()
    algorithm.learn(random_batch(np.random.default_rng(1), dqn.Config()))
    after = algorithm.weights()
    assert after.keys() == algorithm.network.tensors.keys()
    assert np.array_equal(before["offset"], after["offset"])
    assert not np.array_equal(before["q/out/kernel"], after["q/out/kernel"])


def test_pictures_are_scaled_and_never_normalised() -> None:
    picture = Spec((Field("obs", Kind.BOX, "uint8", (4, 4, 1), high=(255.0,)),), PLAIN.actions)
    network = made(spec=picture, normalise=True).network
    assert [node.op for node in network.nodes if node.op in ("normalise", "scale")] == ["scale"]
    planes = Spec((Field("obs", Kind.BOX, "uint8", (4,), high=(1.0,)),), PLAIN.actions)
    scale = next(node for node in made(spec=planes).network.nodes if node.op == "scale")
    assert scale.options["factor"] == 1.0


def test_tuning_changes_the_next_update_or_nothing() -> None:
    config = dqn.Config(minibatch=8)
    algorithm = made(config)
    rng = np.random.default_rng(2)
    with pytest.raises(ConfigError, match="n_step is fixed"):
        algorithm.tune({"learning_rate": 0.5, "n_step": 2})
    assert algorithm.learn(random_batch(rng, config))["learning_rate"] == 1e-3
    algorithm.tune({"learning_rate": 0.5})
    before = algorithm.weights()["q/0/bias"]
    assert algorithm.learn(random_batch(rng, config))["learning_rate"] == 0.5
    assert np.abs(algorithm.weights()["q/0/bias"] - before).max() > 0.1


def test_recurrent_networks_learn_from_sequences() -> None:
    """The reward of the last row repeats what only the first row showed."""
    config = dqn.Config(gamma=0.0, learning_rate=1e-2, sequence=4, updates=4, minibatch=32)
    spec = Spec((Field("obs", Kind.BOX, "float32", (3,)),), PLAIN.actions)
    algorithm = made(config, spec, kind="gru", core=16)
    rng = np.random.default_rng(0)
    steps, lanes = dqn.window(config)
    shown = rng.integers(0, 2, lanes)
    for _ in range(80):
        shown = rng.integers(0, 2, lanes)
        batch = random_batch(rng, config)
        batch["obs"] = np.broadcast_to(one_hot(np.array(2), 3), (steps + 1, lanes, 3)).copy()
        batch["obs"][0] = one_hot(shown, 3)
        batch |= {name: np.zeros((steps, lanes), bool) for name in ("terminated", "truncated", "first")}
        batch |= {"valid": np.ones((steps, lanes), bool), "weight": np.ones(lanes, np.float32)}
        batch["reward"] = (batch["action"] == shown).astype(np.float32) * np.array([[0], [0], [0], [1]], np.float32)
        batch["memory/core"] = np.zeros((lanes, 16), np.float32)
        figures = algorithm.learn(batch)
    assert figures["loss"] < 0.02


def test_settings_that_do_not_fit_are_refused_with_their_cure() -> None:
    with pytest.raises(ConfigError, match=r"sequence = 0.*such as 32"):
        made(kind="lstm")
    with pytest.raises(ConfigError, match="sequence = 8"):
        made(dqn.Config(sequence=8))
    with pytest.raises(ConfigError, match="leave nothing"):
        made(dqn.Config(sequence=8, burn_in=8), kind="lstm")
    with pytest.raises(ConfigError, match="cannot be shared"):
        dqn.make(dqn.Config(), spec=PLAIN, network=networks.Config(), steps=3, lanes=512, seed=0, devices=3)
    with pytest.raises(ConfigError, match="takes batches of"):
        dqn.make(dqn.Config(), spec=PLAIN, network=networks.Config(), steps=2, lanes=512, seed=0)
    both = Spec(PLAIN.observations, (Field("action", Kind.BOX, "float32", (2,)),))
    with pytest.raises(ConfigError, match="Discrete"):
        made(spec=both)


SHARED = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import test_dqn
from farfield.learning import networks
from farfield.learning.algorithms import dqn
config = dqn.Config(updates=2, minibatch=16, n_step=2)
found = []
for devices in (1, 2, 4):
    rng = np.random.default_rng(0)
    made = dqn.make(config, spec=test_dqn.PLAIN, network=networks.Config(hidden=(16,)), steps=2, lanes=32, seed=1,
                    devices=devices)
    for _ in range(3):
        made.learn(test_dqn.random_batch(rng, config))
    update = made._compiled.ready()
    share = update.input_shardings[0][2]["reward"].shard_shape((2, 2, 16))
    assert share == (2, 2, 16 // devices), share
    assert ("all-reduce" in update.as_text()) == (devices > 1)
    found.append(np.concatenate([value.ravel() for value in made.weights().values()] + [made.priorities()]))
assert all(np.allclose(found[0], other, atol=1e-5) for other in found[1:])
"""


def test_several_devices_learn_the_same() -> None:
    flags = "--xla_force_host_platform_device_count=4 --xla_cpu_multi_thread_eigen=false"
    done = subprocess.run(
        [sys.executable, "-c", SHARED, os.path.dirname(__file__)],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
