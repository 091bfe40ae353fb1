"""Gymnasium spaces in; a Spec out, and what moves values between an environment and its columns."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces
from msgspec.structs import replace

from farfield.errors import SpecError
from farfield.types import Array, Columns, Field, Kind, Spec

MASK_KEY = "action_mask"


class Leaf(NamedTuple):
    """One column, and where its values are in the environment's own structure."""

    field: Field
    dtype: np.dtype[Any]  # of the column
    path: tuple[str | int, ...] = ()
    native: np.dtype[Any] | None = None  # actions: what the environment takes
    start: Array | None = None  # what the space counts from, where that is not 0
    low: Array | None = None  # actions: clipped to these
    high: Array | None = None
    from_info: bool = False  # a mask that comes in `info` and not in the observation
    plain: bool = False  # the whole observation, as it is


class Layout(NamedTuple):
    """A Spec with its leaves; `structure` is the action space, for putting actions together again."""

    spec: Spec
    observations: tuple[Leaf, ...]
    actions: tuple[Leaf, ...]
    structure: Space[Any]


def layout(env: str, observation: Space[Any], action: Space[Any], info: dict[str, Any]) -> Layout:
    """Describe both spaces; `info` of a first reset tells whether there is a mask in it."""
    actions = tuple(_leaves(env, "action", action, (), acting=True))
    seen: list[Leaf] = []
    if isinstance(observation, spaces.Dict) and MASK_KEY in observation.spaces:
        seen += _masks(env, actions, observation.spaces[MASK_KEY], (MASK_KEY,), from_info=False)
        rest = {key: space for key, space in observation.spaces.items() if key != MASK_KEY}
        seen = [*_dict_leaves(env, "obs", rest, (), acting=False), *seen]
    else:
        seen += _leaves(env, "obs", observation, (), acting=False)
        if MASK_KEY in info:
            seen += _masks(env, actions, info[MASK_KEY], (), from_info=True)
    masked = {leaf.field.name for leaf in seen}
    actions = tuple(
        leaf._replace(field=replace(leaf.field, mask=_mask_name(leaf))) if _mask_name(leaf) in masked else leaf
        for leaf in actions
    )
    _unique(env, [leaf.field.name for leaf in (*seen, *actions)])
    spec = Spec(tuple(leaf.field for leaf in seen), tuple(leaf.field for leaf in actions))
    return Layout(spec, tuple(seen), actions, action)


def _leaves(env: str, name: str, space: Space[Any], path: tuple[str | int, ...], *, acting: bool) -> Iterator[Leaf]:
    match space:
        case spaces.Dict():
            yield from _dict_leaves(env, name, space.spaces, path, acting=acting)
        case spaces.Tuple():
            for place, part in enumerate(space.spaces):
                yield from _leaves(env, f"{name}/{place}", part, (*path, place), acting=acting)
        case _:
            yield _leaf(env, name, space, path, acting=acting)


def _dict_leaves(
    env: str, name: str, parts: dict[str, Space[Any]], path: tuple[str | int, ...], *, acting: bool
) -> Iterator[Leaf]:
    for key, part in parts.items():
        yield from _leaves(env, f"{name}/{key}", part, (*path, key), acting=acting)


def _leaf(env: str, name: str, space: Space[Any], path: tuple[str | int, ...], *, acting: bool) -> Leaf:
    match space:
        case spaces.Box():
            return _box(name, space, path, acting=acting)
        case spaces.Discrete():
            kind, shape, sizes = Kind.DISCRETE, (), (int(space.n),)
            start, dtype = np.asarray(space.start), "int64"
        case spaces.MultiDiscrete() if space.nvec.ndim == 1:
            kind, shape, sizes = Kind.MULTI_DISCRETE, space.nvec.shape, tuple(int(n) for n in space.nvec)
            start, dtype = np.asarray(space.start), "int64"
        case spaces.MultiBinary():
            kind, shape, sizes, start, dtype = Kind.MULTI_BINARY, tuple(space.shape), (), np.asarray(0), "int8"
        case _:
            raise SpecError(
                f"{env}: {name!r} is {space}; expected Box, Discrete, MultiDiscrete in one dimension, MultiBinary, or "
                "Dict or Tuple of those; wrap it, for example with gymnasium.wrappers.TransformObservation, "
                "TransformAction or FlattenObservation"
            )
    field = Field(name, kind, dtype, shape, sizes)
    return Leaf(field, np.dtype(dtype), path, np.dtype(space.dtype), start if start.any() else None)


def _box(name: str, space: spaces.Box, path: tuple[str | int, ...], *, acting: bool) -> Leaf:
    narrowed = acting or space.dtype == np.float64
    dtype = np.dtype(np.float32 if narrowed else space.dtype)
    low, high = _bounds(space.low), _bounds(space.high)
    field = Field(name, Kind.BOX, dtype.name, tuple(space.shape), (), low, high)
    if not acting:
        return Leaf(field, dtype, path, plain=not path)
    bounded = bool(low or high)
    return Leaf(
        field, dtype, path, np.dtype(space.dtype), None, *((space.low, space.high) if bounded else (None, None))
    )


