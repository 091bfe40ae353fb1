"""A network of your own: a function from a Spec to a graph of operators; training, NumPy and ONNX all read it."""

from tempfile import mkdtemp

import farfield
from farfield.learning.sketch import Sketch
from farfield.types import Head, Network, Spec


def build(spec: Spec) -> Network:
    """Draw a policy and a value: one wide layer that both share, and a small one for each."""
    sketch, action = Sketch(), spec.actions[0]
    seen = sketch.layers("shared", sketch.flat(sketch.column(spec.observations[0])), (128,), "relu")
    logits = sketch.dense("logits", sketch.layers("policy", seen, (32,), "tanh"), action.sizes[0])
    value = sketch.dense("value/out", sketch.layers("value", seen, (32,), "tanh"), 1)
    value = sketch.node("value", "reshape", (value,), (), options={"shape": ()})
    return sketch.finish([Head(action.name, "categorical", (logits,))], {"value": value})


if __name__ == "__main__":
    settings = {"network": {"kind": "own_network:build"}, "metrics": {"writers": []}}
    run = farfield.train("CartPole-v1", home=mkdtemp(), actors=0, steps=30_000, until=None, **settings)
    print(run.summary["return_mean"], sorted(run.weights()))
