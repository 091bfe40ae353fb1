"""PPO: its loss against slow NumPy, tiny tasks that it must learn, exact resume, tuning, devices."""

import os
import sys

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import subprocess
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

import bandits
from farfield.errors import ConfigError, CorruptError
from farfield.learning import graph, hyper, networks
from farfield.learning.algorithms import ppo
from farfield.learning.onpolicy import plan

SMALL = networks.Config(hidden=(16,))


def make(kind="discrete", network=SMALL, steps=bandits.T, lanes=bandits.B, seed=1, **settings):
    config = ppo.Config(**({"minibatch": 64, "epochs": 4} | settings))
    return ppo.make(config, spec=bandits.SPECS[kind], network=network, steps=steps, lanes=lanes, seed=seed)


def batches(count, seed=3):
    """Give batches with ends and gaps in which nothing is to be learned."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        batch = bandits.blank(bandits.SPECS["discrete"])
        shape = batch["reward"].shape
        batch["obs"] = rng.normal(size=batch["obs"].shape).astype(np.float32)
        batch["action"] = rng.integers(0, 3, shape)
        batch["reward"] = rng.normal(size=shape).astype(np.float32)
        batch["log_prob"] = np.log(rng.uniform(0.2, 0.5, shape)).astype(np.float32)
        batch["valid"] = rng.random(shape) < 0.8
        batch["terminated"] = (rng.random(shape) < 0.1) & batch["valid"]
        batch["truncated"] = (rng.random(shape) < 0.1) & batch["valid"] & ~batch["terminated"]
        batch["first"][1:] = batch["terminated"][:-1]
        found.append(batch)
    return found


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def slow_loss(logits, value, rows, *, clip, value_clip, value_coefficient, entropy):
    """The loss as the paper states it, row by row."""
    valid = [i for i in range(len(value)) if rows["weight"][i] > 0]
    advantages = np.array([rows["advantage"][i] for i in valid], float)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    policy = missed = undecided = 0.0
    for i, advantage in zip(valid, advantages, strict=True):
        chances = np.exp(logits[i].astype(float)) / np.exp(logits[i].astype(float)).sum()
        ratio = chances[rows["action"][i]] / np.exp(float(rows["log_prob"][i]))
        policy -= min(ratio * advantage, np.clip(ratio, 1 - clip, 1 + clip) * advantage)
        miss = (value[i] - rows["target"][i]) ** 2
        if value_clip:
            near = rows["value"][i] + np.clip(value[i] - rows["value"][i], -value_clip, value_clip)
            miss = max(miss, (near - rows["target"][i]) ** 2)
        missed += 0.5 * miss
        undecided -= sum(chance * np.log(chance) for chance in chances)
    return (policy + value_coefficient * missed - entropy * undecided) / len(valid)


@pytest.mark.parametrize("value_clip", [0.0, 0.3])
def test_the_loss_is_the_papers(value_clip):
    spec, rng = bandits.SPECS["discrete"], np.random.default_rng(0)
    network = networks.build(SMALL, spec, style="policy")
    weights = {name: value + 0.3 for name, value in networks.initialise(network, seed=0).items()}
    config = ppo.Config(value_clip=value_clip, entropy=0.02, clip=0.1)
    numbers = {name: rng.normal(size=40).astype(np.float32) for name in ("advantage", "target", "value")}
    rows = numbers | {
        "obs": rng.normal(size=(40, 3)).astype(np.float32),
        "action": rng.integers(0, 3, 40),
        "log_prob": np.log(rng.uniform(0.2, 0.6, 40)).astype(np.float32),
        "weight": (rng.random(40) < 0.7).astype(np.float32),
    }
    planned = plan(spec, network, steps=8, lanes=5, devices=1)
    fast, seen = jax.jit(partial(ppo.loss, planned, config))(weights, rows, hyper.live_values(config))
    head, value = network.heads[0].inputs[0], network.outputs["value"]
    outputs = graph.apply(network, weights, rows, (head, value))
    settings = {"clip": 0.1, "value_clip": value_clip, "value_coefficient": 0.5, "entropy": 0.02}
    slow = slow_loss(np.asarray(outputs[head]), np.asarray(outputs[value]), rows, **settings)
    np.testing.assert_allclose(fast, slow, rtol=2e-5)
    assert 0 < float(seen["clip_fraction"]) < 1


@pytest.mark.parametrize(
    ("kind", "network", "updates", "enough"),
    [
        ("discrete", SMALL, 40, 0.85),
        ("multi_discrete", SMALL, 40, 0.85),
        ("multi_binary", SMALL, 40, 0.85),
        ("continuous", SMALL, 60, 0.9),
        ("masked", SMALL, 40, 0.85),
        ("memory", networks.Config(kind="gru", hidden=(16,), core=16), 40, 0.85),
        ("memory", networks.Config(kind="lstm", hidden=(16,), core=16), 60, 0.85),
    ],
)
def test_a_tiny_task_is_learned(kind, network, updates, enough):
    algorithm, rng = make(kind, network, learning_rate=1e-2, gamma=0.9), np.random.default_rng(0)
    before = bandits.worth(bandits.experience(algorithm, kind, rng))
    for _ in range(updates):
        algorithm.learn(bandits.experience(algorithm, kind, rng))
    after = bandits.worth(bandits.experience(algorithm, kind, rng))
    assert before < enough < after, f"{kind}: {before:.2f} -> {after:.2f}"


def test_a_network_that_forgets_cannot_learn_the_memory_task():
    algorithm, rng = make("memory", SMALL, learning_rate=1e-2), np.random.default_rng(0)
    for _ in range(20):
        algorithm.learn(bandits.experience(algorithm, "memory", rng))
    assert bandits.worth(bandits.experience(algorithm, "memory", rng)) < 0.75


@pytest.mark.parametrize("network", [SMALL, networks.Config(kind="gru", hidden=(8,), core=8, normalise=True)])
def test_what_rows_that_are_not_valid_hold_changes_nothing(network):
    clean = batches(2)
    dirty = [dict(batch) for batch in clean]
    rng = np.random.default_rng(9)
    for batch in dirty:
        gap = ~batch["valid"]
        for name in ("reward", "log_prob"):
            batch[name] = np.where(gap, rng.normal(size=gap.shape), batch[name]).astype(np.float32)
        batch["action"] = np.where(gap, 2 - batch["action"], batch["action"])
    one, other = (make(network=network, reward_scaling=True) for _ in range(2))
    for left, right in zip(clean, dirty, strict=True):
        one.learn(left)
        other.learn(right)
    same(one.weights(), other.weights())


def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one():
    settings = {"network": networks.Config(hidden=(16,), normalise=True), "reward_scaling": True, "anneal": 1500}
    data = batches(5)
    whole, part = make(**settings), make(**settings)
    for algorithm in (whole, part):
        for batch in data[:3]:
            algorithm.learn(batch)
        algorithm.tune({"clip": 0.1, "entropy": 0.01})
    saved = part.state()
    kept = {name: value.copy() for name, value in saved.items()}
    resumed = make(**settings, seed=77)
    resumed.restore(saved)
    for algorithm in (whole, resumed):
        for batch in data[3:]:
            rates = algorithm.learn(batch)["learning_rate"]
    assert rates < 1e-3 / 2
    same(whole.weights(), resumed.weights())
    same(whole.state(), resumed.state())
    same(saved, kept)


def test_a_checkpoint_of_another_network_is_refused():
    algorithm = make()
    with pytest.raises(CorruptError, match="params"):
        algorithm.restore(make(network=networks.Config(hidden=(8,))).state())


def test_live_changes_count_from_the_next_update():
    algorithm, (first, second) = make(), batches(2)
    algorithm.learn(first)
    before = algorithm.weights()
    algorithm.tune({"learning_rate": 0.0})
    assert algorithm.learn(second)["learning_rate"] == 0.0
    same(algorithm.weights(), before)


def test_changes_of_shape_apply_once_compiled():
    algorithm, batch = make(), batches(1)[0]
    assert float(algorithm.learn(batch)["minibatches"]) == 16
    algorithm.tune({"epochs": 2, "minibatch": 128})
    assert set(algorithm.pending) == {"epochs", "minibatch"}
    while algorithm.pending:
        metrics = algorithm.learn(batch)
    assert float(metrics["minibatches"]) == 4
    resumed = make()
    resumed.restore(algorithm.state())
    assert float(resumed.learn(batch)["minibatches"]) == 4


@pytest.fixture(scope="module")
def untouched():
    """One for all refusals: each would start a compilation of its own."""
    return make()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"clip": 0.1, "reward_scaling": True}, "fork"),
        ({"clip": 0.1, "gamma": 2.0}, "gamma"),
        ({"clip": 0.1, "gama": 0.9}, "did you mean gamma"),
        ({"clip": 0.1, "minibatch": 100}, "128|64"),
        ({"clip": float("nan")}, "finite"),
    ],
)
def test_a_change_that_cannot_be_made_changes_nothing(untouched, wanted, message):
    with pytest.raises(ConfigError, match=message):
        untouched.tune(wanted)
    assert untouched.config == ppo.Config(minibatch=64, epochs=4)


def test_every_hyper_parameter_says_what_a_change_takes():
    found = hyper.changes(ppo.Config)
    assert {found["clip"], found["epochs"], found["log_std"]} == {"live", "recompile", "fixed"}


def test_the_page_explains_each_hyper_parameter_and_each_metric(untouched):
    page = (Path(__file__).parent.parent / "docs/algorithms/ppo.md").read_text()
    for name, change in hyper.changes(ppo.Config).items():
        default = getattr(ppo.Config(), name)
        row = next((line for line in page.splitlines() if line.startswith(f"| `{name}` |")), "")
        assert f"| {change} |" in row, name
        cell = row.split("|")[2].strip().strip('"')
        assert cell == str(default).lower() or float(cell) == default, name
    for name in untouched.learn(batches(1)[0]):
        assert f"\n### `{name}`\n" in page, name


def test_steps_stop_when_the_policy_is_too_far():
    batch = batches(1)[0]
    assert float(make(target_kl=1e-6).learn(batch)["minibatches"]) == 1
    assert float(make(target_kl=1e6).learn(batch)["minibatches"]) == 16


@pytest.mark.parametrize(
    ("settings", "nearest"),
    [({"minibatch": 100}, "128"), ({"minibatch": 64, "network": networks.Config(kind="gru"), "steps": 24}, "48")],
)
def test_a_minibatch_that_does_not_fit_is_refused_with_the_nearest_that_does(settings, nearest):
    with pytest.raises(ConfigError, match=f"is {nearest}$"):
        make(**settings)


def test_statistics_are_those_of_all_valid_observations():
    algorithm, data = make(network=networks.Config(hidden=(8,), normalise=True)), batches(3)
    for batch in data:
        algorithm.learn(batch)
    seen = np.concatenate([batch["obs"][:-1][batch["valid"]] for batch in data])
    weights = algorithm.weights()
    np.testing.assert_allclose(weights["normalise/obs/mean"], seen.mean(0), atol=1e-5)
    np.testing.assert_allclose(weights["normalise/obs/var"], seen.var(0), rtol=1e-5)
    assert float(weights["normalise/obs/count"]) == len(seen)


DEVICES = """
import numpy as np
from test_ppo import batches, bandits, ppo, networks
data, found = batches(2), {}
for n in (1, 2, 4):
    for kind in ("mlp", "gru"):
        algorithm = ppo.make(ppo.Config(minibatch=64, epochs=2), spec=bandits.SPECS["discrete"], steps=bandits.T,
            lanes=bandits.B, seed=1, devices=n, network=networks.Config(kind=kind, hidden=(16,), core=8))
        for batch in data:
            algorithm.learn(batch)
        found[kind, n] = algorithm.weights()
        update = algorithm._compiled.ready()
        share = update.input_shardings[0][1]["reward"].shard_shape((bandits.T, bandits.B))
        assert share == (bandits.T, bandits.B // n), share
        assert ("all-reduce" in update.as_text()) == (n > 1)
        print(kind, n, "share", share, max(np.abs(found[kind, n][k] - v).max() for k, v in found[kind, 1].items()))
        assert all(np.abs(found[kind, n][k] - v).max() < 1e-5 for k, v in found[kind, 1].items())
"""


def run(script, **environment):
    """Run a script in a process of its own; give all that it printed."""
    here = os.path.dirname(__file__)
    known = os.environ | {"PYTHONPATH": here} | environment
    done = subprocess.run([sys.executable, "-c", script], env=known, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def test_one_two_and_four_devices_learn_the_same():
    said = run(DEVICES, XLA_FLAGS="--xla_force_host_platform_device_count=4 --xla_cpu_multi_thread_eigen=false")
    assert said.count("share") == 6


COMPILATIONS = """
from test_ppo import make, batches
algorithm = make(reward_scaling=True)
for batch in batches(3):
    metrics = algorithm.learn(batch)
    algorithm.weights(), algorithm.state(), {name: float(value) for name, value in metrics.items()}
algorithm.restore(algorithm.state())
algorithm.learn(batch)
"""


def test_a_run_compiles_exactly_once():
    said = run(COMPILATIONS, JAX_LOG_COMPILES="1")
    assert said.count("Finished XLA compilation") == 1, said
