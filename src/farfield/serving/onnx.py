"""A network and its weights into an ONNX model that acts greedily, and a check that the model decides as we do."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from farfield.errors import CorruptError, MissingError
from farfield.serving import decisions
from farfield.serving.interpreter import evaluate, needed
from farfield.types import Array, Columns, Field, Head, Kind, Memory, Network, Node, Spec, Weights

try:
    import onnx
    import onnxruntime
except ImportError as error:
    raise MissingError(f"ONNX needs the package {error.name}; pip install farfield[onnx]") from error

OPSET, IR = 17, 8  # old enough for the runtimes of the last years


def export(spec: Spec, network: Network, weights: Weights) -> bytes:
    """Write an ONNX model: observation columns and "memory/<node>" in; actions, head inputs, "after/<node>" out.

    Where `weights` hold the critic too, outputs such as "value" come as well. The number of lanes is free.
    """
    wanted = _wanted(network, weights)
    nodes = needed(network, wanted)
    columns = {node.inputs[0] for node in nodes if node.op == "input"}
    observed = [field for field in spec.observations if field.name in columns]
    graph = _Graph(network, weights, observed[0].name)
    for node in nodes:
        graph.add(node)
    fields = {field.name: field for field in spec.actions}
    for head in network.heads:
        graph.decide(head, fields[head.action])
    states = [(name, network.memory[name]) for name in graph.recurrent]
    inputs = [_info(field.name, field.dtype, field.shape) for field in observed]
    inputs += [_info(f"memory/{name}", "float32", shape) for name, shape in states]
    outputs = [_info(field.name, field.dtype, field.shape) for field in spec.actions]
    outputs += [_info(f"after/{name}", "float32", shape) for name, shape in states]
    nothing = {field.name: np.zeros((1, *field.shape), field.dtype) for field in observed}
    found, _ = evaluate(network, weights, nothing, wanted)
    outputs += [_info(name, "float32", value.shape[1:]) for name, value in found.items()]
    made = onnx.helper.make_graph(graph.nodes, "farfield", inputs, outputs, graph.constants)
    opset = onnx.helper.make_opsetid("", OPSET)
    model = onnx.helper.make_model(made, opset_imports=[opset], ir_version=IR, producer_name="farfield")
    onnx.checker.check_model(model)
    return model.SerializeToString()


def load(model: bytes) -> Callable[[Columns, Memory], tuple[Columns, Memory]]:
    """Open an exported model: gives a function from columns and memory [N, …] to all outputs and the memory after."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    asked = {one.name for one in session.get_inputs()}
    names = [one.name for one in session.get_outputs()]

    def run(columns: Columns, memory: Memory) -> tuple[Columns, Memory]:
        given = columns | {f"memory/{name}": value for name, value in memory.items()}
        came: Sequence[Any] = session.run(names, {name: value for name, value in given.items() if name in asked})
        found: Columns = dict(zip(names, came, strict=True))
        after = {name.removeprefix("after/"): value for name, value in found.items() if name.startswith("after/")}
        return {name: value for name, value in found.items() if not name.startswith("after/")}, after

    return run


def check(model: bytes, spec: Spec, network: Network, weights: Weights, tolerance: float = 1e-5) -> float:
    """Compare a model with our own interpreter on random inputs; give the largest difference."""
    rng = np.random.default_rng(0)
    obs = {field.name: _draw(field, 16, rng) for field in spec.observations}
    state = {name: rng.uniform(-1, 1, (16, *shape)).astype(np.float32) for name, shape in network.memory.items()}
    came, after = load(model)(obs, state)
    expected, expected_after = evaluate(network, weights, obs, _wanted(network, weights), memory=state)
    worst = 0.0
    for name, value in [*expected.items(), *expected_after.items()]:
        other = came[name] if name in came else after[name]
        difference = float(np.max(np.abs(other - value) / np.maximum(1.0, np.abs(value)), initial=0.0))
        if not difference <= tolerance:
            raise CorruptError(
                f"ONNX output {name!r} differs by {difference:.1e} where at most {tolerance:.1e} was expected; "
                "export again from the same weights, and report it if it stays"
            )
        worst = max(worst, difference)
    for action, decide, inputs, _ in decisions.deciders(spec, network):
        if not np.array_equal(decide([came[name] for name in inputs], None), came[action]):
            raise CorruptError(f"ONNX output {action!r} is not the action that its head inputs mean; export again")
    return worst


def _wanted(network: Network, weights: Weights) -> list[str]:
    """Name the float outputs: head inputs, and what learning reads as far as its tensors are there."""
    wanted = dict.fromkeys(name for head in network.heads for name in head.inputs)
    for name in network.outputs.values():
        tensors = (tensor for node in needed(network, [name]) for tensor in node.tensors.values())
        if all(tensor in weights for tensor in tensors):
            wanted[name] = None
    return list(wanted)


def _info(name: str, dtype: str, shape: tuple[int, ...]) -> Any:
    return onnx.helper.make_tensor_value_info(name, _code(dtype), ["lanes", *shape])


