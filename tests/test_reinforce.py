"""REINFORCE: its loss against slow NumPy, tiny tasks that it must learn, exact resume, what is left out."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

import bandits
from farfield.errors import ConfigError
from farfield.learning import graph, hyper, networks
from farfield.learning.algorithms import reinforce
from farfield.learning.onpolicy import plan

SMALL = networks.Config(hidden=(16,))


def make(kind="discrete", network=SMALL, **settings):
    config = reinforce.Config(**({"learning_rate": 2e-2} | settings))
    return reinforce.make(config, spec=bandits.SPECS[kind], network=network, steps=bandits.T, lanes=bandits.B, seed=1)


def walk(seed=3, steps=bandits.T, lanes=bandits.B):
    """Give a batch with episodes of any length, the last of each slot unfinished in most slots."""
    rng, batch = np.random.default_rng(seed), bandits.blank(bandits.SPECS["discrete"], steps, lanes)
    shape = batch["reward"].shape
    batch["obs"] = rng.normal(size=batch["obs"].shape).astype(np.float32)
    batch["action"], batch["reward"] = rng.integers(0, 3, shape), rng.normal(size=shape).astype(np.float32)
    batch["valid"] = rng.random(shape) < 0.9
    batch["terminated"] = (rng.random(shape) < 0.15) & batch["valid"]
    batch["truncated"] = (rng.random(shape) < 0.1) & batch["valid"] & ~batch["terminated"]
    return batch


def slow_gains(batch, gamma, normalise):
    """Follow each row to the end of its episode; give its return (nan: it has none) and which episode it is in."""
    steps, lanes = batch["reward"].shape
    found, names = np.full((steps, lanes), np.nan), np.zeros((steps, lanes), int)
    count = 0
    for b in range(lanes):
        count += 1
        for t in range(steps):
            names[t, b] = count
            total, weight, i = 0.0, 1.0, t
            while i < steps and batch["valid"][i, b]:
                total += weight * batch["reward"][i, b]
                weight *= gamma
                if batch["terminated"][i, b] or batch["truncated"][i, b]:
                    found[t, b] = total
                    break
                i += 1
            if batch["terminated"][t, b] or batch["truncated"][t, b] or not batch["valid"][t, b]:
                count += 1
    if normalise == "none":
        return found
    groups = names if normalise == "episode" else np.zeros_like(names)
    for name in np.unique(groups):
        part = (groups == name) & ~np.isnan(found)
        if part.any():
            found[part] = (found[part] - found[part].mean()) / (found[part].std() + 1e-8)
    return found


@pytest.mark.parametrize("normalise", ["episode", "batch", "none"])
def test_the_loss_is_log_probability_times_return(normalise):
    spec = bandits.SPECS["discrete"]
    network = networks.build(SMALL, spec, style="policy_only")
    weights = {name: value + 0.3 for name, value in networks.initialise(network, seed=0).items()}
    config = reinforce.Config(normalise=normalise, gamma=0.9)
    batch = walk(steps=11, lanes=4)
    planned = plan(spec, network, steps=11, lanes=4, devices=1)
    fast, metrics = jax.jit(partial(reinforce.loss, planned, config))(weights, batch, hyper.live_values(config))
    head = network.heads[0].inputs[0]
    logits = np.asarray(graph.apply(network, weights, batch, (head,))[head], float)[:-1]
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    gains = slow_gains(batch, 0.9, normalise)
    complete = np.argwhere(~np.isnan(gains))
    slow = -sum(gains[t, b] * logs[t, b, batch["action"][t, b]] for t, b in complete) / len(complete)
    np.testing.assert_allclose(fast, slow, rtol=1e-4, atol=1e-6)
    assert float(metrics["learned"]) == len(complete)
    assert float(metrics["left_out"]) == batch["valid"].sum() - len(complete) > 0


@pytest.mark.parametrize(
    ("kind", "network", "settings"),
    [
        ("discrete", SMALL, {}),
        ("continuous", SMALL, {"baseline": True}),
        ("masked", SMALL, {"baseline": True, "normalise": "none"}),
        ("memory", networks.Config(kind="gru", hidden=(16,), core=16), {"gamma": 1.0}),
    ],
)
def test_a_tiny_task_is_learned(kind, network, settings):
    algorithm, rng = make(kind, network, **settings), np.random.default_rng(0)
    before = bandits.worth(bandits.experience(algorithm, kind, rng))
    for _ in range(250):
        algorithm.learn(bandits.experience(algorithm, kind, rng))
    after = bandits.worth(bandits.experience(algorithm, kind, rng))
    assert before < 0.85 < after, f"{kind}: {before:.2f} -> {after:.2f}"


def test_unfinished_episodes_are_left_out_and_with_a_baseline_continued_by_it():
    batch = walk()
    batch["terminated"][:] = batch["truncated"][:] = False
    alone, helped = make(), make(baseline=True)
    before = alone.weights()
    metrics = alone.learn(batch)
    assert float(metrics["learned"]) == 0
    assert float(metrics["left_out"]) == batch["valid"].sum()
    for name, value in alone.weights().items():
        np.testing.assert_array_equal(value, before[name])
    metrics = helped.learn(batch)
    assert float(metrics["learned"]) == batch["valid"].sum()
    assert float(metrics["left_out"]) == 0


def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one():
    settings = {"network": networks.Config(hidden=(16,), normalise=True), "baseline": True, "anneal": 4000}
    data = [walk(seed) for seed in range(4)]
    whole, resumed = make(**settings), make(**settings)
    for batch in data[:2]:
        whole.learn(batch)
    whole.tune({"entropy": 0.02})
    resumed.restore(whole.state())
    for algorithm in (whole, resumed):
        for batch in data[2:]:
            algorithm.learn(batch)
    for name, value in whole.state().items():
        np.testing.assert_array_equal(value, resumed.state()[name], err_msg=name)


def test_the_page_explains_each_hyper_parameter_and_each_metric():
    page = (Path(__file__).parent.parent / "docs/algorithms/reinforce.md").read_text()
    for name, change in hyper.changes(reinforce.Config).items():
        row = next((line for line in page.splitlines() if line.startswith(f"| `{name}` |")), "")
        assert f"| {change} |" in row, name
    for name in make(baseline=True).learn(walk()):
        assert f"\n### `{name}`\n" in page, name


def test_a_baseline_cannot_be_added_to_a_run():
    with pytest.raises(ConfigError, match="fork"):
        make().tune({"baseline": True})
