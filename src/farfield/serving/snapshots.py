"""A version's manifest and weights in; a `Snapshot` that many tracks look at, and what decides for each, out."""

from collections.abc import Callable

import numpy as np

from farfield.canonical import from_json, to_json
from farfield.errors import CorruptError
from farfield.serving import decisions
from farfield.serving.interpreter import Program
from farfield.types import Array, Buffer, Columns, Kind, Noise, Version, Weights, acting, noise_blocks

SHORT = 64  # numbers that are searched as a list
TRIED = 16  # networks of which it is known that they can decide
_TRIED: dict[bytes, None] = {}


class Snapshot:
    """A version to act with; never changed, so that any number of threads may look at it."""

    def __init__(self, version: Buffer, weights: Weights) -> None:
        self.version = from_json(version, Version)
        self.number, self.attempt = self.version.number, self.version.attempt
        self.network = self.version.network
        self.shape = to_json(self.network)  # equal for versions between which only weights differ
        self.blocks = noise_blocks(self.version.spec, self.network)
        self.weights: Weights = {}
        for name in sorted(acting(self.network)):
            expected = self.network.tensors[name]
            came = weights.get(name)
            if came is None or came.shape != expected.shape or came.dtype != expected.dtype:
                found = "nothing" if came is None else f"{came.dtype} {list(came.shape)}"
                raise CorruptError(
                    f"version {self.number} of {self.version.run!r}: tensor {name!r}: expected {expected.dtype} "
                    f"{list(expected.shape)}, came {found}; publish the version again"
                )
            if came.dtype.kind == "f" and not np.isfinite(came).all():
                raise CorruptError(f"version {self.number}: tensor {name!r} is not finite; publish another version")
            self.weights[name] = np.array(came)
        if self.shape not in _TRIED:
            self._try()
            while len(_TRIED) >= TRIED:
                _TRIED.pop(next(iter(_TRIED)), None)
            _TRIED[self.shape] = None

    def decider(self, lanes: int) -> "Decider":
        """Make what decides for so many lanes; it is the caller's own."""
        return Decider(self, lanes)

    def _try(self) -> None:
        """Decide once, so that a network which cannot is found here and not by a program that acts."""
        decider, spec = self.decider(1), self.version.spec
        shapes = {field.name: field.shape for field in (*spec.observations, *spec.actions)}
        decider.run()
        chosen = decider.choose(None)
        decider.score(decider.logits, chosen)
        found = {name: buffer.shape[1:] for name, buffer in decider.inputs}
        found |= {name: value.shape[1:] for name, value in chosen.items()}
        lacking = {field.name for field in spec.actions} - chosen.keys()
        wrong = [name for name, shape in found.items() if shapes.get(name) != shape]
        if lacking or wrong:
            raise CorruptError(
                f"version {self.number} of {self.version.run!r}: its network does not fit its spec at "
                f"{', '.join([*wrong, *lacking])}; publish another version"
            )


class Decider:
    """A network compiled for N lanes, with what it remembers; its arrays are written again by every run."""

    def __init__(self, snapshot: Snapshot, lanes: int) -> None:
        spec, network = snapshot.version.spec, snapshot.network
        self._spec, self._network, self._lanes = spec, network, lanes
        self._weights = {name: value.copy() for name, value in snapshot.weights.items()}
        wanted = tuple(dict.fromkeys(name for head in network.heads for name in head.inputs))
        self._program = Program(network, self._weights, lanes, wanted)
        self._heads = decisions.deciders(spec, network)
        self.inputs = self._program.inputs  # (column, where its values go)
        self.steps = self._program.steps
        self.states = self._program.states  # (node, state before, state after)
        self.logits: Columns = {name: self._program.values[name] for name in wanted}
        self.pick = self._picker()

    def load(self, snapshot: Snapshot) -> None:
        """Go on with other weights of the same network."""
        for name, value in snapshot.weights.items():
            self._weights[name][...] = value
        self._program.refresh()

    def run(self) -> None:
        """Compute all outputs from the inputs and the states before."""
        for step in self.steps:
            step()

    def choose(self, noise: Noise | None) -> Columns:
        """Turn the outputs into actions [N, …]; without noise, greedily."""
        return {
            name: decide([self.logits[node] for node in inputs], None if noise is None else noise[:, columns])
            for name, decide, inputs, columns in self._heads
        }

    def score(self, logits: Columns, action: Columns) -> Array:
        """Score whole actions under recorded outputs, [T, N, …] -> [T, N]."""
        return decisions.log_prob(self._spec, self._network, logits, action)

    def _picker(self) -> Callable[[Array | None], int] | None:
        """Give the short way, where there is one: one lane, one choice among a few."""
        heads = self._network.heads
        fields = {field.name: field for field in self._spec.actions}
        if self._lanes != 1 or len(heads) != 1 or fields[heads[0].action].kind is not Kind.DISCRETE:
            return None
        logits = [self.logits[node].reshape(-1) for node in heads[0].inputs]
        if any(
            not np.shares_memory(flat, self.logits[node]) for flat, node in zip(logits, heads[0].inputs, strict=True)
        ):
            return None
        if heads[0].kind == "categorical":
            return _categorical(logits[0])
        allowed_all = not fields[heads[0].action].mask
        return _epsilon(logits[0], logits[1]) if heads[0].kind == "epsilon" and allowed_all else None


def _categorical(logits: Array) -> Callable[[Array | None], int]:
    scores = np.empty_like(logits)

    def pick(noise: Array | None) -> int:
        if noise is None:
            return _most(logits)
        np.add(logits, noise, scores)
        return _most(scores)

    return pick


def _epsilon(q: Array, epsilon: Array) -> Callable[[Array | None], int]:
    def pick(noise: Array | None) -> int:
        if noise is None or noise[-1] >= epsilon[0]:
            return _most(q)
        return _most(noise[:-1])

    return pick


def _most(scores: Array) -> int:
    """Find the first of the largest; `argmax` lets go of the interpreter, which costs more than a short search."""
    if len(scores) > SHORT:
        return int(scores.argmax())
    values: list[float] = scores.tolist()
    return values.index(max(values))
