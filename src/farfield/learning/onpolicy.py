"""The thin object around a pure update: batches in, weights and metrics out; holds the state between updates.

An update is `update(plan, config, state, batch, live) -> (state, metrics)`, compiled whole and ahead of time in the
background. `plan` and `config` are static, `state` is donated, `live` holds the numbers that may change at any time.
Everything before the first call is NumPy: each small eager JAX computation would cost a compilation of its own.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from farfield.errors import ConfigError, CorruptError
from farfield.learning import graph, hyper, networks, optimiser
from farfield.learning.compiled import Compiled
from farfield.types import Columns, Metrics, Network, Scalar, Spec, Weights

STEP = {"reward": np.float32, "log_prob": np.float32} | dict.fromkeys(
    ("terminated", "truncated", "valid", "first"), np.bool_
)
ADAM = ("m", "v", "count")
Tree = dict[str, Any]
Update = Callable[["Plan", Any, Tree, Tree, Tree], tuple[Tree, Tree]]


class Plan(NamedTuple):
    """What never changes in a run."""

    spec: Spec
    network: Network
    steps: int  # T
    lanes: int  # B
    mesh: Mesh | None  # devices that minibatches are shared among; none: one device

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the trainable tensors, in the order of the parameter vector."""
        return {name: tensor.shape for name, tensor in self.network.tensors.items() if tensor.trainable}

    def shared(self, rows: Any, axis: int) -> Any:
        """Divide an axis of an array among the devices."""
        if self.mesh is None:
            return rows
        return jax.lax.with_sharding_constraint(rows, NamedSharding(self.mesh, _divided(axis)))

    def columns(self) -> Columns:
        """Give a batch of zeros: names, shapes and dtypes of what an update takes."""
        T, B = self.steps, self.lanes
        found = {field.name: np.zeros((T + 1, B, *field.shape), field.dtype) for field in self.spec.observations}
        found |= {field.name: np.zeros((T, B, *field.shape), field.dtype) for field in self.spec.actions}
        found |= {name: np.zeros((T, B), dtype) for name, dtype in STEP.items()}
        return found | {f"memory/{name}": np.zeros((B, *shape), np.float32) for name, shape in self.memory.items()}

    @property
    def memory(self) -> dict[str, tuple[int, ...]]:
        """Recurrent nodes and the shapes of their states."""
        return self.network.memory


def plan(spec: Spec, network: Network, *, steps: int, lanes: int, devices: int) -> Plan:
    """Decide what never changes; more than one device must divide the lanes."""
    if devices == 1:
        return Plan(spec, network, steps, lanes, None)
    found = jax.devices()
    if devices > len(found):
        raise ConfigError(
            f"devices = {devices}, but JAX sees {len(found)} ({found[0].platform}); use at most that many"
        )
    if lanes % devices:
        raise ConfigError(f"devices = {devices} cannot share {lanes} lanes evenly; use a number that divides them")
    return Plan(spec, network, steps, lanes, Mesh(np.array(found[:devices]), ("devices",)))


def evaluate(plan: Plan, weights: Mapping[str, Any], batch: Tree, wanted: tuple[str, ...]) -> Tree:
    """Compute nodes for all T + 1 rows of a batch, from its memory where the network remembers."""
    first = None
    if plan.memory:
        first = begins(batch)
        first = jnp.concatenate([first, ~batch["valid"][-1:]])
    memory = {name: batch[f"memory/{name}"] for name in plan.memory}
    return graph.apply(plan.network, weights, batch, wanted, memory=memory, first=first)


def begins(batch: Tree) -> Any:
    """Say in which rows memory starts anew: an episode's first, and those after a gap, where another piece begins."""
    gap = jnp.concatenate([jnp.zeros_like(batch["valid"][:1]), ~batch["valid"][:-1]])
    # The row after an episode's last one is not valid but shows its last observation: memory goes on into it.
    return batch["first"] | (gap & batch["valid"])


