"""Deep Q-learning: windows of replayed steps in, action values and an ε that shrinks out."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from msgspec import Struct

from farfield.errors import ConfigError, CorruptError
from farfield.learning import hyper, networks, optimiser
from farfield.learning.compiled import Compiled
from farfield.learning.hyper import fixed, live, recompile
from farfield.learning.qvalues import Rule, Tree, loss
from farfield.types import Array, Columns, Metrics, Network, Scalar, Spec, Weights

FEED = "replay"
STEP = ("reward", "terminated", "truncated", "valid")


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The hyper-parameters of DQN; docs/algorithms/dqn.md explains each."""

    learning_rate: Annotated[float, live("step size of Adam", gt=0)] = 1e-3
    gamma: Annotated[float, live("how much the next step's value counts", ge=0, le=1)] = 0.99
    n_step: Annotated[int, fixed("rewards that are added up before the value of an observation is used", ge=1)] = 3
    double: Annotated[bool, recompile("choose the next action by the online network, value it by the target")] = True
    dueling: Annotated[bool, fixed("split the network's end into a value and advantages")] = True
    updates: Annotated[int, fixed("minibatch updates in one batch", ge=1)] = 8
    minibatch: Annotated[int, fixed("windows in one update", ge=1)] = 64
    target_every: Annotated[int, live("updates between two changes of the target network", ge=1)] = 1
    tau: Annotated[float, live("how far the target network then moves: 1 is a copy", gt=0, le=1)] = 0.01
    huber: Annotated[float, live("errors above this count linearly, below squared", gt=0)] = 10.0
    max_grad_norm: Annotated[float, live("longest gradient", gt=0)] = 10.0
    epsilon_start: Annotated[float, live("share of random actions at first", ge=0, le=1)] = 1.0
    epsilon_end: Annotated[float, live("share of random actions at last", ge=0, le=1)] = 0.02
    epsilon_steps: Annotated[int, live("environment steps from the first to the last", ge=1)] = 20_000
    sequence: Annotated[int, fixed("rows of a window of a recurrent network; 0 for others", ge=0)] = 0
    burn_in: Annotated[int, recompile("first rows of a sequence that only bring its memory up to date", ge=0)] = 0


def window(config: Config) -> tuple[int, int]:
    """Say what batches it takes: rows of each window, and windows."""
    return max(config.n_step, config.sequence), config.updates * config.minibatch


def reach(config: Config) -> int:
    """Say how long fragments may be so that every step of theirs is learned from; 0: any length."""
    return config.sequence - config.burn_in if config.sequence else 0


def make(
    config: Config, *, spec: Spec, network: networks.Config, steps: int, lanes: int, seed: int, devices: int = 1
) -> "Dqn":
    """Make the algorithm; it begins to compile at once, in the background."""
    drawn = networks.build(network, spec, style="q", dueling=config.dueling)
    check(config, drawn, steps=steps, lanes=lanes, devices=devices)
    return Dqn(config, spec=spec, network=drawn, steps=steps, seed=seed, devices=devices)


def check(config: Config, network: Network, *, steps: int, lanes: int, devices: int) -> None:
    """Refuse settings that do not fit together."""
    if (steps, lanes) != window(config):
        raise ConfigError(f"dqn takes batches of {window(config)} steps × lanes, but {(steps, lanes)} were asked for")
    if config.minibatch % devices:
        raise ConfigError(f"algorithm.minibatch = {config.minibatch} cannot be shared by {devices} devices evenly")
    if devices > 1 and devices > len(jax.devices()):
        raise ConfigError(f"devices = {devices}, but JAX sees {len(jax.devices())}; use at most that many")
    if bool(network.memory) != bool(config.sequence):
        raise ConfigError(
            f"algorithm.sequence = {config.sequence}: recurrent networks need one, such as 32, and others take 0"
        )
    if config.sequence and config.burn_in + config.n_step > config.sequence:
        raise ConfigError(
            f"algorithm.burn_in = {config.burn_in} and n_step = {config.n_step} leave nothing of sequence = "
            f"{config.sequence} to learn from; make it longer"
        )


