"""A spec with one choice among slots in; a network that judges every slot by the same small layers out.

`[network] kind = "farfield.learning.kernel:build"`. The observation [slots, features] is read as a picture one pixel
wide, and 1 × 1 convolutions are dense layers that all slots share: whoever swaps two slots swaps their probabilities.
The critic, which never travels, sees all slots side by side.
"""

from collections.abc import Sequence

from farfield.errors import ConfigError
from farfield.learning.sketch import Sketch
from farfield.types import Field, Head, Kind, Network, Spec

LAYERS = (32, 16, 8)  # widths that each slot goes through
SUMMARY, CRITIC = (16, 4), (64, 32)  # of the value: for each slot, then for all of them together


def build(spec: Spec) -> Network:
    """Draw a policy and a value for one Discrete action whose choices are the rows of one observation."""
    field, slots = _slots(spec)
    sketch = Sketch()
    rows, features = slots.shape
    seen = sketch.node(
        "slots", "reshape", (sketch.column(slots),), (rows, 1, features), options={"shape": [rows, 1, features]}
    )
    logits = sketch.conv("policy/out", _per_slot(sketch, "policy", seen, LAYERS), 1, size=1)
    logits = _flat(sketch, "policy/logits", logits, rows)
    masks = {column.name: column for column in spec.observations}
    if field.mask:
        logits = sketch.masked("policy/masked", logits, masks[field.mask])
    judged = _flat(sketch, "value/slots", _per_slot(sketch, "value/slot", seen, SUMMARY), rows * SUMMARY[-1])
    value = sketch.dense("value/out", sketch.layers("value", judged, CRITIC, "relu"), 1)
    value = sketch.node("value", "reshape", (value,), (), options={"shape": []})
    return sketch.finish([Head(field.name, "categorical", (logits,))], {"value": value})


def _slots(spec: Spec) -> tuple[Field, Field]:
    """Find the action and the observation whose rows are its choices."""
    for field in spec.observations:
        for action in spec.actions:
            if len(field.shape) == 2 and action.kind is Kind.DISCRETE and action.sizes[0] == field.shape[0]:
                return action, field
    came = ", ".join(f"{field.name} {list(field.shape)}" for field in spec.observations)
    raise ConfigError(
        f"the kernel network needs a Discrete(n) action and an observation [n, features]; the spec has {came}; "
        'use kind = "mlp"'
    )


def _per_slot(sketch: Sketch, prefix: str, source: str, widths: Sequence[int]) -> str:
    """Stack layers that every slot goes through by itself."""
    for number, width in enumerate(widths):
        name = sketch.conv(f"{prefix}/{number}", source, width, size=1)
        source = sketch.plain(f"{name}/relu", "relu", name)
    return source


def _flat(sketch: Sketch, name: str, source: str, width: int) -> str:
    return sketch.node(name, "reshape", (source,), (width,), options={"shape": [width]})
