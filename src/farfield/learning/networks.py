"""A configuration and a spec into a network as data, and a network into its first weights."""

import math
import zlib
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Literal, get_args

import numpy as np
from msgspec import Meta, Struct

from farfield.errors import ConfigError, nearest
from farfield.learning.encoders import encode
from farfield.learning.sketch import Sketch
from farfield.types import Array, Field, Head, Kind, Network, Node, Spec, Weights

Width = Annotated[int, Meta(ge=1)]
Style = Literal["policy", "q", "policy_only"]
Shape = tuple[int, ...]


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """What a network looks like."""

    kind: Annotated[
        str,
        Meta(description="mlp flattens all; cnn convolves pictures; lstm and gru remember; or your module:function"),
    ] = "mlp"
    hidden: Annotated[
        tuple[Width, ...] | None,
        Meta(description="widths of the dense layers; by default 64, 64, and none after convolved pictures"),
    ] = None
    activation: Annotated[Literal["tanh", "relu"], Meta(description="after every dense layer of `hidden`")] = "tanh"
    shared: Annotated[
        bool | None,
        Meta(description="one trunk for policy and value; by default only for cnn, lstm and gru"),
    ] = None
    normalise: Annotated[bool, Meta(description="normalise Box observations by their running mean and variance")] = (
        False
    )
    cnn: Annotated[
        Literal["nature", "impala", "flat"],
        Meta(description="how cnn, lstm and gru see pictures; flat: not convolved"),
    ] = "nature"
    core: Annotated[int, Meta(ge=1, description="width of the recurrent core")] = 64
    embed: Annotated[int, Meta(ge=1, description="width of a choice among more than 32 values")] = 16


def build(
    config: Config, spec: Spec, *, style: Style, log_std: Literal["free", "state"] = "free", dueling: bool = False
) -> Network:
    """Draw the network of a spec.

    policy: heads, and outputs["value"] [lanes] · policy_only: heads alone · q: one epsilon head, and outputs["q"].
    """
    if ":" in config.kind:
        network = _own(config.kind, spec)
        _check_own(config.kind, network, spec, style)
        return network
    _check(config, spec)
    sketch = Sketch()
    match style:
        case "q":
            return _q_network(sketch, config, spec, dueling)
        case "policy_only":
            ends = _torso(sketch, config, spec, ("policy",))
            return sketch.finish(_policy_heads(sketch, spec, ends["policy"], log_std), {})
        case "policy":
            ends = _torso(sketch, config, spec, ("policy", "value"))
            heads = _policy_heads(sketch, spec, ends["policy"], log_std)
            value = sketch.dense("value/out", ends["value"], 1)
            value = sketch.node("value", "reshape", (value,), (), options={"shape": []})
            return sketch.finish(heads, {"value": value})
        case _:
            raise ConfigError(f"unknown style {style!r} of a network; {nearest(style, get_args(Style))}")


def _own(kind: str, spec: Spec) -> Network:
    """Call somebody's function from a Spec to a Network."""
    module, _, function = kind.partition(":")
    try:
        build = getattr(import_module(module), function)
    except (ModuleNotFoundError, AttributeError) as error:
        cure = "name a function that Python can import, as module:function"
        raise ConfigError(f"[network] kind = {kind!r}: {error}; {cure}") from error
    network = build(spec)
    if not isinstance(network, Network):
        raise ConfigError(f"[network] kind = {kind!r} gave {type(network).__name__}, expected a farfield.types.Network")
    return network


def _check_own(kind: str, network: Network, spec: Spec, style: Style) -> None:
    """Refuse a network that lacks what its algorithm will ask it for."""
    from farfield.learning.graph import KNOWN  # brings JAX, which actors and the command line do without

    nodes = {node.name for node in network.nodes}
    wanted = {"policy": ("value",), "q": ("q",), "policy_only": ()}[style]
    tensors = {name for node in network.nodes for name in node.tensors.values()}
    faults = [f"node {node.name!r} has the unknown op {node.op!r}" for node in network.nodes if node.op not in KNOWN]
    faults += [f"tensor {name!r} is not declared in tensors" for name in sorted(tensors - network.tensors.keys())]
    faults += [f"outputs has no {name!r}" for name in wanted if network.outputs.get(name) not in nodes]
    decided = [head.action for head in network.heads]
    faults += [f"no head decides {field.name!r}" for field in spec.actions if decided.count(field.name) != 1]
    faults += [f"head {head.action!r} reads no node" for head in network.heads if not nodes.issuperset(head.inputs)]
    if style == "q" and [head.kind for head in network.heads] != ["epsilon"]:
        faults.append('action values need one head, of kind "epsilon"')
    if faults:
        raise ConfigError(f"[network] kind = {kind!r}: {faults[0]}; docs/networks.md says what a network has")


