"""Windows of replayed steps in, the loss of action values and the error of each window out: pure functions of JAX."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from farfield.learning import graph
from farfield.learning.distributions import FORBIDDEN
from farfield.learning.returns import Ends, n_step
from farfield.types import Network, Spec

LONGEST = 0.9  # how much of a sequence's priority is its largest error; the rest is the mean
Tree = dict[str, Any]


class Rule(NamedTuple):
    """What a compiled loss is made for."""

    network: Network
    spec: Spec
    n_step: int
    double: bool
    sequences: bool  # every row is learned from, not only the windows' first ones
    burn_in: int


class Values(NamedTuple):
    """Rows [S, M] to learn from; S is 1 where only the windows' first rows are."""

    q: jax.Array  # [S, M, A]
    target: jax.Array
    action: jax.Array
    valid: jax.Array


def loss(weights: Tree, target: Tree, still: Tree, rows: Tree, live: Tree, rule: Rule) -> tuple[Any, tuple[Tree, Any]]:
    """Give the Huber loss of one minibatch, figures, and the size of the error of each window."""
    values = (sequences if rule.sequences else windows)(weights | still, target | still, rows, live, rule)
    chosen = select(values.q, values.action)
    learnable = values.valid & (chosen > FORBIDDEN)  # what was not allowed has no value to learn
    error = jnp.where(learnable, chosen - values.target, 0.0)
    size = jnp.abs(error)
    bend = live["huber"]
    costs = jnp.where(size <= bend, 0.5 * error**2, bend * (size - 0.5 * bend))
    count = jnp.maximum(learnable.sum(), 1)
    figures = {
        "loss": (rows["weight"] * costs).sum() / count,
        "td_error": size.sum() / count,
        "q": jnp.where(learnable, chosen, 0.0).sum() / count,
        "target": jnp.where(learnable, values.target, 0.0).sum() / count,
    }
    errors = size[0]
    if len(size) > 1:
        errors = LONGEST * size.max(0) + (1 - LONGEST) * size.sum(0) / jnp.maximum(learnable.sum(0), 1)
    return figures["loss"], (figures, errors)


def windows(online: Tree, target: Tree, rows: Tree, live: Tree, rule: Rule) -> Values:
    """Value the first row of each window, and the observation that its rewards lead to; nothing in between."""
    action = rows[rule.spec.actions[0].name]
    ends = ends_of(rows)
    passes = ends.valid & ~ends.terminated & ~ends.truncated
    passes = passes[:-1] & ends.valid[1:]
    stop = 1 + jnp.cumprod(passes[: rule.n_step - 1].astype(jnp.int32), axis=0).sum(0)  # [M]
    lanes = jnp.arange(len(stop))
    observed = {field.name: rows[field.name] for field in rule.spec.observations}
    q = evaluate(rule, online, {name: column[0] for name, column in observed.items()})
    later = {name: column[1] if len(action) == 1 else column[stop, lanes] for name, column in observed.items()}
    value = best(rule, lax.stop_gradient(online), target, partial(evaluate, rule, columns=later))
    at = jnp.arange(len(action) + 1)[:, None] == stop
    goal = n_step(rows["reward"], jnp.where(at, value, 0.0), ends, gamma=live["gamma"], n=rule.n_step)
    return Values(q[None], goal[:1], action[:1], ends.valid[:1])


def sequences(online: Tree, target: Tree, rows: Tree, live: Tree, rule: Rule) -> Values:
    """Value every row of sequences behind their first `burn_in` rows, which only bring the memory up to date."""
    skip = rule.burn_in
    observed = {field.name: rows[field.name] for field in rule.spec.observations}
    first = jnp.concatenate([rows["first"], jnp.zeros_like(rows["first"][:1])])
    memory = {name: rows[f"memory/{name}"] for name in rule.network.memory}

    def over(weights: Tree) -> jax.Array:
        state = memory
        if skip:
            begun = {name: column[:skip] for name, column in observed.items()}
            wanted = [f"memory/{name}" for name in memory]
            frozen = lax.stop_gradient(weights)
            warm = graph.apply(rule.network, frozen, begun, wanted, memory=memory, first=first[:skip])
            state = {name: warm[f"memory/{name}"] for name in memory}
        rest = {name: column[skip:] for name, column in observed.items()}
        return evaluate(rule, weights, rest, memory=state, first=first[skip:])

    q = over(online)
    value = best(rule, lax.stop_gradient(q), over(target), lambda given: given)
    ends = Ends(*(column[skip:] for column in ends_of(rows)))
    goal = n_step(rows["reward"][skip:], value, ends, gamma=live["gamma"], n=rule.n_step)
    return Values(q[:-1], goal, rows[rule.spec.actions[0].name][skip:], ends.valid)


def best(rule: Rule, online: Any, target: Any, valued: Callable[[Any], jax.Array]) -> jax.Array:
    """Give the target network's value of the best action; 0 where none is allowed."""
    q = valued(target)
    choice = (valued(online) if rule.double else q).argmax(-1)
    value = select(q, choice)
    return jnp.where(value > FORBIDDEN, value, 0.0)


def evaluate(rule: Rule, weights: Tree, columns: Tree, **recurrent: Any) -> jax.Array:
    """Give the values of all actions."""
    node = rule.network.outputs["q"]
    return graph.apply(rule.network, weights, columns, [node], **recurrent)[node]


def select(q: jax.Array, action: jax.Array) -> jax.Array:
    """Give the values of the chosen actions; by a comparison, whose gradient is no slow scatter."""
    return jnp.where(jnp.arange(q.shape[-1]) == action[..., None], q, 0.0).sum(-1)


def ends_of(rows: Tree) -> Ends:
    """Collect how rows end."""
    return Ends(rows["terminated"], rows["truncated"], rows["valid"])
