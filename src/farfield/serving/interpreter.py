"""The NumPy interpreter: a network compiled, for a fixed number of lanes, into a flat list of array operations."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from farfield.errors import ConfigError, SpecError, nearest
from farfield.serving.operators import FRESH, KNOWN, OPERATORS, RECURRENT, Parts, row
from farfield.types import Array, Columns, Memory, Network, Node, Weights

Step = Callable[[], object]


class Program:
    """What one decision of so many lanes runs; its buffers are allocated once and written again by every run.

    The tensors are read where they lie: after changing them in place, call `refresh`.
    """

    def __init__(self, network: Network, tensors: Weights, lanes: int, wanted: Sequence[str]) -> None:
        self._lanes = lanes
        self.values: Columns = {}  # node -> its output [N, …]
        self.steps: list[Step] = []
        self._refresh: list[Step] = []
        self.inputs: list[tuple[str, Array]] = []
        self.states: list[tuple[str, Array, Array]] = []  # node, state before, state after
        self._fresh: set[str] = set()
        nodes = needed(network, wanted)
        read = [*wanted, *(name for node in nodes for name in node.inputs)]
        for node in nodes:
            self._add(node, tensors, read)
        self.refresh()

    def refresh(self) -> None:
        """Compute anew what depends on tensors alone."""
        for step in self._refresh:
            step()

    def run(self, columns: Mapping[str, Array], memory: Memory) -> Columns:
        """Compute all nodes; the arrays that come back are overwritten by the next run."""
        for name, buffer in self.inputs:
            _fill(buffer, "column", name, columns)
        for name, before, _ in self.states:
            _fill(before, "memory", name, memory)
        for step in self.steps:
            step()
        return self.values

    def memory(self) -> Memory:
        """Copy what recurrent nodes remember after the last run."""
        return {name: after.copy() for name, _, after in self.states}

    def _add(self, node: Node, tensors: Weights, read: Sequence[str]) -> None:
        own = {role: tensors[name] for role, name in node.tensors.items()}
        if node.op == "input":
            shape, dtype = (self._lanes, *node.options["shape"]), node.options["dtype"]
            alone = len(shape) == 2 and self._lanes == 1 and dtype == "float32"
            buffer = row(shape[1]) if alone else np.zeros(shape, dtype)
            self.inputs.append((node.inputs[0], buffer))
            self.values[node.name] = buffer
            return
        if node.op == "param":  # a view, so that what is loaded later is seen at once
            self.values[node.name] = np.broadcast_to(own["tensor"], (self._lanes, *own["tensor"].shape))
            return
        source = node.inputs[0]
        overwrite = source in self._fresh and read.count(source) == 1
        inputs = [self.values[name] for name in node.inputs]
        parts = Parts(inputs, own, node.options, overwrite, self.steps, self._refresh)
        if node.op in RECURRENT:
            make, vectors = RECURRENT[node.op]
            shape = (self._lanes, vectors * len(own["recurrent"]))
            before, after = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
            self.states.append((node.name, before, after))
            self.values[node.name] = make(parts, before, after)
        else:
            self.values[node.name] = OPERATORS[node.op](parts)
        if node.op in FRESH:
            self._fresh.add(node.name)


def _fill(buffer: Array, what: str, name: str, given: Mapping[str, Array]) -> None:
    if name not in given:
        raise SpecError(f"{what} {name!r} is missing; {nearest(name, given)}")
    came = given[name]
    if came.shape != buffer.shape:
        raise SpecError(f"{what} {name!r}: expected shape {buffer.shape}, came {came.shape}")
    buffer[...] = came


def needed(network: Network, wanted: Sequence[str]) -> list[Node]:
    """Give the nodes that the wanted ones need, in the order in which they run."""
    nodes = {node.name: node for node in network.nodes}
    reached: set[str] = set()
    waiting = list(wanted)
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        if name not in nodes:
            raise ConfigError(f"the network has no node {name!r}; {nearest(name, nodes)}")
        if nodes[name].op not in KNOWN:
            raise ConfigError(
                f"node {name!r} has the unknown operator {nodes[name].op!r}; {nearest(nodes[name].op, KNOWN)}"
            )
        reached.add(name)
        if nodes[name].op != "input":
            waiting.extend(nodes[name].inputs)
    return [node for node in network.nodes if node.name in reached]


def evaluate(
    network: Network, weights: Weights, columns: Columns, wanted: Sequence[str], *, memory: Memory | None = None
) -> tuple[Columns, Memory]:
    """Compute the wanted nodes of one decision once, [N, …], and the memory after it; without memory, from zero."""
    name = next(node.inputs[0] for node in needed(network, wanted) if node.op == "input")
    lanes = len(columns[name])
    program = Program(network, weights, lanes, wanted)
    empty = {node: np.zeros((lanes, *shape), np.float32) for node, shape in network.memory.items()}
    values = program.run(columns, empty if memory is None else memory)
    return {name: values[name].copy() for name in wanted}, program.memory()
