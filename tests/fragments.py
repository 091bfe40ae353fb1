"""Fragments of a tiny live run, for tests of the gateway."""

import numpy as np

from farfield.canonical import spec_hash
from farfield.codec import encode_fragment
from farfield.types import Field, Fragment, Kind, Spec

STREAM = "0" * 31 + "1"
SPEC = Spec(
    observations=(Field("obs", Kind.BOX, "float32", (3,), low=(-1.0,), high=(1.0,)),),
    actions=(Field("action", Kind.DISCRETE, "int64", (), (2,)),),
)
PLAIN_SPEC = {
    "observations": [
        {"name": "obs", "kind": "box", "dtype": "float32", "shape": [3], "low": [-1.0], "high": [1.0]},
    ],
    "actions": [{"name": "action", "kind": "discrete", "dtype": "int64", "sizes": [2]}],
}  # fmt: skip
TINY = {"lanes": {"count": 2, "steps": 4}, "algorithm": {"kind": "ppo", "minibatch": 8, "epochs": 1}}
ROWS = 4


def fragment(seq: int, *, run: str = "lander", stream: str = STREAM, version: int = 0, **changes: object) -> Fragment:
    """Make the seq-th fragment of a stream: four rows of one lane."""
    rng = np.random.default_rng(seq)
    columns = {
        "obs": rng.uniform(-1, 1, (ROWS + 1, 1, 3)).astype(np.float32),
        "action": rng.integers(0, 2, (ROWS, 1)),
        "reward": np.ones((ROWS, 1), np.float32),
        "terminated": np.zeros((ROWS, 1), bool),
        "truncated": np.zeros((ROWS, 1), bool),
        "valid": np.ones((ROWS, 1), bool),
        "first": np.arange(ROWS)[:, None] == (0 if seq == 0 else -1),
        "log_prob": np.full((ROWS, 1), -0.69, np.float32),
    }
    columns |= {name: value for name, value in changes.items() if isinstance(value, np.ndarray)}
    return Fragment(
        run=run, stream=stream, seq=seq, version=version, attempt=1, spec=spec_hash(SPEC), columns=columns,
        decision=seq * ROWS,
    )  # fmt: skip


def payload(seq: int, **changes: object) -> bytes:
    """Encode it."""
    return encode_fragment(fragment(seq, **changes))  # pyright: ignore[reportArgumentType]


def plain(seq: int, **changes: object) -> dict[str, object]:
    """Write it as JSON, without what may be left out."""
    made = fragment(seq)
    columns = {name: array.tolist() for name, array in made.columns.items()}
    for name in ("terminated", "truncated", "valid"):
        del columns[name]
    facts = {"stream": made.stream, "seq": seq, "version": 0, "attempt": 1, "decision": made.decision}
    return facts | {"columns": columns} | changes
