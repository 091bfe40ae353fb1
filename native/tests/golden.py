"""Networks, programs and noise in NumPy in; tests/golden/native.json, which the unit tests of the core read, out."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from farfield.canonical import to_json
from farfield.experience import noise, slots, tracks
from farfield.learning import networks
from farfield.learning.networks import Config
from farfield.learning.sketch import Sketch
from farfield.serving import interpreter, snapshots
from farfield.types import Array, Columns, Field, Head, Kind, Network, Spec, Tensor, Version, Weights

PLACE = Path(__file__).parents[2] / "tests" / "golden" / "native.json"
STREAM = "00112233445566778899aabbccddeeff"
BLOCKS = (("gumbel", 3), ("uniform", 1), ("logistic", 2), ("normal", 3))
OBS = Field("obs", Kind.BOX, "float32", (4,))


def every_operator() -> tuple[Spec, Network]:
    """Draw a small network in which every operator stands."""
    camera = Field("obs/camera", Kind.BOX, "uint8", (5, 6, 2))
    cards, gear = (
        Field("obs/cards", Kind.MULTI_DISCRETE, "int64", (2,), (4, 3)),
        Field("obs/gear", Kind.DISCRETE, "int64", (), (5,)),
    )
    pose, mask = Field("obs/pose", Kind.BOX, "float32", (3,)), Field("mask", Kind.MULTI_BINARY, "bool", (3,))
    spec = Spec((camera, cards, gear, pose, mask), (Field("action", Kind.DISCRETE, "int64", (), (3,), mask="mask"),))
    sketch = Sketch()
    seen = sketch.node(
        "scale", "scale", (sketch.column(camera),), camera.shape, options={"factor": 1 / 255, "offset": -0.5}
    )
    convolved = sketch.plain("relu", "relu", sketch.conv("conv", seen, 3, size=3, stride=2, padding=1))
    same = sketch.conv("conv/one", convolved, 3, size=1)
    added = sketch.node("add", "add", (convolved, same), sketch.shapes[same])
    pooled = sketch.flat(sketch.pool("pool", added, size=3, stride=2, padding=1))
    hot = sketch.node("hot", "one_hot", (sketch.column(cards),), (7,), options={"sizes": [4, 3]})
    table = {"table": Tensor((5, 2))}
    embedded = sketch.node("embed", "embed", (sketch.column(gear),), (2,), tensors=table, options={"sizes": [5]})
    statistics = {name: Tensor((3,), trainable=False) for name in ("mean", "var")}
    normal = sketch.node(
        "normalise",
        "normalise",
        (sketch.column(pose),),
        (3,),
        tensors=statistics,
        options={"epsilon": 1e-8, "clip": 2.0},
    )
    source = sketch.layers("trunk", sketch.concat("concat", (pooled, hot, embedded, normal)), (9,), "tanh")
    source = sketch.recurrent("second", sketch.recurrent("first", source, "lstm", 5), "gru", 6)
    centred = sketch.plain("centre", "centre", sketch.dense("advantage", source, 3))
    summed = sketch.node("sum", "add", (centred, sketch.dense("value", source, 1)), (3,))
    logits = sketch.masked("masked", summed, mask)
    spread = sketch.param("spread", (2,))
    outputs = {"spread": spread, "pooled": pooled}
    return spec, sketch.finish([Head("action", "categorical", (logits,))], outputs)


def weights_of(network: Network, rng: np.random.Generator) -> Weights:
    """Draw tensors; variances are positive."""
    return {
        name: np.asarray(
            rng.uniform(0.3, 1, tensor.shape) if name.endswith("var") else rng.uniform(-0.6, 0.6, tensor.shape),
            np.float32,
        )
        for name, tensor in network.tensors.items()
    }


def drawn(field: Field, lanes: int, rng: np.random.Generator) -> Array:
    """Draw values [N, …] of a field."""
    if field.kind is Kind.BOX and field.dtype == "float32":
        return 3 * rng.standard_normal((lanes, *field.shape), np.float32)
    if field.name == "mask":
        return rng.random((lanes, *field.shape)) < 0.6
    most = 256 if field.kind is Kind.BOX else field.sizes[0] if len(field.sizes) == 1 else field.sizes
    return rng.integers(0, most, (lanes, *field.shape)).astype(field.dtype)


def column(array: Array) -> dict[str, Any]:
    """Give an array as JSON."""
    flat = array.reshape(-1)
    return {
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "data": [float(x) for x in flat] if flat.dtype.kind == "f" else [int(x) for x in flat],
    }


def arrays(columns: Columns) -> dict[str, Any]:
    """Give arrays as JSON."""
    return {name: column(array) for name, array in columns.items()}


def network_case(lanes: int) -> dict[str, Any]:
    """Run the network of every operator once."""
    rng = np.random.default_rng(lanes)
    spec, network = every_operator()
    weights = weights_of(network, rng)
    columns = {field.name: drawn(field, lanes, rng) for field in spec.observations}
    memory = {node: rng.uniform(-1, 1, (lanes, *shape)).astype(np.float32) for node, shape in network.memory.items()}
    wanted = [*(name for head in network.heads for name in head.inputs), *network.outputs.values()]
    values, after = interpreter.evaluate(network, weights, columns, wanted, memory=memory)
    return {
        "lanes": lanes, "network": json.loads(to_json(network)), "wanted": wanted, "tensors": arrays(weights),
        "columns": arrays(columns), "memory": arrays(memory), "values": arrays(values), "after": arrays(after),
    }  # fmt: skip


def track_case(kind: str) -> dict[str, Any]:
    """Let a program act, and keep what it was told and what came out."""
    rng = np.random.default_rng(7)
    spec = Spec((OBS,), (Field("action", Kind.DISCRETE, "int64", (), (3,)),))
    network = networks.build(Config(kind=kind, hidden=(6,), core=4), spec, style="policy_only")
    weights = weights_of(network, rng)
    version = to_json(Version("golden", 4, 1, None, 0, spec, network, {}))
    slot, payloads, calls = slots.Slot(), list[str](), list[list[Any]]()
    slot.put(snapshots.Snapshot(version, weights))
    track = tracks.Track(
        slot, to_json(spec), run="golden", policy="main", actor="a", stream=STREAM, seed=3, steps=6, lanes=0,
        emit=lambda payload, rows: payloads.append(payload.hex()),
    )  # fmt: skip
    for turn in range(1, 60):
        obs = rng.standard_normal(4).astype(np.float32)
        calls.append(["act", [float(x) for x in obs], track.act(obs, greedy=turn % 9 == 0)])
        reward = float(np.float32(rng.normal()))
        track.reward(reward)
        calls.append(["reward", reward])
        if turn % 13 == 0:
            track.end(truncated=turn % 2 == 0)
            calls.append(["end", turn % 2 == 0])
    track.cut()
    return {
        "spec": json.loads(to_json(spec)), "version": json.loads(version), "tensors": arrays(weights),
        "calls": calls, "fragments": payloads,
    }  # fmt: skip


def main() -> None:
    """Write the file."""
    found = noise.draw(BLOCKS, seed=3, stream=STREAM, first=7, steps=2, lanes=3)
    golden = {
        "noise": {"blocks": BLOCKS, "seed": 3, "stream": STREAM, "first": 7, "values": column(found)},
        "networks": [network_case(lanes) for lanes in (1, 5)],
        "tracks": [track_case(kind) for kind in ("mlp", "gru", "lstm")],
    }
    PLACE.write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
