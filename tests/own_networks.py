"""Networks of somebody's own, good ones and others, for tests."""

from farfield.learning.sketch import Sketch
from farfield.types import Head, Network, Spec


def headless(spec: Spec) -> Network:
    """Decide nothing."""
    return Network(nodes=(), tensors={}, outputs={})


def frozen(spec: Spec) -> Network:
    """Value actions with an offset that no gradient changes."""
    sketch, field = Sketch(), spec.actions[0]
    trunk = sketch.layers("trunk", sketch.flat(sketch.column(spec.observations[0])), (16,), "tanh")
    offset = sketch.param("offset", (field.sizes[0],), trainable=False)
    q = sketch.node("q/add", "add", (sketch.dense("q/out", trunk, field.sizes[0]), offset), (field.sizes[0],))
    return sketch.finish([Head(field.name, "epsilon", (q, sketch.param("epsilon", (), trainable=False)))], {"q": q})