def _code(dtype: str) -> int:
    return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def _draw(field: Field, lanes: int, rng: np.random.Generator) -> Array:
    shape = (lanes, *field.shape)
    match field.kind:
        case Kind.DISCRETE | Kind.MULTI_DISCRETE:
            return rng.integers(0, np.array(field.sizes).reshape(field.shape), shape).astype(field.dtype)
        case Kind.MULTI_BINARY:
            values = rng.integers(0, 2, shape).astype(field.dtype)
            values[..., :1] = 1  # a mask must allow something
            return values
        case Kind.BOX if field.dtype.startswith("float"):
            return rng.standard_normal(shape).astype(field.dtype)
        case Kind.BOX:
            return rng.integers(0, 100, shape).astype(field.dtype)


class _Graph:
    """An ONNX graph being written; values are called as the network's nodes."""

    def __init__(self, network: Network, weights: Weights, column: str) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.recurrent: list[str] = []
        self._network, self._weights, self._column = network, weights, column

    def op(self, kind: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Add an ONNX operator with one output."""
        output = output or f"{kind}:{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, value: Any, dtype: str = "float32") -> str:
        """Add an array."""
        name = f"constant:{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def cut(self, source: str, start: int, end: int) -> str:
        """Take columns start … end of [N, width]."""
        bounds = [self.constant([number], "int64") for number in (start, end, 1)]
        return self.op("Slice", [source, *bounds])

    def reshape(self, source: str, shape: Sequence[int], output: str = "") -> str:
        """Give every lane another shape."""
        return self.op("Reshape", [source, self.constant([0, *shape] if shape else [-1], "int64")], output)

    def add(self, node: Node) -> None:
        """Add a node of the network."""
        tensors = {role: self._weights[name] for role, name in node.tensors.items()}
        if node.op == "input":
            self.op("Cast", node.inputs, node.name, to=_code(node.options["dtype"]))
        elif node.op == "param":
            lanes = self.op("Shape", [self._column], start=0, end=1)
            shape = self.op("Concat", [lanes, self.constant(tensors["tensor"].shape, "int64")], axis=0)
            self.op("Expand", [self.constant(tensors["tensor"]), shape], node.name)
        elif node.op in ("gru", "lstm"):
            self.recurrent.append(node.name)
            (_lstm if node.op == "lstm" else _gru)(self, node, tensors)
        elif node.op in SIMPLE:
            self.op(SIMPLE[node.op], node.inputs, node.name)
        else:
            OPERATORS[node.op](self, node, tensors)

    def decide(self, head: Head, field: Field) -> None:
        """Add the greedy action of a head."""
        source = head.inputs[0]
        match head.kind:
            case "gaussian":
                self.reshape(source, field.shape, field.name)
            case "bernoulli":
                on = self.op("Greater", [source, self.constant(0)])
                self.reshape(self.op("Cast", [on], to=_code(field.dtype)), field.shape, field.name)
            case "categorical" | "epsilon":
                ends = list(accumulate(field.sizes))
                blocks = [self.cut(source, end - size, end) for end, size in zip(ends, field.sizes, strict=True)]
                best = [self.op("ArgMax", [block], axis=1, keepdims=1) for block in blocks]
                chosen = self.op("Cast", [self.op("Concat", best, axis=1)], to=_code(field.dtype))
                self.reshape(chosen, field.shape, field.name)


def _normalise(graph: _Graph, node: Node, tensors: Columns) -> None:
    clip = node.options["clip"]
    deviation = np.sqrt(tensors["var"] + np.float32(node.options["epsilon"]))
    scaled = graph.op("Sub", [*node.inputs, graph.constant(tensors["mean"])])
    scaled = graph.op("Div", [scaled, graph.constant(deviation)])
    graph.op("Clip", [scaled, graph.constant(-clip), graph.constant(clip)], node.name)


def _scale(graph: _Graph, node: Node, tensors: Columns) -> None:
    scaled = graph.op("Mul", [*node.inputs, graph.constant(node.options["factor"])])
    graph.op("Add", [scaled, graph.constant(node.options["offset"])], node.name)


def _dense(graph: _Graph, node: Node, tensors: Columns) -> None:
    product = graph.op("MatMul", [*node.inputs, graph.constant(tensors["kernel"])])
    graph.op("Add", [product, graph.constant(tensors["bias"])], node.name)


def _conv2d(graph: _Graph, node: Node, tensors: Columns) -> None:
    stride, padding = node.options["stride"], node.options["padding"]
    first = graph.op("Transpose", node.inputs, perm=[0, 3, 1, 2])
    arrays = [graph.constant(tensors["kernel"].transpose(3, 2, 0, 1)), graph.constant(tensors["bias"])]
    out = graph.op("Conv", [first, *arrays], strides=[stride] * 2, pads=[padding] * 4)
    graph.op("Transpose", [out], node.name, perm=[0, 2, 3, 1])


def _max_pool(graph: _Graph, node: Node, tensors: Columns) -> None:
    size, stride, padding = node.options["size"], node.options["stride"], node.options["padding"]
    first = graph.op("Transpose", node.inputs, perm=[0, 3, 1, 2])
    out = graph.op("MaxPool", [first], kernel_shape=[size] * 2, strides=[stride] * 2, pads=[padding] * 4)
    graph.op("Transpose", [out], node.name, perm=[0, 2, 3, 1])


def _one_hot(graph: _Graph, node: Node, tensors: Columns) -> None:
    sizes = node.options["sizes"]
    owner = np.repeat(np.arange(len(sizes)), sizes)
    codes = np.concatenate([np.arange(size) for size in sizes])
    values = graph.reshape(node.inputs[0], [len(sizes)])
    spread = graph.op("Gather", [values, graph.constant(owner, "int64")], axis=1)
    same = graph.op("Equal", [spread, graph.constant(codes, "int32")])
    graph.op("Cast", [same], node.name, to=onnx.TensorProto.FLOAT)


def _embed(graph: _Graph, node: Node, tensors: Columns) -> None:
    sizes = np.array(node.options["sizes"])
    values = graph.op("Cast", [graph.reshape(node.inputs[0], [len(sizes)])], to=onnx.TensorProto.INT64)
    values = graph.op("Max", [values, graph.constant(0, "int64")])
    values = graph.op("Min", [values, graph.constant(sizes - 1, "int64")])
    rows = graph.op("Add", [values, graph.constant(np.cumsum(sizes) - sizes, "int64")])
    found = graph.op("Gather", [graph.constant(tensors["table"]), rows], axis=0)
    graph.reshape(found, [len(sizes) * tensors["table"].shape[1]], node.name)


def _centre(graph: _Graph, node: Node, tensors: Columns) -> None:
    graph.op("Sub", [*node.inputs, graph.op("ReduceMean", node.inputs, axes=[-1], keepdims=1)], node.name)


def _mask(graph: _Graph, node: Node, tensors: Columns) -> None:
    allowed = graph.op("Greater", [node.inputs[1], graph.constant(0)])
    graph.op("Where", [allowed, node.inputs[0], graph.constant(node.options["value"])], node.name)


def _gru(graph: _Graph, node: Node, tensors: Columns) -> None:
    width, before = len(tensors["recurrent"]), f"memory/{node.name}"
    x = graph.op("MatMul", [*node.inputs, graph.constant(tensors["input"])])
    x = graph.op("Add", [x, graph.constant(tensors["bias"])])
    h = graph.op("MatMul", [before, graph.constant(tensors["recurrent"])])
    parts = [(graph.cut(x, i * width, (i + 1) * width), graph.cut(h, i * width, (i + 1) * width)) for i in range(3)]
    reset, update = (graph.op("Sigmoid", [graph.op("Add", parts[i])]) for i in range(2))
    candidate = graph.op("Mul", [reset, parts[2][1]])
    candidate = graph.op("Tanh", [graph.op("Add", [parts[2][0], candidate])])
    kept = graph.op("Mul", [update, graph.op("Sub", [before, candidate])])
    graph.op("Add", [candidate, kept], node.name)
    graph.op("Identity", [node.name], f"after/{node.name}")


def _lstm(graph: _Graph, node: Node, tensors: Columns) -> None:
    width, before = len(tensors["recurrent"]), f"memory/{node.name}"
    x = graph.op("MatMul", [*node.inputs, graph.constant(tensors["input"])])
    x = graph.op("Add", [x, graph.constant(tensors["bias"])])
    h = graph.op("MatMul", [graph.cut(before, 0, width), graph.constant(tensors["recurrent"])])
    x = graph.op("Add", [x, h])
    gates = [graph.cut(x, i * width, (i + 1) * width) for i in range(4)]
    gate_in, forget, new, gate_out = (graph.op("Tanh" if i == 2 else "Sigmoid", [gates[i]]) for i in range(4))
    kept = graph.op("Mul", [forget, graph.cut(before, width, 2 * width)])
    cell = graph.op("Add", [kept, graph.op("Mul", [gate_in, new])])
    graph.op("Mul", [gate_out, graph.op("Tanh", [cell])], node.name)
    graph.op("Concat", [node.name, cell], f"after/{node.name}", axis=1)


def _concat(graph: _Graph, node: Node, tensors: Columns) -> None:
    graph.op("Concat", node.inputs, node.name, axis=1)


def _reshape(graph: _Graph, node: Node, tensors: Columns) -> None:
    graph.reshape(node.inputs[0], node.options["shape"], node.name)


SIMPLE = {"add": "Add", "tanh": "Tanh", "relu": "Relu"}
OPERATORS: dict[str, Callable[[_Graph, Node, Columns], None]] = {
    "normalise": _normalise,
    "scale": _scale,
    "dense": _dense,
    "conv2d": _conv2d,
    "max_pool": _max_pool,
    "embed": _embed,
    "one_hot": _one_hot,
    "concat": _concat,
    "reshape": _reshape,
    "centre": _centre,
    "mask": _mask,
}
