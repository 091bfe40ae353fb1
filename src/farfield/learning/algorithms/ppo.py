"""Proximal policy optimisation: a batch in, many small steps that stay near the policy that acted out."""

from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from msgspec import Struct

from farfield.errors import ConfigError
from farfield.learning import distributions, graph, networks, optimiser, statistics
from farfield.learning.hyper import fixed, live, recompile
from farfield.learning.onpolicy import ADAM, OnPolicy, Plan, Tree, begins, evaluate, plan
from farfield.learning.returns import Ends, vtrace
from farfield.types import Columns, Spec

FEED = "fresh"
FARTHEST = 20.0  # log-ratios are held within this: e^20 times as likely is no longer a number to learn from
AVERAGED = ("loss/policy", "loss/value", "entropy", "kl", "clip_fraction", "grad_norm")


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The hyper-parameters of PPO; docs/algorithms/ppo.md explains each."""

    epochs: Annotated[int, recompile("passes over a batch", ge=1)] = 10
    minibatch: Annotated[int, recompile("rows of one step of the optimiser; divides the batch", ge=1)] = 256
    learning_rate: Annotated[float, live("step size of Adam", ge=0)] = 1e-3
    anneal: Annotated[int, live("environment steps in which learning_rate falls to 0; 0: it stays", ge=0)] = 0
    gamma: Annotated[float, live("how much the next step's value counts", ge=0, le=1)] = 0.99
    lam: Annotated[float, live("how far advantages trust rewards (1) or values (0)", ge=0, le=1)] = 0.95
    clip: Annotated[float, live("how far a probability may move, relatively, before it stops counting", ge=0)] = 0.2
    value_clip: Annotated[float, live("how far a value may move before it stops counting; 0: any way", ge=0)] = 0.0
    value_coefficient: Annotated[float, live("weight of the value's loss", ge=0)] = 0.5
    entropy: Annotated[float, live("weight of staying undecided", ge=0)] = 0.0
    max_grad_norm: Annotated[float, live("longest gradient", gt=0)] = 0.5
    target_kl: Annotated[float, live("stop a batch's steps beyond this distance of policies; 0: never", ge=0)] = 0.0
    normalise_advantage: Annotated[bool, recompile("shift and scale advantages to mean 0, deviation 1")] = True
    reward_scaling: Annotated[bool, fixed("divide rewards by the running deviation of discounted returns")] = False
    correction: Annotated[Literal["vtrace", "none"], recompile("how steps of older policies are corrected")] = "vtrace"
    rho_clip: Annotated[float, live("V-trace: largest weight of a step's surprise", gt=0)] = 1.0
    trace_clip: Annotated[float, live("V-trace: largest factor by which a trace goes on", gt=0)] = 1.0
    log_std: Annotated[Literal["free", "state"], fixed("continuous: one deviation, or one from each observation")] = (
        "free"
    )


def make(
    config: Config, *, spec: Spec, network: networks.Config, steps: int, lanes: int, seed: int, devices: int = 1
) -> OnPolicy:
    """Make the algorithm for batches of steps × lanes; it begins to compile at once, in the background."""
    drawn = networks.build(network, spec, style="policy", log_std=config.log_std)
    planned = plan(spec, drawn, steps=steps, lanes=lanes, devices=devices)
    check(config, planned)
    extra = {f"scale/{name}": value for name, value in statistics.begin_scale(lanes).items()}
    return OnPolicy(
        config,
        planned,
        seed=seed,
        update=update,
        extra=extra if config.reward_scaling else {},
        draw=orders,
        check=lambda changed: check(changed, planned),
    )


def check(config: Config, plan: Plan) -> None:
    """Refuse minibatches that do not divide the batch; say which one would."""
    unit = plan.steps if plan.memory else 1  # networks that remember learn from whole slots
    count = plan.lanes if plan.memory else plan.steps * plan.lanes
    parts = 1 if plan.mesh is None else plan.mesh.size
    fitting = [unit * n for n in range(parts, count + 1, parts) if count % n == 0]
    if config.minibatch not in fitting:
        best = min(fitting, key=lambda size: abs(size - config.minibatch))
        raise ConfigError(
            f"algorithm.minibatch = {config.minibatch} does not divide {plan.steps} steps × {plan.lanes} lanes"
            f"{' into whole slots' if plan.memory else ''}{f' for {parts} devices' if parts > 1 else ''}; "
            f"the nearest that does is {best}"
        )


def orders(plan: Plan, config: Config, rng: np.random.Generator) -> Columns:
    """Draw which rows (or slots) each minibatch takes: every epoch has each once."""
    # In NumPy: a permutation in XLA is two sorts, which took a sixth of the update.
    size = config.minibatch // plan.steps if plan.memory else config.minibatch
    count = plan.lanes if plan.memory else plan.steps * plan.lanes
    drawn = [rng.permutation(count) for _ in range(config.epochs)]
    return {"order": np.concatenate(drawn).astype(np.int32).reshape(-1, size)}


def update(plan: Plan, config: Config, state: Tree, batch: Tree, live: Tree) -> tuple[Tree, Tree]:
    """Use a batch: statistics, advantages, then all minibatches of all epochs."""
    still = {name: state[name] for name, tensor in plan.network.tensors.items() if not tensor.trainable}
    still = statistics.observe(plan.network, still, batch, batch["valid"])
    scale = {name.removeprefix("scale/"): value for name, value in state.items() if name.startswith("scale/")}
    if config.reward_scaling:
        scale, reward = statistics.scale(scale, batch, live["gamma"])
        batch = batch | {"reward": reward}
    samples, metrics = prepare(plan, config, optimiser.split(state["params"], plan.shapes) | still, batch, live)
    params, adam, averages = improve(plan, config, state, still, samples, batch["order"], live)
    scaled = {f"scale/{name}": value for name, value in scale.items()}
    return {"params": params} | adam | still | scaled, metrics | averages


def prepare(plan: Plan, config: Config, weights: Tree, batch: Tree, live: Tree) -> tuple[Tree, Tree]:
    """Give what minibatches are cut from, rows [T * B, …] or, for networks that remember, [T, B, …]."""
    value_node = plan.network.outputs["value"]
    heads = _heads(plan) if config.correction == "vtrace" else ()
    outputs = evaluate(plan, weights, batch, (value_node, *heads))
    value, valid = outputs[value_node], batch["valid"]
    ratio = jnp.ones_like(batch["reward"])
    if heads:
        now = distributions.log_prob(plan.network, plan.spec, {name: outputs[name][:-1] for name in heads}, batch)
        ratio = jnp.exp(_distance(now, batch["log_prob"], valid))
    ends = Ends(batch["terminated"], batch["truncated"], valid)
    advantage, target = vtrace(
        batch["reward"], value, ratio, ends,
        gamma=live["gamma"], lam=live["lam"], rho_clip=live["rho_clip"], trace_clip=live["trace_clip"],
    )  # fmt: skip
    samples = {field.name: batch[field.name][:-1] for field in plan.spec.observations}
    samples |= {field.name: batch[field.name] for field in plan.spec.actions}
    weight = valid.astype(jnp.float32)
    samples |= {"log_prob": batch["log_prob"], "advantage": advantage, "target": target}
    samples |= {"value": value[:-1], "weight": weight}
    if plan.memory:
        samples["first"] = begins(batch)
        samples |= {f"memory/{name}": batch[f"memory/{name}"] for name in plan.memory}
    else:
        samples = {name: rows.reshape(-1, *rows.shape[2:]) for name, rows in samples.items()}
    share = weight / jnp.maximum(weight.sum(), 1.0)
    spread = (share * (target - (share * target).sum()) ** 2).sum()
    missed = target - value[:-1]
    unexplained = (share * (missed - (share * missed).sum()) ** 2).sum()
    return samples, {
        "explained_variance": 1.0 - unexplained / jnp.maximum(spread, statistics.TINY),
        "value_mean": (share * value[:-1]).sum(),
        "vtrace_rho": (share * jnp.minimum(live["rho_clip"], ratio)).sum(),
    }


def improve(
    plan: Plan, config: Config, state: Tree, still: Tree, samples: Tree, order: Any, live: Tree
) -> tuple[Any, Tree, Tree]:
    """Go one step of the optimiser per minibatch, until all are used or the policy is too far."""
    slope = jax.grad(lambda params, rows: loss(plan, config, params | still, rows, live), has_aux=True)

    def more(carry: Tree) -> Any:
        return (carry["done"] < len(order)) & ~carry["stop"]

    def step(carry: Tree) -> Tree:
        rows = take(plan, samples, order[carry["done"]])
        gradients, seen = slope(optimiser.split(carry["params"], plan.shapes), rows)
        gradient = optimiser.join({name: gradients[name] for name in plan.shapes})
        # A minibatch without a single valid row teaches nothing.
        rate = jnp.where(rows["weight"].sum() > 0, live["learning_rate"], 0.0)
        params, adam, norm = optimiser.step(
            {"all": carry["params"]}, {"all": gradient}, {name: carry[name] for name in ADAM},
            rate=rate, max_norm=live["max_grad_norm"],
        )  # fmt: skip
        sums = carry["sums"] + jnp.stack([*(seen[name] for name in AVERAGED[:-1]), norm])
        far = (live["target_kl"] > 0) & (seen["kl"] > live["target_kl"])
        return {"params": params["all"], "done": carry["done"] + 1, "stop": far, "sums": sums} | adam

    begin: Tree = {name: state[name] for name in ("params", *ADAM)}
    begin |= {"done": jnp.zeros((), jnp.int32), "stop": jnp.zeros((), bool), "sums": jnp.zeros(len(AVERAGED))}
    end = lax.while_loop(more, step, begin)
    averages = dict(zip(AVERAGED, end["sums"] / end["done"], strict=True)) | {"minibatches": end["done"]}
    return end["params"], {name: end[name] for name in ADAM}, averages


def take(plan: Plan, samples: Tree, order: Any) -> Tree:
    """Cut a minibatch: rows, or slots with all their rows."""
    axes = {name: 1 if plan.memory and not name.startswith("memory/") else 0 for name in samples}
    return {name: plan.shared(jnp.take(samples[name], order, axis, mode="clip"), axis) for name, axis in axes.items()}


def loss(plan: Plan, config: Config, weights: Tree, rows: Tree, live: Tree) -> tuple[jax.Array, Tree]:
    """Give the clipped surrogate with the value's loss and the entropy, averaged over valid rows."""
    value_node = plan.network.outputs["value"]
    memory = {name: rows[f"memory/{name}"] for name in plan.memory}
    first = rows["first"] if plan.memory else None
    outputs = graph.apply(plan.network, weights, rows, (value_node, *_heads(plan)), memory=memory, first=first)
    share = rows["weight"] / jnp.maximum(rows["weight"].sum(), 1.0)
    advantage = rows["advantage"]
    if config.normalise_advantage:
        centred = advantage - (share * advantage).sum()
        advantage = centred / (jnp.sqrt((share * centred**2).sum()) + statistics.TINY)
    now = distributions.log_prob(plan.network, plan.spec, outputs, rows)
    far = _distance(now, rows["log_prob"], rows["weight"] > 0)
    ratio = jnp.exp(far)
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - live["clip"], 1 + live["clip"]) * advantage)
    miss = (outputs[value_node] - rows["target"]) ** 2
    near = rows["value"] + jnp.clip(outputs[value_node] - rows["value"], -live["value_clip"], live["value_clip"])
    miss = jnp.where(live["value_clip"] > 0, jnp.maximum(miss, (near - rows["target"]) ** 2), miss)
    undecided = (share * distributions.entropy(plan.network, plan.spec, outputs)).sum()
    policy, value = -(share * gain).sum(), 0.5 * (share * miss).sum()
    total = policy + live["value_coefficient"] * value - live["entropy"] * undecided
    return total, {
        "loss/policy": policy,
        "loss/value": value,
        "entropy": undecided,
        "kl": (share * (ratio - 1 - far)).sum(),
        "clip_fraction": (share * (jnp.abs(ratio - 1) > live["clip"])).sum(),
    }


def _heads(plan: Plan) -> tuple[str, ...]:
    return tuple(name for head in plan.network.heads for name in head.inputs)


def _distance(now: Any, before: Any, valid: Any) -> Any:
    """Give log-ratios, 0 in rows that are not valid."""
    return jnp.clip(jnp.where(valid, now - before, 0.0), -FARTHEST, FARTHEST)