class Dqn:
    """Holds the state between updates; all arithmetic is in one compiled function."""

    def __init__(self, config: Config, *, spec: Spec, network: Network, steps: int, seed: int, devices: int) -> None:
        self._spec, self._network, self._steps, self._devices = spec, network, steps, devices
        self._columns = (
            *(field.name for field in spec.observations), spec.actions[0].name, *STEP, "weight",
            *(("first",) if network.memory else ()), *(f"memory/{name}" for name in network.memory),
        )  # fmt: skip
        first = networks.initialise(network, seed=seed)
        weights = {name: first[name] for name, tensor in network.tensors.items() if tensor.trainable}
        self._state: Tree = {
            "weights": weights,
            "target": {name: value.copy() for name, value in weights.items()},
            "adam": optimiser.begin(weights),
        }
        self._statistics = {
            name: value.astype(np.float64) for name, value in first.items() if name.startswith("normalise/")
        }
        self._frozen = {
            name: value for name, value in first.items() if name not in weights and name not in self._statistics
        }
        self._learned = 0  # environment steps
        self._errors: Any = None
        self._compiled = Compiled(config, self._compile)

    @property
    def network(self) -> Network:
        """The graph that its weights belong to."""
        return self._network

    def learn(self, batch: Columns) -> Metrics:
        """Do all minibatch updates of a batch; the figures are there when somebody looks at them."""
        update = self._compiled.ready()
        config = self._compiled.running
        self._statistics = normalised(self._statistics, batch)
        self._learned += int(batch["new_steps"][0])
        split = {name: self._split(name, batch[name]) for name in self._columns}
        self._state, metrics, self._errors = update(self._state, self._still(), split, hyper.live_values(config))
        return metrics | {
            "epsilon": self._epsilon(),
            "learning_rate": config.learning_rate,
            "recompiling": float(bool(self._compiled.pending)),
        }

    def priorities(self) -> Array | None:
        """Give the size of the error of each lane of the last batch, in its order."""
        return None if self._errors is None else np.array(self._errors)

    def weights(self) -> Weights:
        """Give copies of all tensors of the network as they are now."""
        trained = {name: np.array(value) for name, value in self._state["weights"].items()}
        return trained | self._still()

    def state(self) -> Columns:
        """Give everything that an exact resume needs."""
        found: Columns = {
            "hyper/wanted": hyper.pack(self._compiled.config),
            "hyper/running": hyper.pack(self._compiled.running),
            "learned": np.asarray(self._learned, np.int64),
        }
        for part, tree in self._parts():
            found |= {f"{part}/{name}": np.array(value) for name, value in tree.items()}
        return found

    def restore(self, state: Columns) -> None:
        """Continue from `state` of an equal algorithm."""
        wanted, running = (hyper.unpack(state[f"hyper/{name}"], Config) for name in ("wanted", "running"))
        self._compiled.restore(wanted, running)
        self._learned = int(state["learned"])
        for part, tree in self._parts():
            for name, value in tree.items():
                kept = state.get(f"{part}/{name}")
                if kept is None or kept.shape != np.shape(value):
                    came = "nothing" if kept is None else kept.shape
                    raise CorruptError(
                        f"the checkpoint's {part}/{name} must be {np.shape(value)}, but is {came}; it is of another run"
                    )
                tree[name] = np.array(kept)

    def tune(self, changes: Mapping[str, Scalar]) -> None:
        """Change hyper-parameters: all of them or, with an error that says why, none."""
        self._compiled.tune(hyper.tuned(self._compiled.config, changes, check=self._checked))

    def _checked(self, config: Config) -> None:
        steps, lanes = window(config)
        check(config, self._network, steps=steps, lanes=lanes, devices=self._devices)

    def _parts(self) -> list[tuple[str, Tree]]:
        return [*self._state.items(), ("statistics", self._statistics)]

    def _epsilon(self) -> float:
        config = self._compiled.config
        done = min(1.0, self._learned / config.epsilon_steps)
        return config.epsilon_start + (config.epsilon_end - config.epsilon_start) * done

    def _still(self) -> Weights:
        """Give the tensors that are not trained."""
        found = {name: value.astype(np.float32) for name, value in self._statistics.items()}
        return self._frozen | found | {self._network.heads[0].inputs[1]: np.asarray(self._epsilon(), np.float32)}

    def _split(self, name: str, column: Array) -> Array:
        """Cut a batch's column into minibatches: [U, T, M, …], or [U, M, …] without rows."""
        config, column = self._compiled.config, column.astype(narrow(column.dtype), copy=False)
        cut = (config.updates, config.minibatch)
        if lanes_only(name):
            return column.reshape(*cut, *column.shape[1:])
        return column.reshape(len(column), *cut, *column.shape[2:]).swapaxes(0, 1)

    def _compile(self, config: Config) -> Callable[..., Any]:
        """Trace and compile the whole update for the shapes of this run."""
        network = self._network
        rule = Rule(
            network, self._spec, config.n_step, config.double, sequences=bool(config.sequence), burn_in=config.burn_in
        )
        still = {
            name: jax.ShapeDtypeStruct(tensor.shape, np.float32)
            for name, tensor in network.tensors.items()
            if not tensor.trainable
        }
        shapes = jax.tree.map(
            lambda value: jax.ShapeDtypeStruct(value.shape, value.dtype), (self._state, hyper.live_values(config))
        )
        jitted = jax.jit(partial(update, rule))
        if self._devices > 1:
            mesh = Mesh(np.asarray(jax.devices()[: self._devices]), ("share",))
            same = NamedSharding(mesh, PartitionSpec())
            shared = {
                name: NamedSharding(mesh, PartitionSpec(None, *(() if lanes_only(name) else (None,)), "share"))
                for name in self._columns
            }
            jitted = jax.jit(partial(update, rule), in_shardings=(same, same, shared, same), out_shardings=same)
        return jitted.lower(shapes[0], still, self._shapes(config), shapes[1]).compile()

    def _shapes(self, config: Config) -> dict[str, jax.ShapeDtypeStruct]:
        U, M, T = config.updates, config.minibatch, self._steps
        action = self._spec.actions[0]
        found = {field.name: (T + 1, M, *field.shape) for field in self._spec.observations}
        found |= {action.name: (T, M, *action.shape)} | dict.fromkeys((*STEP, "first"), (T, M)) | {"weight": (M,)}
        found |= {f"memory/{name}": (M, *shape) for name, shape in self._network.memory.items()}
        kinds = {field.name: narrow(np.dtype(field.dtype)) for field in (*self._spec.observations, action)}
        kinds |= dict.fromkeys(("terminated", "truncated", "valid", "first"), np.dtype(np.bool_))
        return {
            name: jax.ShapeDtypeStruct((U, *found[name]), kinds.get(name, np.dtype(np.float32)))
            for name in self._columns
        }


