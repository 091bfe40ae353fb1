"""REINFORCE: a batch in, one step towards what was followed by high returns out."""

from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from msgspec import Struct

from farfield.learning import distributions, networks, optimiser, statistics
from farfield.learning.hyper import fixed, live, recompile
from farfield.learning.onpolicy import ADAM, OnPolicy, Plan, Tree, evaluate, plan
from farfield.learning.returns import Ends, discounted
from farfield.types import Spec

FEED = "fresh"


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The hyper-parameters of REINFORCE; docs/algorithms/reinforce.md explains each."""

    learning_rate: Annotated[float, live("step size of Adam", ge=0)] = 3e-3
    anneal: Annotated[int, live("environment steps in which learning_rate falls to 0; 0: it stays", ge=0)] = 0
    gamma: Annotated[float, live("how much the next reward counts", ge=0, le=1)] = 0.99
    entropy: Annotated[float, live("weight of staying undecided", ge=0)] = 0.0
    max_grad_norm: Annotated[float, live("longest gradient", gt=0)] = 0.5
    normalise: Annotated[
        Literal["episode", "batch", "none"], recompile("over what returns are shifted and scaled to deviation 1")
    ] = "batch"
    baseline: Annotated[bool, fixed("learn what an observation is worth, and subtract it")] = False
    value_coefficient: Annotated[float, live("weight of the baseline's loss", ge=0)] = 0.5
    log_std: Annotated[Literal["free", "state"], fixed("continuous: one deviation, or one from each observation")] = (
        "free"
    )


def make(
    config: Config, *, spec: Spec, network: networks.Config, steps: int, lanes: int, seed: int, devices: int = 1
) -> OnPolicy:
    """Make the algorithm for batches of steps × lanes; it begins to compile at once, in the background."""
    style = "policy" if config.baseline else "policy_only"
    drawn = networks.build(network, spec, style=style, log_std=config.log_std)
    return OnPolicy(config, plan(spec, drawn, steps=steps, lanes=lanes, devices=devices), seed=seed, update=update)


def update(plan: Plan, config: Config, state: Tree, batch: Tree, live: Tree) -> tuple[Tree, Tree]:
    """Use a batch: statistics, then one step of the optimiser."""
    still = {name: state[name] for name, tensor in plan.network.tensors.items() if not tensor.trainable}
    still = statistics.observe(plan.network, still, batch, batch["valid"])
    shapes = plan.shapes

    def slope(params: Tree) -> tuple[Any, Tree]:
        return loss(plan, config, params | still, batch, live)

    gradients, metrics = jax.grad(slope, has_aux=True)(optimiser.split(state["params"], shapes))
    gradient = optimiser.join({name: gradients[name] for name in shapes})
    # A batch in which no episode ends teaches nothing without a baseline.
    rate = jnp.where(metrics["learned"] > 0, live["learning_rate"], 0.0)
    params, adam, norm = optimiser.step(
        {"all": state["params"]}, {"all": gradient}, {name: state[name] for name in ADAM},
        rate=rate, max_norm=live["max_grad_norm"],
    )  # fmt: skip
    return {"params": params["all"]} | adam | still, metrics | {"grad_norm": norm}


def loss(plan: Plan, config: Config, weights: Tree, batch: Tree, live: Tree) -> tuple[jax.Array, Tree]:
    """Give minus the mean of log-probability times return, with the baseline's loss and the entropy."""
    heads = tuple(name for head in plan.network.heads for name in head.inputs)
    node = plan.network.outputs["value"] if config.baseline else None
    outputs = evaluate(plan, weights, batch, (*heads, node) if node else heads)
    ends = Ends(batch["terminated"], batch["truncated"], batch["valid"])
    value = jax.lax.stop_gradient(outputs[node]) if node else None
    returns, complete = discounted(batch["reward"], ends, gamma=live["gamma"], value=value)
    weight = complete.astype(jnp.float32)
    share = weight / jnp.maximum(weight.sum(), 1.0)
    gain = returns if value is None else returns - value[:-1]
    if config.normalise != "none":
        # One group is the batch; otherwise each episode of each slot, as far as it lies in the batch.
        group = episodes(batch) if config.normalise == "episode" else jnp.zeros(weight.shape, jnp.int32)
        gain = standard(gain, weight, group, groups=weight.size if config.normalise == "episode" else 1)
    rows = {name: outputs[name][:-1] for name in heads}
    scored = distributions.log_prob(plan.network, plan.spec, rows, batch)
    policy = -(share * gain * jnp.where(complete, scored, 0.0)).sum()
    undecided = (share * distributions.entropy(plan.network, plan.spec, rows)).sum()
    total = policy - live["entropy"] * undecided
    metrics = {"loss/policy": policy, "entropy": undecided, "gain_mean": (share * returns).sum()}
    metrics["learned"] = weight.sum()
    metrics["left_out"] = batch["valid"].sum() - weight.sum()
    distance = jnp.where(complete, scored - batch["log_prob"], 0.0)
    metrics["kl"] = (share * (jnp.exp(jnp.minimum(distance, 20.0)) - 1 - distance)).sum()
    if node and value is not None:
        missed = 0.5 * (share * (outputs[node][:-1] - returns) ** 2).sum()
        total += live["value_coefficient"] * missed
        left = (share * (returns - value[:-1] - (share * (returns - value[:-1])).sum()) ** 2).sum()
        spread = (share * (returns - metrics["gain_mean"]) ** 2).sum()
        metrics |= {"loss/value": missed, "explained_variance": 1 - left / jnp.maximum(spread, statistics.TINY)}
    return total, metrics


def episodes(batch: Tree) -> jax.Array:
    """Number the episodes of a batch [T, B]; the parts of one episode that lie in a row have one number."""
    T, B = batch["valid"].shape
    ended = batch["terminated"] | batch["truncated"] | ~batch["valid"]
    before = jnp.cumsum(ended, axis=0) - ended  # ends above each row, at most T - 1
    return before.astype(jnp.int32) + T * jnp.arange(B, dtype=jnp.int32)


def standard(values: Any, weight: Any, group: Any, *, groups: int) -> jax.Array:
    """Shift and scale to mean 0 and deviation 1 within each group; a group of one becomes 0."""
    flat, own, names = values.reshape(-1), weight.reshape(-1), group.reshape(-1)

    def mean(of: Any) -> Any:
        total = jax.ops.segment_sum(of * own, names, groups)
        return (total / jnp.maximum(jax.ops.segment_sum(own, names, groups), 1.0))[names]

    centred = flat - mean(flat)
    return (centred / (jnp.sqrt(mean(centred**2)) + statistics.TINY)).reshape(values.shape)
