"""Every operator in NumPy: its inputs' buffers in, its own buffer and the array operations that fill it out."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from farfield.types import Array

Step = Callable[[], object]
SMALL = 1 << 16  # weights of a layer that is worth no change of threads


class Parts(NamedTuple):
    """What an operator is made from, and the lists that it appends to."""

    inputs: list[Array]
    tensors: Mapping[str, Array]
    options: Mapping[str, Any]
    overwrite: bool  # nobody else reads the first input: it may hold the output
    steps: list[Step]  # run for every decision
    refresh: list[Step]  # run when tensors have changed


def _output(parts: Parts) -> Array:
    return parts.inputs[0] if parts.overwrite else np.empty_like(parts.inputs[0], np.float32)


def _normalise(parts: Parts) -> Array:
    x, mean, var = parts.inputs[0], parts.tensors["mean"], parts.tensors["var"]
    out, scale, clip = _output(parts), np.empty_like(var), np.float32(parts.options["clip"])
    parts.refresh.append(partial(np.add, var, np.float32(parts.options["epsilon"]), scale))
    parts.refresh.append(partial(np.sqrt, scale, scale))
    parts.steps.append(partial(np.subtract, x, mean, out))
    parts.steps.append(partial(np.divide, out, scale, out))
    parts.steps.append(partial(np.maximum, out, -clip, out=out))
    parts.steps.append(partial(np.minimum, out, clip, out=out))
    return out


def _scale(parts: Parts) -> Array:
    out = _output(parts)
    parts.steps.append(partial(np.multiply, parts.inputs[0], np.float32(parts.options["factor"]), out))
    if parts.options["offset"]:
        parts.steps.append(partial(np.add, out, np.float32(parts.options["offset"]), out))
    return out


def _dense(parts: Parts) -> Array:
    x, kernel = parts.inputs[0], parts.tensors["kernel"]
    if len(x) == 1 and kernel.size <= SMALL:
        return _dense_alone(parts)
    out = np.empty((len(x), kernel.shape[1]), np.float32)
    parts.steps.append(partial(np.dot, x, kernel, out))
    # With two axes: for one lane nothing is broadcast then, which takes a third of the time.
    parts.steps.append(partial(np.add, out, parts.tensors["bias"][None], out))
    return out


def _dense_alone(parts: Parts) -> Array:
    """Multiply one lane's row. `np.dot` lets go of the interpreter, and whoever waits for it is woken in vain, for

    nobody wakes up as fast as this is done: it costs several times the product. `np.vecmat` keeps it.
    """
    x, kernel, bias = parts.inputs[0], parts.tensors["kernel"], parts.tensors["bias"]
    out = row(kernel.shape[1])
    whole = x.base
    width = len(kernel)
    if whole is None or x.shape != (1, width) or whole.shape != (1, width + 1) or whole[0, width] != 1.0:
        parts.steps.append(partial(np.vecmat, x[0], kernel, out[0]))
        parts.steps.append(partial(np.add, out, bias[None], out))
        return out
    both = np.empty((width + 1, kernel.shape[1]), np.float32)  # what the 1 behind the row meets is the bias
    parts.refresh.append(partial(np.copyto, both[:-1], kernel))
    parts.refresh.append(partial(np.copyto, both[-1], bias))
    parts.steps.append(partial(np.vecmat, whole[0], both, out[0]))
    return out


def row(width: int) -> Array:
    """Give a buffer [1, width] with a 1 behind it, by which `dense` adds its bias in the same product."""
    whole = np.zeros((1, width + 1), np.float32)
    whole[0, width] = 1.0
    return whole[:, :width]


def _conv2d(parts: Parts) -> Array:
    kernel, stride, padding = parts.tensors["kernel"], parts.options["stride"], parts.options["padding"]
    size, _, depth, channels = kernel.shape
    padded = _padded(parts, padding, 0.0)
    windows = sliding_window_view(padded, (size, size), axis=(1, 2))[:, ::stride, ::stride]
    windows = windows.transpose(0, 1, 2, 4, 5, 3)  # [N, height, width, size, size, depth]
    patches = np.empty(windows.shape, np.float32)
    out = np.empty((math.prod(windows.shape[:3]), channels), np.float32)
    parts.steps.append(partial(np.copyto, patches, windows))
    flat = patches.reshape(len(out), size * size * depth)
    parts.steps.append(partial(np.dot, flat, kernel.reshape(-1, channels), out))
    parts.steps.append(partial(np.add, out, parts.tensors["bias"], out))
    return out.reshape(*windows.shape[:3], channels)


def _padded(parts: Parts, padding: int, value: float) -> Array:
    x = parts.inputs[0]
    if not padding:
        return x
    lanes, height, width, depth = x.shape
    padded = np.full((lanes, height + 2 * padding, width + 2 * padding, depth), value, np.float32)
    parts.steps.append(partial(np.copyto, padded[:, padding:-padding, padding:-padding], x))
    return padded


def _max_pool(parts: Parts) -> Array:
    size, stride, padding = parts.options["size"], parts.options["stride"], parts.options["padding"]
    padded = _padded(parts, padding, -np.inf)
    windows = sliding_window_view(padded, (size, size), axis=(1, 2))[:, ::stride, ::stride]
    out = np.empty(windows.shape[:4], np.float32)
    parts.steps.append(partial(np.copyto, out, windows[..., 0, 0]))
    for place in range(1, size * size):
        parts.steps.append(partial(np.maximum, out, windows[..., place // size, place % size], out=out))
    return out


def _embed(parts: Parts) -> Array:
    table, sizes = parts.tensors["table"], parts.options["sizes"]
    values = parts.inputs[0].reshape(len(parts.inputs[0]), len(sizes))
    offsets = np.cumsum((0, *sizes[:-1])).astype(np.int32)
    rows = np.empty(values.shape, np.int32)
    out = np.empty((*values.shape, table.shape[1]), np.float32)
    parts.steps.append(partial(np.clip, values, 0, np.int32(sizes) - 1, rows))
    parts.steps.append(partial(np.add, rows, offsets, rows))
    parts.steps.append(partial(np.take, table, rows, 0, out, "clip"))
    return out.reshape(len(values), -1)


def _one_hot(parts: Parts) -> Array:
    sizes = parts.options["sizes"]
    values = parts.inputs[0].reshape(len(parts.inputs[0]), len(sizes))
    out = np.empty((len(values), sum(sizes)), np.float32)
    start = 0
    for i, size in enumerate(sizes):
        codes = np.arange(size, dtype=np.int32)
        parts.steps.append(partial(np.equal, values[:, i, None], codes, out[:, start : start + size], casting="unsafe"))
        start += size
    return out


def _concat(parts: Parts) -> Array:
    out = np.empty((len(parts.inputs[0]), sum(x.shape[1] for x in parts.inputs)), np.float32)
    start = 0
    for x in parts.inputs:
        parts.steps.append(partial(np.copyto, out[:, start : start + x.shape[1]], x))
        start += x.shape[1]
    return out


def _reshape(parts: Parts) -> Array:
    return parts.inputs[0].reshape(len(parts.inputs[0]), *parts.options["shape"])


def _add(parts: Parts) -> Array:
    out = np.empty(np.broadcast_shapes(*(x.shape for x in parts.inputs)), np.float32)
    parts.steps.append(partial(np.add, *parts.inputs, out))
    return out


def _centre(parts: Parts) -> Array:
    x, out = parts.inputs[0], _output(parts)
    mean = np.empty((*x.shape[:-1], 1), np.float32)
    parts.steps.append(partial(np.mean, x, -1, None, mean, keepdims=True))
    parts.steps.append(partial(np.subtract, x, mean, out))
    return out


def _tanh(parts: Parts) -> Array:
    out = _output(parts)
    parts.steps.append(partial(np.tanh, parts.inputs[0], out))
    return out


def _relu(parts: Parts) -> Array:
    out = _output(parts)
    parts.steps.append(partial(np.maximum, parts.inputs[0], np.float32(0), out=out))
    return out


def _mask(parts: Parts) -> Array:
    x, allowed = parts.inputs
    out, forbidden = np.empty_like(x), np.empty(x.shape, bool)
    parts.steps.append(partial(np.copyto, out, x))
    parts.steps.append(partial(np.less_equal, allowed, 0, forbidden))
    parts.steps.append(partial(np.putmask, out, forbidden, np.float32(parts.options["value"])))
    return out


def _gates(parts: Parts, hidden: Array) -> tuple[Array, Array]:
    """Give the projections of input (with bias) and state [N, gates * H], each in a buffer of its own."""
    x, tensors = parts.inputs[0], parts.tensors
    a, b = (np.empty((len(x), tensors["bias"].size), np.float32) for _ in range(2))
    parts.steps.append(partial(np.dot, x, tensors["input"], a))
    parts.steps.append(partial(np.add, a, tensors["bias"], a))
    parts.steps.append(partial(np.dot, hidden, tensors["recurrent"], b))
    return a, b


def _sigmoid(parts: Parts, x: Array) -> None:
    """Squash in place: 1 / (1 + exp(-x)), written with tanh so that nothing overflows."""
    half = np.float32(0.5)
    parts.steps.append(partial(np.multiply, x, half, x))
    parts.steps.append(partial(np.tanh, x, x))
    parts.steps.append(partial(np.multiply, x, half, x))
    parts.steps.append(partial(np.add, x, half, x))


def _gru(parts: Parts, before: Array, after: Array) -> Array:
    width = before.shape[1]
    a, b = _gates(parts, before)
    gates = a[:, : 2 * width]
    parts.steps.append(partial(np.add, gates, b[:, : 2 * width], gates))
    _sigmoid(parts, gates)
    reset, update, candidate, part = a[:, :width], a[:, width : 2 * width], a[:, 2 * width :], b[:, 2 * width :]
    parts.steps.append(partial(np.multiply, part, reset, part))
    parts.steps.append(partial(np.add, candidate, part, candidate))
    parts.steps.append(partial(np.tanh, candidate, candidate))
    # (1 - update) * candidate + update * before = candidate + update * (before - candidate)
    parts.steps.append(partial(np.subtract, before, candidate, after))
    parts.steps.append(partial(np.multiply, after, update, after))
    parts.steps.append(partial(np.add, after, candidate, after))
    return after


def _lstm(parts: Parts, before: Array, after: Array) -> Array:
    width = before.shape[1] // 2
    hidden, out = np.empty((len(before), width), np.float32), np.empty((len(before), width), np.float32)
    parts.steps.append(partial(np.copyto, hidden, before[:, :width]))
    a, b = _gates(parts, hidden)
    parts.steps.append(partial(np.add, a, b, a))
    _sigmoid(parts, a[:, : 2 * width])
    _sigmoid(parts, a[:, 3 * width :])
    gate_in, forget, new, gate_out = (a[:, i * width : (i + 1) * width] for i in range(4))
    cell = after[:, width:]
    parts.steps.append(partial(np.tanh, new, new))
    parts.steps.append(partial(np.multiply, gate_in, new, new))
    parts.steps.append(partial(np.multiply, forget, before[:, width:], cell))
    parts.steps.append(partial(np.add, cell, new, cell))
    parts.steps.append(partial(np.tanh, cell, out))
    parts.steps.append(partial(np.multiply, out, gate_out, out))
    parts.steps.append(partial(np.copyto, after[:, :width], out))
    return out


OPERATORS: dict[str, Callable[[Parts], Array]] = {
    "normalise": _normalise,
    "scale": _scale,
    "dense": _dense,
    "conv2d": _conv2d,
    "max_pool": _max_pool,
    "embed": _embed,
    "one_hot": _one_hot,
    "concat": _concat,
    "reshape": _reshape,
    "add": _add,
    "centre": _centre,
    "tanh": _tanh,
    "relu": _relu,
    "mask": _mask,
}
# operator -> how it is made, how many vectors its state holds
RECURRENT: dict[str, tuple[Callable[[Parts, Array, Array], Array], int]] = {"gru": (_gru, 1), "lstm": (_lstm, 2)}
KNOWN = frozenset(OPERATORS) | frozenset(RECURRENT) | {"input", "param"}
# Their outputs lie in buffers of their own, which a following operator may overwrite if it is the only reader.
FRESH = frozenset({"normalise", "scale", "dense", "conv2d", "max_pool", "concat", "add", "tanh", "relu"})
