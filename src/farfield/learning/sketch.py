"""A network being drawn: nodes are added one by one, shapes and tensors follow; comes out as `types.Network`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from farfield.errors import ConfigError
from farfield.types import Field, Head, Kind, Network, Node, Tensor

Shape = tuple[int, ...]


class Sketch:
    """A graph under construction; every method that adds a node gives its name, and adds it only once.

    Options are plain JSON (lists, no tuples), so that a network read back equals the one that was written.
    """

    def __init__(self) -> None:
        self.shapes: dict[str, Shape] = {}  # node -> shape of its output, without lanes
        self.memory: dict[str, Shape] = {}
        self._nodes: list[Node] = []
        self._tensors: dict[str, Tensor] = {}

    def node(
        self,
        name: str,
        op: str,
        inputs: Sequence[str],
        shape: Shape,
        *,
        tensors: Mapping[str, Tensor] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Add a node whose tensors are called `<node>/<role>`."""
        if name not in self.shapes:
            named = {role: f"{name}/{role}" for role in tensors or {}}
            self._tensors |= {named[role]: tensor for role, tensor in (tensors or {}).items()}
            self._nodes.append(Node(name, op, tuple(inputs), named, dict(options or {})))
            self.shapes[name] = shape
        return name

    def width(self, source: str) -> int:
        """Count the values of one lane."""
        return math.prod(self.shapes[source])

    def column(self, field: Field) -> str:
        """Read an observation column."""
        dtype = {Kind.DISCRETE: "int32", Kind.MULTI_DISCRETE: "int32"}.get(field.kind, "float32")
        options = {"shape": list(field.shape), "dtype": dtype}
        return self.node(f"input/{field.name}", "input", (field.name,), field.shape, options=options)

    def plain(self, name: str, op: str, source: str) -> str:
        """Apply something that has no tensors and keeps the shape."""
        return self.node(name, op, (source,), self.shapes[source])

    def flat(self, source: str) -> str:
        """Make one axis of all axes; nothing to do where there is one."""
        if len(self.shapes[source]) == 1:
            return source
        shape = (self.width(source),)
        return self.node(f"{source}/flat", "reshape", (source,), shape, options={"shape": list(shape)})

    def concat(self, name: str, sources: Sequence[str]) -> str:
        """Put flat nodes after one another; one alone stays as it is."""
        if len(sources) == 1:
            return sources[0]
        return self.node(name, "concat", sources, (sum(self.width(source) for source in sources),))

    def dense(self, name: str, source: str, width: int) -> str:
        """Multiply by a matrix and add a bias."""
        tensors = {"kernel": Tensor((self.width(source), width)), "bias": Tensor((width,))}
        return self.node(name, "dense", (source,), (width,), tensors=tensors)

    def layers(self, prefix: str, source: str, widths: Sequence[int], activation: str) -> str:
        """Stack dense layers `<prefix>/0`, `<prefix>/1`, …, each with its activation."""
        for number, width in enumerate(widths):
            name = self.dense(f"{prefix}/{number}", source, width)
            source = self.plain(f"{name}/{activation}", activation, name)
        return source

    def conv(self, name: str, source: str, channels: int, *, size: int, stride: int = 1, padding: int = 0) -> str:
        """Convolve pictures [height, width, channels] with square kernels."""
        height, width, depth = self.shapes[source]
        after = [(side + 2 * padding - size) // stride + 1 for side in (height, width)]
        tensors = {"kernel": Tensor((size, size, depth, channels)), "bias": Tensor((channels,))}
        options = {"stride": stride, "padding": padding}
        return self.node(name, "conv2d", (source,), (*after, channels), tensors=tensors, options=options)

    def pool(self, name: str, source: str, *, size: int, stride: int, padding: int) -> str:
        """Take the largest value of every window, channel by channel."""
        height, width, depth = self.shapes[source]
        after = [(side + 2 * padding - size) // stride + 1 for side in (height, width)]
        options = {"size": size, "stride": stride, "padding": padding}
        return self.node(name, "max_pool", (source,), (*after, depth), options=options)

    def recurrent(self, name: str, source: str, kind: str, width: int) -> str:
        """Remember: a GRU or an LSTM."""
        gates = 4 if kind == "lstm" else 3
        tensors = {
            "input": Tensor((self.width(source), gates * width)),
            "recurrent": Tensor((width, gates * width)),
            "bias": Tensor((gates * width,)),
        }
        self.memory[name] = (2 * width,) if kind == "lstm" else (width,)
        return self.node(name, kind, (source,), (width,), tensors=tensors)

    def param(self, name: str, shape: Shape, *, trainable: bool = True) -> str:
        """Give a tensor, called as its node, to every lane."""
        self._tensors.setdefault(name, Tensor(shape, trainable=trainable))
        if name not in self.shapes:
            self._nodes.append(Node(name, "param", (), {"tensor": name}))
            self.shapes[name] = shape
        return name

    def masked(self, name: str, source: str, mask: Field) -> str:
        """Put a large negative number where a mask column forbids."""
        column = self.flat(self.column(mask))
        if self.shapes[column] != self.shapes[source]:
            raise ConfigError(
                f"mask {mask.name!r} has {self.width(column)} values, but {name!r} chooses among "
                f"{self.width(source)}; give the mask one value for each choice"
            )
        return self.node(name, "mask", (source, column), self.shapes[source], options={"value": -1e9})

    def finish(self, heads: Sequence[Head], outputs: Mapping[str, str]) -> Network:
        """Give the finished network."""
        return Network(tuple(self._nodes), self._tensors, tuple(heads), dict(outputs), self.memory)
