"""A fragment or a credit of a client in; nothing out, or a SpecError that names what was expected and what came."""

from collections.abc import Mapping

import numpy as np

from farfield.canonical import spec_hash
from farfield.errors import SpecError, nearest
from farfield.serving.fieldrules import actions, differs, finite, numbers, observations
from farfield.types import Array, Columns, Credit, Field, Fragment, Spec

MOST = (1 << 63) - 1  # counters beyond it do not fit into the learner's integers
_LARGEST = float(np.finfo(np.float32).max)
_WORDS = 256  # characters of a label
_FLOAT, _BOOL = np.dtype(np.float32), np.dtype(np.bool_)
_PLAIN = {"reward": _FLOAT, "terminated": _BOOL, "truncated": _BOOL, "valid": _BOOL, "first": _BOOL}


class Admission:
    """The rules of one run, worked out once from its spec; `check` takes microseconds.

    Floating observations may leave their declared bounds by as much as the width of the range, since real programs (and
    environments) overstep them a little; what is further off is in another unit or broken. Continuous actions have no
    bounds here: policies explore beyond them, and the program clips.
    """

    def __init__(self, spec: Spec, *, run: str, lanes: int) -> None:
        self.spec, self.hash = spec, spec_hash(spec)
        self._run, self._lanes = run, lanes
        base, _, policy = run.rpartition(".")
        self._names = {(run, "main"), (base, policy), (run, policy)}  # a policy's run may be named in either way
        self._observations = [(field.name, observations(field)) for field in spec.observations]
        self._actions = [(field.name, actions(field)) for field in spec.actions]
        self._fields = {field.name: field for field in (*spec.observations, *spec.actions)}
        self._masked = [field for field in spec.actions if field.mask]
        self._needed = frozenset(_PLAIN) | frozenset(self._fields)

    def check(self, fragment: Fragment, memory: Mapping[str, tuple[int, ...]] | None = None) -> int:
        """Give the number of its steps; `memory` is what the newest version remembers, where that is known."""
        with np.errstate(over="ignore"):  # sums of huge numbers: they are looked at one by one then
            return self._check(fragment, memory)

    def _check(self, fragment: Fragment, memory: Mapping[str, tuple[int, ...]] | None) -> int:
        self._check_header(fragment)
        columns = fragment.columns
        steps, lanes = self._check_plain(columns)
        if fragment.decision + steps * lanes > MOST:
            raise SpecError(
                f"decision: expected at most {MOST} with its {steps * lanes} rows, came {fragment.decision}"
            )
        for name, rule in self._observations:
            rule(name, columns[name], (steps + 1, lanes))
        for name, rule in self._actions:
            rule(name, columns[name], (steps, lanes))
        for field in self._masked:
            _check_mask(field, columns, steps)
        _check_source(fragment, steps, lanes)
        if len(columns) > len(self._needed) + (not fragment.source) or memory:
            self._check_rest(fragment, memory, steps, lanes)
        return int(np.count_nonzero(columns["valid"]))

    def _check_header(self, fragment: Fragment) -> None:
        if (fragment.run, fragment.policy) not in self._names:
            raise SpecError(
                f"run and policy: expected {self._run!r}, came {fragment.run!r} with policy {fragment.policy!r}: "
                "send each fragment over a connection to its own run"
            )
        if fragment.spec != self.hash:
            raise SpecError(f"spec: expected {self.hash}, came {fragment.spec}: connect again, which compares both")
        for name in ("seq", "version", "attempt", "decision"):
            if getattr(fragment, name) > MOST:
                raise SpecError(f"{name}: expected at most {MOST}, came {getattr(fragment, name)}")
        for name in ("actor", "source"):
            _check_words(name, getattr(fragment, name))

    def _check_plain(self, columns: Columns) -> tuple[int, int]:
        """Look at the columns that every fragment has, and give T and N."""
        if not self._needed <= columns.keys():
            lacking = sorted(self._needed - columns.keys())
            raise SpecError(
                f"column {lacking[0]!r} is missing; expected {sorted(self._needed)}, came {sorted(columns)}"
            )
        shape = columns["reward"].shape
        if len(shape) != 2 or 0 in shape or shape[1] > self._lanes:
            raise SpecError(
                f"column 'reward': expected shape [T, N] with T >= 1 and N from 1 to {self._lanes}, came {list(shape)}"
            )
        for name, dtype in _PLAIN.items():
            column = columns[name]
            if column.shape != shape or column.dtype != dtype:
                raise SpecError(differs(name, dtype, shape, column))
        finite("reward", columns["reward"])
        ends = columns["terminated"] | columns["truncated"]
        if np.count_nonzero(ends & ~columns["valid"]):
            raise SpecError("column 'valid': expected true where an episode ends, came false: end its last real step")
        return shape

    def _check_rest(
        self, fragment: Fragment, memory: Mapping[str, tuple[int, ...]] | None, steps: int, lanes: int
    ) -> None:
        """Look at what only some fragments have."""
        columns = fragment.columns
        rest = {name: column for name, column in columns.items() if name not in self._needed and name != "log_prob"}
        _check_final(rest, columns, self.spec)
        _check_episodes(rest, steps * lanes)
        if "version" in rest:
            _check_versions(rest.pop("version"), fragment.version, steps)
        _check_memory(rest, memory, lanes, needed=not fragment.source)
        if rest:
            name = min(rest)
            raise SpecError(f"column {name!r} is unknown; {nearest(name, (*self._needed, 'log_prob', 'version'))}")