class OnPolicy:
    """Learns from each batch once; `update` is the algorithm."""

    def __init__(
        self,
        config: Any,
        plan: Plan,
        *,
        seed: int,
        update: Update,
        extra: Tree | None = None,
        draw: Callable[[Plan, Any, np.random.Generator], Columns] | None = None,
        check: Callable[[Any], None] | None = None,
    ) -> None:
        self._plan, self._seed, self._pure, self._draw, self._check = plan, seed, update, draw, check
        self._updates, self._steps = 0, 0
        weights = networks.initialise(plan.network, seed=seed)
        trained = {name: weights.pop(name) for name in plan.shapes}
        self._still = tuple(weights)
        self._state: Tree = {"params": optimiser.join(trained)} | optimiser.begin(trained) | weights | (extra or {})
        self._shapes = {name: np.shape(value) for name, value in self._state.items()}
        self._compiled = Compiled(config, self._compile)

    @property
    def network(self) -> Network:
        """The graph that its weights belong to."""
        return self._plan.network

    @property
    def config(self) -> Any:
        """Its hyper-parameters as tuned."""
        return self._compiled.config

    @property
    def pending(self) -> tuple[str, ...]:
        """Hyper-parameters that wait for their compilation."""
        return self._compiled.pending

    def learn(self, batch: Columns) -> Metrics:
        """Use a batch once; the metrics wait for the arithmetic only when somebody looks at them."""
        update = self._compiled.ready()
        config = self._compiled.running
        live = hyper.live_values(config)
        rate = optimiser.annealed(config.learning_rate, self._steps, config.anneal)
        live["learning_rate"] = np.asarray(rate, np.float32)
        self._state, metrics = update(self._state, self._inputs(config, batch), live)
        self._updates += 1
        self._steps += int(batch["valid"].sum())
        return metrics | {"learning_rate": rate, "recompiling": float(bool(self.pending))}

    def weights(self) -> Weights:
        """Give copies of all tensors of the network as they are now."""
        # Copies, since the next update is made in the very buffers of this one.
        trained = optimiser.split(np.array(self._state["params"]), self._plan.shapes)
        return trained | {name: np.array(self._state[name]) for name in self._still}

    def state(self) -> Columns:
        """Give everything that an exact resume needs."""
        found = {f"state/{name}": np.array(value) for name, value in self._state.items()}
        return found | {
            "hyper/wanted": hyper.pack(self._compiled.config),
            "hyper/running": hyper.pack(self._compiled.running),
            "counters": np.array([self._seed, self._updates, self._steps], np.int64),
        }

    def restore(self, state: Columns) -> None:
        """Continue from `state` of an equal algorithm."""
        found = {name: np.array(state[f"state/{name}"]) for name in self._state if f"state/{name}" in state}
        for name, shape in self._shapes.items():
            if name not in found or found[name].shape != shape:
                came = found[name].shape if name in found else "nothing"
                raise CorruptError(f"the checkpoint's {name!r} must be {shape}, but is {came}; it is of another run")
        kind: Any = type(self._compiled.config)
        wanted, running = (hyper.unpack(state[f"hyper/{name}"], kind) for name in ("wanted", "running"))
        self._compiled.restore(wanted, running)
        self._state = found
        self._seed, self._updates, self._steps = (int(count) for count in state["counters"])

    def tune(self, changes: Mapping[str, Scalar]) -> None:
        """Change hyper-parameters: all of them or, with an error that says why, none."""
        self._compiled.tune(hyper.tuned(self._compiled.config, changes, check=self._check))

    def _inputs(self, config: Any, batch: Columns) -> Columns:
        """Give what the update reads: columns, and this update's random numbers."""
        found = {name: batch[name] for name in self._names if name in batch}
        for name, shape in self._plan.memory.items():
            found.setdefault(f"memory/{name}", np.zeros((self._plan.lanes, *shape), np.float32))
        if self._draw is not None:
            # A generator of its own for each update: the number of the update is all that there is to save.
            bits = np.random.Philox(key=self._seed % 2**64, counter=[0, 0, 0, self._updates])
            found |= self._draw(self._plan, config, np.random.Generator(bits))
        return found

    def _compile(self, config: Any) -> Any:
        plan = self._plan
        batch = plan.columns()
        drawn = self._draw(plan, config, np.random.default_rng(0)) if self._draw else {}
        live = hyper.live_values(config)
        update = partial(self._pure, plan, config)
        if plan.mesh is None:
            compiled = jax.jit(update, donate_argnums=0)
        else:
            whole = NamedSharding(plan.mesh, PartitionSpec())
            lanes = {name: 0 if name.startswith("memory/") else 1 for name in batch}
            places = {n: NamedSharding(plan.mesh, _divided(axis)) for n, axis in lanes.items()}
            rest = (jax.tree.map(lambda _: whole, self._state), places | dict.fromkeys(drawn, whole), whole)
            compiled = jax.jit(update, donate_argnums=0, in_shardings=rest, out_shardings=whole)
        abstract = jax.tree.map(_abstract, (self._state, batch | drawn, live))
        return compiled.lower(*abstract).compile()

    @property
    def _names(self) -> tuple[str, ...]:
        fields = (*self._plan.spec.observations, *self._plan.spec.actions)
        return (*(field.name for field in fields), *STEP, *(f"memory/{name}" for name in self._plan.memory))


def _abstract(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, jax.dtypes.canonicalize_dtype(array.dtype))


def _divided(axis: int) -> PartitionSpec:
    return PartitionSpec(*[None] * axis, "devices")
