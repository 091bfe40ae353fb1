"""A spec that a client sent in; nothing out, or a SpecError that names the field, what was expected and what came."""

import math

import numpy as np

from farfield.canonical import from_json, spec_hash, to_json
from farfield.columns import CODES
from farfield.errors import SpecError
from farfield.types import Field, Kind, Spec

NAME = 100  # characters
ELEMENTS = 1 << 24  # of one field in one lane
AXES = 16
RESERVED = ("reward", "terminated", "truncated", "valid", "first", "log_prob", "version")
_PREFIXES = ("final/", "memory/", "episode/")
_KNOWN = {dtype.name for dtype in CODES}
_CURE = "correct what the program says of itself"


def sound(spec: Spec) -> None:
    """Refuse a spec that no policy could be made for."""
    for kind, fields in (("observations", spec.observations), ("actions", spec.actions)):
        if not fields:
            raise SpecError(f"spec: {kind}: expected at least one field, came none: {_CURE}")
    names = [field.name for field in (*spec.observations, *spec.actions)]
    for field in (*spec.observations, *spec.actions):
        reason = _flaw(field) or ("a name of its own" if names.count(field.name) > 1 else "")
        if reason:
            raise SpecError(f"spec: field {field.name[:NAME]!r}: expected {reason}; came {_show(field)}: {_CURE}")
    seen = {field.name: field for field in spec.observations}
    for field in spec.actions:
        if field.mask and (field.mask not in seen or seen[field.mask].shape != (sum(field.sizes),)):
            raise SpecError(
                f"spec: field {field.name!r}: its mask {field.mask[:NAME]!r} should be an observation of shape "
                f"[{sum(field.sizes)}]: {_CURE}"
            )
    for field in spec.observations:
        if field.mask:
            raise SpecError(f"spec: field {field.name!r}: only actions have masks, came {field.mask[:NAME]!r}: {_CURE}")


def compare(run: str, expected: Spec, came: Spec) -> None:
    """Refuse another spec, naming the first thing in which it differs."""
    if expected == came or spec_hash(expected) == spec_hash(came):
        return
    cure = "use the spec that the run has, or connect to another run"
    exact = from_json(to_json(came), Spec)
    for kind in ("observations", "actions"):
        ours, theirs = getattr(expected, kind), getattr(exact, kind)
        if [field.name for field in ours] != [field.name for field in theirs]:
            names = [field.name for field in ours], [field.name for field in theirs]
            raise SpecError(f"spec of run {run!r}: {kind}: expected {names[0]} in this order, came {names[1]}: {cure}")
        for our, their in zip(ours, theirs, strict=True):
            for part in Field.__struct_fields__:
                if getattr(our, part) != getattr(their, part):
                    raise SpecError(
                        f"spec of run {run!r}: field {our.name!r}: {part}: expected {_show(getattr(our, part))}, "
                        f"came {_show(getattr(their, part))}: {cure}"
                    )


def _flaw(field: Field) -> str:
    """Say what was expected of a field and is not so."""
    name, shape, sizes = field.name, field.shape, field.sizes
    if not 0 < len(name) <= NAME or not name.isprintable() or name in RESERVED or name.startswith(_PREFIXES):
        return f"a printable name of 1 to {NAME} characters that is none of {', '.join((*RESERVED, *_PREFIXES))}"
    if field.dtype not in _KNOWN:
        return f"one of the dtypes {', '.join(sorted(_KNOWN))}"
    if len(shape) > AXES or any(size < 1 for size in shape) or math.prod(shape) > ELEMENTS:
        return f"a shape of at most {AXES} axes and {ELEMENTS} elements, none of them empty"
    if any(size < 1 or size > ELEMENTS for size in sizes):
        return f"sizes from 1 to {ELEMENTS}"
    return _kind_flaw(field) or _bounds_flaw(field)


def _kind_flaw(field: Field) -> str:
    kind, shape, sizes = field.kind, field.shape, field.sizes
    whole = np.dtype(field.dtype).kind in "iu"
    match kind:
        case Kind.DISCRETE if shape or len(sizes) != 1 or not whole:
            return "of a discrete field an integer dtype, no shape and one size"
        case Kind.MULTI_DISCRETE if shape != (len(sizes),) or not sizes or not whole:
            return "of a multi_discrete field an integer dtype, and a size for each element of its one axis"
        case Kind.MULTI_BINARY if sizes or np.dtype(field.dtype).kind == "f":
            return "of a multi_binary field bool or an integer dtype, and no sizes"
        case Kind.BOX if sizes:
            return "of a box no sizes"
        case _:
            pass
    return "a mask only of choices" if field.mask and kind not in (Kind.DISCRETE, Kind.MULTI_DISCRETE) else ""


def _bounds_flaw(field: Field) -> str:
    for bound in (field.low, field.high):
        if len(bound) not in (0, 1, math.prod(field.shape)) or any(map(math.isnan, bound)):
            return "as bounds nothing, one number, or one for each element"
    low, high = np.asarray(field.low or (-math.inf,)), np.asarray(field.high or (math.inf,))
    return "low bounds below high ones" if (low > high).any() else ""


def _show(value: object) -> str:
    text = repr(list(value)) if isinstance(value, tuple) else repr(value)
    return text if len(text) <= 120 else f"{text[:120]}…"
