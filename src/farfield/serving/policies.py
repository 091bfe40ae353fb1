"""Weights into actions, without any machine-learning framework: a spec and a network in, a `Policy` out."""

import numpy as np

from farfield.errors import CorruptError, MissingError, SpecError, nearest
from farfield.serving import decisions
from farfield.serving.interpreter import Program, needed
from farfield.types import Array, Choice, Columns, Memory, Network, Noise, Spec, Version, Weights, acting, noise_blocks

PROGRAMS = 8  # numbers of lanes that stay compiled; a server sees many, an actor one


def make(spec: Spec, network: Network) -> "NumpyPolicy":
    """Make a policy that acts once weights are loaded."""
    return NumpyPolicy(spec, network)


class NumpyPolicy:
    """A `Policy` in NumPy; one thread at a time."""

    def __init__(self, spec: Spec, network: Network) -> None:
        self.spec = spec
        self.network = network
        self._wanted = tuple(dict.fromkeys(name for head in network.heads for name in head.inputs))
        nodes = needed(network, self._wanted)
        self._column = next((node.inputs[0] for node in nodes if node.op == "input"), spec.observations[0].name)
        self._tensors: Weights = {
            name: np.zeros(network.tensors[name].shape, network.tensors[name].dtype) for name in acting(network)
        }
        self._loaded = False
        self._states = tuple((node.name, network.memory[node.name]) for node in nodes if node.name in network.memory)
        self._programs: dict[int, Program] = {}
        self._deciders = decisions.deciders(spec, network)
        self._noise = sum(width for _, width in noise_blocks(spec, network))

    def act(self, obs: Columns, *, noise: Noise | None, memory: Memory) -> Choice:
        """Decide for N lanes from columns [N, …]; without noise, greedily.

        The memory of lanes where an episode begins must be zero: the caller sees to that. All arrays are the caller's.
        """
        if self._column not in obs:
            raise SpecError(f"column {self._column!r} is missing; {nearest(self._column, obs)}")
        lanes = len(obs[self._column])
        program = self._programs.get(lanes) or self._compile(lanes)
        values = program.run(obs, memory)
        action: Columns = {}
        if noise is None:
            for name, decide, inputs, _ in self._deciders:
                action[name] = decide([values[node] for node in inputs], None)
            return Choice(action, {}, program.memory())
        if noise.shape != (lanes, self._noise):
            raise SpecError(f"noise: expected shape {(lanes, self._noise)}, came {noise.shape}")
        logits = {node: values[node].copy() for node in self._wanted}
        for name, decide, inputs, columns in self._deciders:
            action[name] = decide([logits[node] for node in inputs], noise[:, columns])
        return Choice(action, logits, program.memory())

    def log_prob(self, logits: Columns, action: Columns) -> Array:
        """Score whole actions under the outputs that `act` gave: [T, N, …] -> [T, N], over any leading dimensions."""
        return decisions.log_prob(self.spec, self.network, logits, action)

    def memory(self, lanes: int) -> Memory:
        """Begin with nothing remembered."""
        return {name: np.zeros((lanes, *shape), np.float32) for name, shape in self._states}

    def load(self, version: Version, weights: Weights) -> None:
        """Act with these weights from the next decision on; on an error, the ones before stay."""
        label = f"version {version.number} of {version.run!r}"
        for name, own in self._tensors.items():
            if name not in weights:
                raise CorruptError(f"{label}: tensor {name!r} {list(own.shape)} is missing; publish the version again")
            came = weights[name]
            if came.shape != own.shape or came.dtype != own.dtype:
                raise CorruptError(
                    f"{label}: tensor {name!r}: expected {own.dtype} {list(own.shape)}, came {came.dtype} "
                    f"{list(came.shape)}; load it with the network that it was made for"
                )
        for name, own in self._tensors.items():
            own[...] = weights[name]
        self._loaded = True
        for program in self._programs.values():
            program.refresh()

    def _compile(self, lanes: int) -> Program:
        if not self._loaded:
            raise MissingError("the policy has no weights yet; load a version before it acts")
        while len(self._programs) >= PROGRAMS:
            del self._programs[next(iter(self._programs))]
        self._programs[lanes] = Program(self.network, self._tensors, lanes, self._wanted)
        return self._programs[lanes]
