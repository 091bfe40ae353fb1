"""A snapshot of the newest version in; what every track of a policy looks at out."""

from collections.abc import Callable
from typing import Any, Protocol

from farfield.types import Array, Columns, Noise


class Decider(Protocol):
    """What decides for one track: serving/snapshots.py has it."""

    inputs: list[tuple[str, Array]]
    steps: list[Callable[[], object]]
    states: list[tuple[str, Array, Array]]
    logits: Columns
    pick: Callable[[Array | None], int] | None

    def load(self, snapshot: Any) -> None:
        """Go on with other weights of the same network."""
        ...

    def run(self) -> None:
        """Compute the outputs."""
        ...

    def choose(self, noise: Noise | None) -> Columns:
        """Turn outputs into actions."""
        ...

    def score(self, logits: Columns, action: Columns) -> Array:
        """Score actions under recorded outputs."""
        ...


class Snapshot(Protocol):
    """A version to act with."""

    number: int
    attempt: int
    shape: bytes
    blocks: tuple[tuple[str, int], ...]

    def decider(self, lanes: int) -> Any:
        """Make a Decider."""
        ...


class Slot:
    """Holds the newest snapshot; tracks take it up at their next decision."""

    def __init__(self) -> None:
        self.snapshot: Any = None

    def put(self, snapshot: Any) -> None:
        """Let every track act with this one from its next decision on."""
        self.snapshot = snapshot
