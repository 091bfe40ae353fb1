"""The native core as a `Policy`: a spec and a network in, actions out; where it was not built, `available` says so."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from farfield.canonical import to_json
from farfield.errors import CorruptError, MissingError, SpecError, nearest
from farfield.serving import decisions
from farfield.serving.interpreter import needed
from farfield.types import Array, Choice, Columns, Memory, Network, Noise, Spec, Version, Weights, acting, noise_blocks

if TYPE_CHECKING:
    from farfield import _native as core
else:
    try:
        from farfield import _native as core
    except ImportError:  # installed where no compiler was: NumPy does the same
        core = None

PROGRAMS = 8  # numbers of lanes that stay compiled


def available() -> bool:
    """Say whether the native core was built with this installation."""
    return core is not None


def make(spec: Spec, network: Network) -> "NativePolicy":
    """Make a policy that acts once weights are loaded."""
    return NativePolicy(spec, network)


class NativePolicy:
    """A `Policy` whose networks run in C++; one thread at a time."""

    def __init__(self, spec: Spec, network: Network) -> None:
        if not available():
            raise MissingError("the native core was not built; install farfield where a C++ compiler is, or use NumPy")
        self.spec, self.network = spec, network
        self._json = to_json(spec), to_json(network)
        self._wanted = list(dict.fromkeys(name for head in network.heads for name in head.inputs))
        nodes = needed(network, self._wanted)
        self._column = next((node.inputs[0] for node in nodes if node.op == "input"), spec.observations[0].name)
        self._states = tuple((node.name, network.memory[node.name]) for node in nodes if node.name in network.memory)
        self._deciders = decisions.deciders(spec, network)
        self._noise = sum(width for _, width in noise_blocks(spec, network))
        self._weights: Weights | None = None
        self._programs: dict[int, core.Program] = {}

    def act(self, obs: Columns, *, noise: Noise | None, memory: Memory) -> Choice:
        """Decide for N lanes from columns [N, …]; without noise, greedily. All arrays are the caller's."""
        if self._column not in obs:
            raise SpecError(f"column {self._column!r} is missing; {nearest(self._column, obs)}")
        lanes = len(obs[self._column])
        if noise is not None and noise.shape != (lanes, self._noise):
            raise SpecError(f"noise: expected shape {(lanes, self._noise)}, came {noise.shape}")
        program = self._programs.get(lanes) or self._compile(lanes)
        logits, after = program.run(obs, memory)
        action = {
            name: decide([logits[node] for node in inputs], None if noise is None else noise[:, columns])
            for name, decide, inputs, columns in self._deciders
        }
        return Choice(action, {} if noise is None else logits, after)

    def log_prob(self, logits: Columns, action: Columns) -> Array:
        """Score whole actions under the outputs that `act` gave, over any leading dimensions."""
        typed = {field.name: action[field.name].astype(field.dtype, copy=False) for field in self.spec.actions}
        return core.log_prob(*self._json, logits, typed)

    def memory(self, lanes: int) -> Memory:
        """Begin with nothing remembered."""
        return {name: np.zeros((lanes, *shape), np.float32) for name, shape in self._states}

    def load(self, version: Version, weights: Weights) -> None:
        """Act with these weights from the next decision on; on an error, the ones before stay."""
        wanted = {name: weights[name] for name in acting(self.network) if name in weights}
        try:
            core.Program(self._json[1], wanted, 1, self._wanted)
        except CorruptError as error:
            raise CorruptError(f"version {version.number} of {version.run!r}: {error}") from error
        self._weights = {name: value.copy() for name, value in wanted.items()}
        self._programs.clear()

    def _compile(self, lanes: int) -> "core.Program":
        if self._weights is None:
            raise MissingError("the policy has no weights yet; load a version before it acts")
        while len(self._programs) >= PROGRAMS:
            del self._programs[next(iter(self._programs))]
        self._programs[lanes] = core.Program(self._json[1], self._weights, lanes, self._wanted)
        return self._programs[lanes]


def evaluate(
    network: Network, weights: Weights, columns: Columns, wanted: list[str], *, memory: Mapping[str, Any]
) -> tuple[Columns, Memory]:
    """Compute the wanted nodes of one decision once, [N, …], and the memory after it."""
    name = next(node.inputs[0] for node in needed(network, wanted) if node.op == "input")
    return core.Program(to_json(network), weights, len(columns[name]), wanted).run(columns, memory)