def _check(config: Config, spec: Spec) -> None:
    choices = {
        "kind": ("mlp", "cnn", "lstm", "gru"),
        "activation": ("tanh", "relu"),
        "cnn": ("nature", "impala", "flat"),
    }
    for key, known in choices.items():
        if getattr(config, key) not in known:
            raise ConfigError(
                f"[network] {key} = {getattr(config, key)!r} is unknown; {nearest(getattr(config, key), known)}"
            )
    for key, widths in (("hidden", config.hidden or ()), ("core", (config.core,)), ("embed", (config.embed,))):
        if min(widths, default=1) < 1:
            raise ConfigError(f"[network] {key} = {getattr(config, key)!r}: widths must be at least 1")
    fields = _fields(spec)
    if not fields or not spec.actions:
        raise ConfigError(
            "a network needs at least one observation that is not a mask, and one action; the spec lacks them"
        )
    if config.kind == "cnn" and config.cnn == "flat":
        raise ConfigError('[network] kind = "cnn" with cnn = "flat" convolves nothing; use kind = "mlp"')
    if config.kind == "cnn" and not any(field.image for field in fields):
        seen = ", ".join(f"{field.name} {field.dtype}{list(field.shape)}" for field in fields)
        raise ConfigError(
            f'[network] kind = "cnn" needs pictures (uint8, height x width x channels), but observations are {seen}; '
            'use kind = "mlp"'
        )


def _fields(spec: Spec) -> list[Field]:
    return [field for field in spec.observations if field.name != "mask" and not field.name.startswith("mask/")]


def _torso(sketch: Sketch, config: Config, spec: Spec, branches: Sequence[str]) -> dict[str, str]:
    """Give each branch its features: from trunks of their own, or from one trunk (and core) for all.

    A core is always one for all: actors carry its memory, and the critic never travels to them.
    """
    recurrent = config.kind in ("lstm", "gru")
    if not (recurrent or (config.kind == "cnn" if config.shared is None else config.shared)):
        return {branch: _trunk(sketch, config, spec, branch) for branch in branches}
    end = _trunk(sketch, config, spec, "trunk" if len(branches) > 1 else branches[0])
    if recurrent:
        end = sketch.recurrent("core", end, config.kind, config.core)
        if config.shared is False and len(branches) > 1:
            return {branch: sketch.layers(branch, end, (config.core,), config.activation) for branch in branches}
    return dict.fromkeys(branches, end)


def _trunk(sketch: Sketch, config: Config, spec: Spec, prefix: str) -> str:
    fields = _fields(spec)
    pictures = "flat" if config.kind == "mlp" else config.cnn
    parts = [
        encode(sketch, field, prefix, pictures=pictures, embed=config.embed, normalise=config.normalise)
        for field in fields
    ]
    convolved = pictures != "flat" and any(field.image for field in fields)
    hidden = config.hidden if config.hidden is not None else () if convolved else (64, 64)
    return sketch.layers(prefix, sketch.concat(f"{prefix}/concat", parts), hidden, config.activation)


def _policy_heads(sketch: Sketch, spec: Spec, source: str, log_std: str) -> list[Head]:
    if log_std not in ("free", "state"):
        raise ConfigError(f"log_std = {log_std!r} is unknown; {nearest(log_std, ('free', 'state'))}")
    heads: list[Head] = []
    for field in spec.actions:
        name = f"policy/{field.name}"
        match field.kind:
            case Kind.DISCRETE | Kind.MULTI_DISCRETE:
                logits = sketch.dense(f"{name}/logits", source, sum(field.sizes))
                heads.append(Head(field.name, "categorical", (_masked(sketch, spec, field, logits),)))
            case Kind.MULTI_BINARY:
                logits = sketch.dense(f"{name}/logits", source, math.prod(field.shape))
                heads.append(Head(field.name, "bernoulli", (_masked(sketch, spec, field, logits),)))
            case Kind.BOX:
                if field.mask:
                    raise ConfigError(
                        f"action {field.name!r} is a Box and cannot be masked; remove mask {field.mask!r}"
                    )
                width = math.prod(field.shape)
                mean = sketch.dense(f"{name}/mean", source, width)
                if log_std == "free":
                    spread = sketch.param(f"{name}/log_std", (width,))
                else:
                    spread = sketch.dense(f"{name}/log_std", source, width)
                heads.append(Head(field.name, "gaussian", (mean, spread)))
    return heads