def update(rule: Rule, state: Tree, still: Tree, batch: Tree, live: Tree) -> tuple[Tree, Tree, jax.Array]:
    """Learn from every minibatch in turn: the new state, figures, and the error of each lane."""

    def minibatch(state: Tree, rows: Tree) -> tuple[Tree, tuple[Tree, jax.Array]]:
        (_, (seen, errors)), gradient = jax.value_and_grad(loss, has_aux=True)(
            state["weights"], state["target"], still, rows, live, rule
        )
        weights, adam, norm = optimiser.step(
            state["weights"], gradient, state["adam"], rate=live["learning_rate"], max_norm=live["max_grad_norm"]
        )
        moves = jnp.where(adam["count"] % live["target_every"].astype(jnp.int32) == 0, live["tau"], 0.0)
        target = {name: old + moves * (weights[name] - old) for name, old in state["target"].items()}
        after = {"weights": weights, "target": target, "adam": adam}
        return after, (seen | {"grad_norm": norm}, errors)

    state, (figures, errors) = lax.scan(minibatch, state, batch)
    return state, {name: figure.mean() for name, figure in figures.items()}, errors.reshape(-1)


def lanes_only(name: str) -> bool:
    """Say whether a column has one value for each window instead of each row."""
    return name == "weight" or name.startswith("memory/")


def narrow(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Give the type of at most 32 bits in which JAX computes."""
    return {"int64": np.dtype(np.int32), "float64": np.dtype(np.float32)}.get(dtype.name, dtype)


def normalised(statistics: Weights, batch: Columns) -> Weights:
    """Merge the sums over new observations, each of which comes once, into means and variances."""
    count = float(batch["new_steps"][0])
    merged = dict(statistics)
    for name in statistics:
        field = name.removeprefix("normalise/").removesuffix("/count")
        if name.endswith("/count") and count:
            mean, var = (statistics[f"normalise/{field}/{what}"] for what in ("mean", "var"))
            old, total = float(statistics[name]), float(statistics[name]) + count
            new = batch[f"fresh/{field}/sum"] / count
            spread = np.maximum(batch[f"fresh/{field}/square"] / count - new**2, 0)
            between = np.square(new - mean) * (old * count / total)
            merged[f"normalise/{field}/mean"] = mean + (new - mean) * (count / total)
            merged[f"normalise/{field}/var"] = (var * old + spread * count + between) / total
            merged[name] = np.asarray(total)
    return merged