def _bounds(values: Array) -> tuple[float, ...]:
    """List bounds: none where all are infinite, one where all are equal; JSON has no infinity, so the largest float."""
    if np.isinf(values).all():
        return ()
    most = float(np.finfo(np.float32).max)
    found = tuple(float(value) for value in np.clip(values.astype(np.float64), -most, most).ravel() + 0.0)
    return found[:1] if len(set(found)) == 1 else found


def _masks(
    env: str, actions: Sequence[Leaf], found: Any, root: tuple[str | int, ...], *, from_info: bool
) -> list[Leaf]:
    """Give discrete actions their masks; `found` is a space or a value, nested as the actions are."""
    masks: list[Leaf] = []
    for action in actions:
        part = found
        try:
            for key in action.path:
                part = part[key]
        except (KeyError, IndexError, TypeError):
            continue  # this action has no mask
        if not action.field.sizes:
            raise SpecError(
                f"{env}: {MASK_KEY!r} masks {action.field.name!r}, which is {action.field.kind}; expected Discrete or "
                "MultiDiscrete; leave the mask out or make the action discrete"
            )
        field = Field(_mask_name(action), Kind.MULTI_BINARY, "bool", (sum(action.field.sizes),))
        masks.append(Leaf(field, np.dtype(np.bool_), (*root, *action.path), from_info=from_info))
    if not masks:
        raise SpecError(f"{env}: {MASK_KEY!r} fits none of its actions; expected the same keys as the action space's")
    return masks


def _mask_name(action: Leaf) -> str:
    return "mask" + action.field.name.removeprefix("action")


def _unique(env: str, names: list[str]) -> None:
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise SpecError(f"{env}: two parts of its spaces are both named {min(twice)!r}; rename a key that holds a '/'")


def read(leaf: Leaf, obs: Any, info: Any, lead: tuple[int, ...]) -> Array:
    """Take a leaf's value (lead ()) or a batch of them (lead (N,)) out of what the environment gave, checked."""
    value = info[MASK_KEY] if leaf.from_info else obs
    for key in leaf.path:
        value = value[key]
    return column(leaf, value, lead)


def column(leaf: Leaf, value: Any, lead: tuple[int, ...]) -> Array:
    """Bring one value or a batch of them to its column's form, or say what is wrong with it."""
    field = leaf.field
    if leaf.dtype == np.bool_ and isinstance(value, list | tuple):  # a mask for each of several choices
        value = np.concatenate([np.asarray(part) for part in value], axis=-1)
    array = np.asarray(value)
    shape = lead + field.shape
    if array.shape != shape or not _fits(array.dtype, leaf.dtype):
        raise SpecError(
            f"observation {field.name!r}: expected {field.dtype} of shape {shape}, came {array.dtype} of shape "
            f"{array.shape}; make the environment return what its space declares"
        )
    if leaf.start is not None:
        array = array - leaf.start
    if field.sizes and array.size and ((array < 0) | (array >= np.array(field.sizes).reshape(field.shape))).any():
        raise SpecError(
            f"observation {field.name!r}: expected values below {field.sizes} counted from the space's start, came "
            f"{np.asarray(value).tolist()}; make the environment return what its space declares"
        )
    return array.astype(leaf.dtype, copy=False)


def _fits(came: np.dtype[Any], expected: np.dtype[Any]) -> bool:
    """Say whether converting loses at most precision: any integer will do where 0 and 1 or indices are expected."""
    if expected.kind == "b" or expected == np.int8:
        return came.kind in "biu"
    return np.can_cast(came, expected, "same_kind")


def moves(layout: Layout, actions: Columns) -> Any:
    """Turn action columns [N, …] into what a vector environment takes: clipped, counted from the space's start."""
    values = [_move(leaf, actions[leaf.field.name]) for leaf in layout.actions]
    return values[0] if not layout.actions[0].path else _compose(layout.structure, iter(values))


def direct(layout: Layout) -> bool:
    """Say whether an environment takes the one action column as it is."""
    leaf = layout.actions[0]
    return not leaf.path and leaf.low is None and leaf.start is None and leaf.native == leaf.field.dtype


def each(layout: Layout, actions: Columns) -> Sequence[Any]:
    """Turn action columns [N, …] into one action for each of N environments."""
    # Copied, since an environment may keep its last action and the caller its buffer.
    values = [_move(leaf, actions[leaf.field.name].copy()) for leaf in layout.actions]
    if not layout.actions[0].path:
        return list(values[0])
    return [_compose(layout.structure, iter(parts)) for parts in zip(*values, strict=True)]


def _move(leaf: Leaf, value: Array) -> Array:
    if leaf.low is not None and leaf.high is not None:
        value = np.minimum(np.maximum(value, leaf.low), leaf.high)
        if leaf.native is not None and leaf.native.kind in "iu":
            value = np.rint(value)
    elif leaf.start is not None:
        value = value + leaf.start
    return value if leaf.native is None or value.dtype == leaf.native else value.astype(leaf.native)


def _compose(space: Space[Any], values: Iterator[Any]) -> Any:
    match space:
        case spaces.Dict():
            return {key: _compose(part, values) for key, part in space.spaces.items()}
        case spaces.Tuple():
            return tuple(_compose(part, values) for part in space.spaces)
        case _:
            return next(values)