def check_credit(credit: Credit, run: str) -> None:
    """Refuse a late reward that cannot be one."""
    base, _, policy = run.rpartition(".")
    if credit.run != run and not (policy and credit.run == base):
        raise SpecError(f"credit {credit.id!r}: run: expected {run!r}, came {credit.run!r}")
    if not abs(credit.reward) <= _LARGEST:  # NaN too
        raise SpecError(f"credit {credit.id!r}: reward: expected a finite 32-bit number, came {credit.reward}")
    if credit.n > MOST:
        raise SpecError(f"credit {credit.id!r}: n: expected at most {MOST}, came {credit.n}")
    if not credit.id:
        raise SpecError("credit: id: expected a name of its own, so that a repeated one shows; came none")
    _check_words("id", credit.id)


def _check_mask(field: Field, columns: Columns, steps: int) -> None:
    """Refuse actions that their mask forbids; a row in which nothing is allowed forbids nothing."""
    mask, valid = columns[field.mask][:steps] != 0, columns["valid"]
    chosen = columns[field.name].reshape(*valid.shape, len(field.sizes))
    start = 0
    for place, size in enumerate(field.sizes):
        block = mask[..., start : start + size]
        allowed = np.take_along_axis(block, chosen[..., place, None].astype(np.intp), -1)[..., 0]
        bad = ~allowed & valid
        bad &= block.any(-1)
        if bad.any():
            t, lane = (int(at) for at in np.argwhere(bad)[0])
            allows = np.flatnonzero(block[t, lane]).tolist()
            raise SpecError(
                f"column {field.name!r}, row {t}, lane {lane}: expected one of {allows}, which {field.mask!r} allows, "
                f"came {int(chosen[t, lane, place])}"
            )
        start += size


def _check_source(fragment: Fragment, steps: int, lanes: int) -> None:
    """Only what the policy itself decided has log-probabilities."""
    column = fragment.columns.get("log_prob")
    if (column is None) != bool(fragment.source):
        expected, who = ("none", repr(fragment.source)) if fragment.source else ("one", "the policy itself")
        came = "none" if column is None else "one"
        raise SpecError(f"column 'log_prob': expected {expected}, since {who} decided, came {came}")
    if column is None:
        return
    if column.shape != (steps, lanes) or column.dtype != _FLOAT:
        raise SpecError(differs("log_prob", _FLOAT, (steps, lanes), column))
    finite("log_prob", column)


def _check_versions(column: Array, first: int, steps: int) -> None:
    numbers("version", column, np.dtype(np.int64), (steps,))
    if column[0] != first or column.min() < 0:
        raise SpecError(f"column 'version': expected numbers from 0, {first} first, came {column[:8].tolist()}")


def _check_final(rest: Columns, columns: Columns, spec: Spec) -> None:
    """Look at last observations of lanes that were reset at once, and take them out of `rest`."""
    index = rest.pop("final/index", None)
    if index is None:
        return
    shape = columns["reward"].shape
    numbers("final/index", index, np.dtype(np.int32), (len(index) if index.ndim else 0, 2))
    if len(index) > shape[0] * shape[1] or (index < 0).any() or (index >= shape).any():
        raise SpecError(f"column 'final/index': expected (row, lane) within {list(shape)}, came {index[:4].tolist()}")
    for field in spec.observations:
        name = f"final/{field.name}"
        if name not in rest:
            raise SpecError(f"column {name!r} is missing, but 'final/index' is there; send both or none")
        observations(field)(name, rest.pop(name), (len(index),))


def _check_episodes(rest: Columns, rows: int) -> None:
    """Look at what is told of finished episodes, and take it out of `rest`."""
    returns, lengths = rest.pop("episode/return", None), rest.pop("episode/length", None)
    if returns is None and lengths is None:
        return
    if returns is None or lengths is None:
        raise SpecError("columns 'episode/return' and 'episode/length': expected both or none, came one")
    if returns.ndim != 1 or len(returns) > rows:
        raise SpecError(f"column 'episode/return': expected at most {rows} numbers, came shape {list(returns.shape)}")
    numbers("episode/return", returns, _FLOAT, returns.shape)
    numbers("episode/length", lengths, np.dtype(np.int32), returns.shape)
    if len(lengths) and lengths.min() < 0:
        raise SpecError(f"column 'episode/length': expected at least 0, came {int(lengths.min())}")


def _check_memory(rest: Columns, memory: Mapping[str, tuple[int, ...]] | None, lanes: int, *, needed: bool) -> None:
    """Look at recurrent states, and take them out of `rest`."""
    came = {name.removeprefix("memory/"): name for name in rest if name.startswith("memory/")}
    for node, name in came.items():
        column = rest.pop(name)
        if memory is not None and node not in memory:
            raise SpecError(f"column {name!r}: the network remembers nothing of that name; {nearest(node, memory)}")
        numbers(name, column, _FLOAT, (lanes, *(column.shape[1:] if memory is None else memory[node])))
    lacking = (memory or {}).keys() - came.keys()
    if needed and lacking:
        raise SpecError(f"column 'memory/{min(lacking)}' is missing; send what the network remembered before row 0")


def _check_words(name: str, words: str) -> None:
    if len(words) > _WORDS or not (words.isprintable() or not words):
        raise SpecError(f"{name}: expected at most {_WORDS} printable characters, came {words[:64]!r}")