def _q_network(sketch: Sketch, config: Config, spec: Spec, dueling: bool) -> Network:
    field = spec.actions[0]
    if len(spec.actions) != 1 or field.kind is not Kind.DISCRETE:
        came = ", ".join(f"{action.name} ({action.kind})" for action in spec.actions)
        raise ConfigError(f"action values need exactly one Discrete action, but there is {came}; use ppo or reinforce")
    end = _torso(sketch, config, spec, ("q",))["q"]
    if dueling:
        value = sketch.dense("q/value", end, 1)
        centred = sketch.plain("q/centred", "centre", sketch.dense("q/advantage", end, field.sizes[0]))
        q = sketch.node("q/add", "add", (centred, value), (field.sizes[0],))
    else:
        q = sketch.dense("q/out", end, field.sizes[0])
    q = _masked(sketch, spec, field, q)
    epsilon = sketch.param("epsilon", (), trainable=False)
    return sketch.finish([Head(field.name, "epsilon", (q, epsilon))], {"q": q})


def _masked(sketch: Sketch, spec: Spec, field: Field, logits: str) -> str:
    if not field.mask:
        return logits
    columns = {column.name: column for column in spec.observations}
    if field.mask not in columns:
        raise ConfigError(
            f"mask {field.mask!r} of action {field.name!r} is no observation; {nearest(field.mask, columns)}"
        )
    return sketch.masked(f"{logits}/masked", logits, columns[field.mask])


def initialise(network: Network, *, seed: int) -> Weights:
    """Draw the first weights: orthogonal kernels (gain √2, 0.01 for policy heads, 1 for values), zero biases."""
    weights = {name: np.zeros(tensor.shape, tensor.dtype) for name, tensor in network.tensors.items()}
    gains = _gains(network)
    for node in network.nodes:
        for role, name in node.tensors.items():
            # Each tensor has a generator of its own: adding a layer leaves the others as they were.
            rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
            weights[name][...] = _first(node, role, network.tensors[name].shape, gains.get(node.name, 2**0.5), rng)
    for head in network.heads:
        if head.kind == "epsilon":
            weights[head.inputs[1]][...] = 1.0
    return weights


def _first(node: Node, role: str, shape: Shape, gain: float, rng: np.random.Generator) -> Array | float:
    match node.op, role:
        case (("dense" | "conv2d"), "kernel"):
            return _orthogonal(rng, math.prod(shape[:-1]), shape[-1], gain).reshape(shape)
        case (("gru" | "lstm"), ("input" | "recurrent")):
            width = shape[1] // (4 if node.op == "lstm" else 3)
            return np.concatenate([_orthogonal(rng, shape[0], width, 1.0) for _ in range(shape[1] // width)], axis=1)
        case "lstm", "bias":  # gates are in, forget, cell, out: begin by not forgetting
            width = shape[0] // 4
            return np.repeat(np.array([0.0, 1.0, 0.0, 0.0]), width)
        case "embed", "table":
            return rng.standard_normal(shape)
        case "normalise", "var":
            return 1.0
        case _:
            return 0.0


def _orthogonal(rng: np.random.Generator, rows: int, columns: int, gain: float) -> Array:
    tall = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(tall)
    q *= np.sign(np.diag(r))
    return gain * (q if rows >= columns else q.T)


def _gains(network: Network) -> dict[str, float]:
    """Name the last dense layers: what heads and outputs reach through operators without tensors."""
    nodes = {node.name: node for node in network.nodes}
    gains: dict[str, float] = {}

    def walk(name: str, gain: float) -> None:
        if name in nodes and nodes[name].op == "dense":
            gains[name] = gain
        elif name in nodes and nodes[name].op in ("mask", "reshape", "add", "centre"):
            for source in nodes[name].inputs:
                walk(source, gain)

    for head in network.heads:
        for name in head.inputs:
            walk(name, 1.0 if head.kind == "epsilon" else 0.01)
    for name in network.outputs.values():
        walk(name, 1.0)
    return gains
