"""What a program hands over (numbers, lists, anything like an array) in; checked values in a row's columns out."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np

from farfield.errors import SpecError, nearest
from farfield.types import Array, Columns, Field, Kind, Spec

MOST = float(np.finfo(np.float32).max)  # of a reward


class Inlet:
    """Takes the values of one field."""

    def __init__(self, field: Field, lanes: int) -> None:
        self.field, self.name = field, field.name
        self.shape = (lanes, *field.shape) if lanes else field.shape
        self.dtype = np.dtype(field.dtype)
        self._float = self.dtype.kind == "f"
        sizes = {Kind.MULTI_BINARY: (2,)}.get(field.kind, field.sizes)
        self._sizes = np.asarray(sizes) if sizes and self.dtype.kind != "b" else None

    def write(self, value: Any, out: Array) -> None:
        """Write a value of this field to a row, which always has an axis of lanes; SpecError where it is none."""
        array = value if type(value) is np.ndarray else self._array(value)
        if array.shape != self.shape or (array.dtype is not self.dtype and not self._castable(array)):
            raise SpecError(
                f"{self.name!r}: expected {self.dtype} of shape {list(self.shape)}, came {array.dtype} of shape "
                f"{list(array.shape)}: hand over what the spec declares"
            )
        out[...] = array
        if self._float:
            flat = out.reshape(-1)
            if not isfinite(flat.dot(flat)):
                self.blame(out)
        elif self._sizes is not None:
            wrong = (out < 0) | (out >= self._sizes)
            if wrong.any():
                raise SpecError(
                    f"{self.name!r}: expected values from 0 and below {self._sizes.tolist()}, came {array.tolist()}"
                )

    def blame(self, out: Array) -> None:
        """Say which element is no number, if one is: huge ones look like that too."""
        wrong = np.argwhere(~np.isfinite(out.reshape(self.shape)))
        if len(wrong):
            place = wrong[0].tolist()
            raise SpecError(
                f"{self.name!r}, element {place}: expected a finite {self.dtype}, came "
                f"{out.reshape(self.shape)[tuple(place)]}: check where the program computes it"
            )

    def _array(self, value: Any) -> Array:
        try:
            return np.asarray(value)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise SpecError(
                f"{self.name!r}: expected {self.dtype} of shape {list(self.shape)}, came a {type(value).__name__} that "
                f"is no array: {error}"
            ) from error

    def _castable(self, array: Array) -> bool:
        """Say whether the conversion loses at most precision; whole numbers go into any dtype that holds them."""
        if np.can_cast(array.dtype, self.dtype, "same_kind"):
            return True
        return (
            array.dtype.kind in "iub" and self.dtype.kind in "iub" and bool((array.astype(self.dtype) == array).all())
        )


class Intake:
    """Takes all observations of one decision, and actions that were made elsewhere."""

    def __init__(self, spec: Spec, lanes: int) -> None:
        self.inlets = [Inlet(field, lanes) for field in spec.observations]
        self.actions = [Inlet(field, lanes) for field in spec.actions]
        masks = [inlet for inlet in self.inlets if inlet.name == "mask" or inlet.name.startswith("mask/")]
        self._plain = [inlet for inlet in self.inlets if inlet not in masks]
        self._single = self._plain[0] if len(self._plain) == 1 else None
        self._known = {key: inlet for inlet in self.inlets for key in keys(inlet.name, "obs/")}
        self._masks = {key: inlet for inlet in masks for key in keys(inlet.name, "mask/")}
        self._chosen = {key: inlet for inlet in self.actions for key in keys(inlet.name, "action/")}
        self._lead = (max(lanes, 1),)
        self._shapes = {inlet.name: inlet.shape for inlet in self.inlets}

    def write(self, obs: Any, mask: Any, rows: Columns, last: Columns | None = None) -> None:
        """Write observations and masks to the given row of each column; masks that are missing are those of `last`."""
        given: dict[str, Any] = {}
        if isinstance(obs, Mapping):
            self._sort(obs, self._known, given, "observation")
        elif self._single is not None:
            given[self._single.name] = obs
        else:
            names = [inlet.name for inlet in self._plain]
            raise SpecError(f"observation: expected a dict with {names}, came {type(obs).__name__}")
        if isinstance(mask, Mapping):
            self._sort(mask, self._masks, given, "mask")
        elif mask is not None:
            if len(self._masks) != 1:
                cure = f"a dict with {sorted(self._masks)}" if self._masks else "none, since the spec declares none"
                raise SpecError(f"mask: expected {cure}, came {type(mask).__name__}")
            given[next(iter(self._masks.values())).name] = mask
        for name in [inlet.name for inlet in self._masks.values() if last and inlet.name not in given]:
            given[name] = (last or {})[name].reshape(self._shapes[name])
        for inlet in self.inlets:
            if inlet.name not in given:
                raise SpecError(f"{inlet.name!r} is missing: hand it over with every decision")
            inlet.write(given[inlet.name], rows[inlet.name])

    def last(self, obs: Any, mask: Any, rows: Columns, before: Columns) -> None:
        """Write the last observation of an episode; what is not given is as before."""
        if obs is None:
            for name, value in before.items():
                rows[name][...] = value
        else:
            self.write(obs, mask, rows, before)

    def read(self, obs: Any, mask: Any, last: Columns | None = None) -> Columns:
        """Give observations and masks as columns [N, …]."""
        rows = {i.name: np.empty((*self._lead, *i.field.shape), i.dtype) for i in self.inlets}
        self.write(obs, mask, rows, last)
        return rows

    def choice(self, action: Any) -> Columns:
        """Give an action that was made elsewhere as columns [N, …]."""
        given: dict[str, Any] = {}
        if isinstance(action, Mapping):
            self._sort(action, self._chosen, given, "action")
        elif len(self.actions) == 1:
            given[self.actions[0].name] = action
        else:
            raise SpecError(f"action: expected a dict with {sorted(self._chosen)}, came {type(action).__name__}")
        rows: Columns = {}
        for inlet in self.actions:
            if inlet.name not in given:
                raise SpecError(f"{inlet.name!r} is missing: hand over the whole action")
            rows[inlet.name] = np.empty((*self._lead, *inlet.field.shape), inlet.dtype)
            inlet.write(given[inlet.name], rows[inlet.name])
        return rows

    def permit(self, rows: Columns, action: Columns) -> None:
        """Refuse actions that their mask forbids; one that allows nothing forbids nothing."""
        for inlet in self.actions:
            field = inlet.field
            if not field.mask:
                continue
            start = 0
            for place, size in enumerate(field.sizes):
                block = rows[field.mask][:, start : start + size] != 0
                chosen = action[field.name].reshape(len(block), -1)[:, place]
                wrong = ~block[np.arange(len(block)), chosen] & block.any(1)
                if wrong.any():
                    lane = int(wrong.argmax())
                    raise SpecError(
                        f"{field.name!r}: expected one of {np.flatnonzero(block[lane]).tolist()}, which "
                        f"{field.mask!r} allows, came {int(chosen[lane])}"
                    )
                start += size

    @staticmethod
    def _sort(came: Mapping[str, Any], known: dict[str, Inlet], given: dict[str, Any], what: str) -> None:
        for key, value in came.items():
            if key not in known:
                raise SpecError(f"{what} {key!r} is not in the spec; {nearest(str(key), known)}")
            given[known[key].name] = value


def keys(name: str, prefix: str) -> set[str]:
    """Say by which names a field may be given."""
    return {name, name.removeprefix(prefix)}


def given(spec: Spec, action: Columns, lanes: int) -> Any:
    """Give an action as the program takes it: one lane without its axis, a choice among a few as an int."""
    values = {field.name: action[field.name] if lanes else action[field.name][0] for field in spec.actions}
    if not lanes:
        values = {f.name: int(values[f.name]) if f.kind is Kind.DISCRETE else values[f.name] for f in spec.actions}
    if len(values) == 1:
        return next(iter(values.values()))
    return {name.removeprefix("action/"): value for name, value in values.items()}


def amounts(amount: Any, shape: tuple[int, ...], before: Array) -> Array:
    """Give rewards as float64; with what is there `before`, they must be finite in 32 bits."""
    try:
        array = np.asarray(amount, np.float64)
    except (TypeError, ValueError) as error:
        raise SpecError(f"reward: expected {_numbers(shape)}, came {amount!r}") from error
    if array.shape != shape:
        raise SpecError(f"reward: expected {_numbers(shape)}, came shape {list(array.shape)}")
    if not (np.abs(before + array) <= MOST).all():
        raise SpecError(f"reward: expected finite 32-bit numbers, came {array.tolist()}")
    return array


def flags(name: str, value: Any, lanes: int) -> Array:
    """Give a flag for each lane."""
    array = np.asarray(value)
    if array.shape != (lanes,) or array.dtype.kind != "b":
        raise SpecError(f"{name}: expected bool of shape [{lanes}], came {array.dtype} of shape {list(array.shape)}")
    return array.copy()


def _numbers(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} numbers, one for each lane" if shape else "a number"
