"""The few shapes that the system hangs on; implement by shape, never subclass."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Protocol

from farfield.types import (
    ALL,
    Array,
    Buffer,
    Choice,
    Columns,
    Cursor,
    Memory,
    Metrics,
    Network,
    Noise,
    Record,
    Role,
    Scalar,
    Share,
    Version,
    Weights,
)


class Policy(Protocol):
    """Decides; held by actors, sessions and inference servers. `act` for every step, `log_prob` once per fragment."""

    def act(self, obs: Columns, *, noise: Noise | None, memory: Memory) -> Choice:
        """Decide for N lanes; without noise, greedily."""
        ...

    def log_prob(self, logits: Columns, action: Columns) -> Array:
        """Score actions under the outputs that `act` gave, over any leading dimensions."""
        ...

    def memory(self, lanes: int) -> Memory:
        """Begin with nothing remembered."""
        ...

    def load(self, version: Version, weights: Weights) -> None:
        """Act with this version from the next decision on."""
        ...


class Algorithm(Protocol):
    """Improves a policy; held by the learner: `learn(batch)`, then `weights()`, for ever."""

    @property
    def network(self) -> Network:
        """The graph that its weights belong to."""
        ...

    def learn(self, batch: Columns) -> Metrics:
        """Use a batch once; may return before the arithmetic is done, `weights` waits for it."""
        ...

    def weights(self) -> Weights:
        """Give copies of all tensors of the network as they are now."""
        ...

    def state(self) -> Columns:
        """Give everything that an exact resume needs."""
        ...

    def restore(self, state: Columns) -> None:
        """Continue from `state` of an equal algorithm."""
        ...

    def tune(self, changes: Mapping[str, Scalar]) -> None:
        """Change hyper-parameters: all of them or, with an error that says why, none."""
        ...


class Transport(Protocol):
    """A partitioned log; readers own their place."""

    def append(self, topic: str, payload: Buffer, *, key: str) -> "Future[None]":
        """Hand over a message; done when the transport owns it. Waits for room, then raises FullError."""
        ...

    def read(
        self, topic: str, *, after: Cursor, share: Share = ALL, limit: int, timeout: float
    ) -> tuple[list[Record], Cursor]:
        """Read up to `limit` records and where to go on; nothing within `timeout` seconds is an empty list."""
        ...

    def note(self, topic: str, group: str, cursor: Cursor) -> None:
        """Say how far a group of readers is, for lag displays and retention."""
        ...

    def close(self) -> None:
        """Give everything back; what was appended and not owned yet is delivered first or its future fails."""
        ...


class Scale(Protocol):
    """Make this many exist; idempotent."""

    def __call__(self, run: str, role: Role, replicas: int) -> None:
        """Start or stop until `replicas` of `role` run."""
        ...
