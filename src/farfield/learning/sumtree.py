"""Priorities of slots in, slots drawn in proportion to them out: a few array operations for each level of a tree."""

import numpy as np

from farfield.types import Array


class SumTree:
    """A binary tree of sums over `capacity` slots; sums are always those of the children, so nothing drifts."""

    def __init__(self, capacity: int) -> None:
        self._leaves = 1 << max(0, capacity - 1).bit_length()  # the first leaf; node i has children 2i and 2i + 1
        self._nodes = np.zeros(2 * self._leaves, np.float64)

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        return float(self._nodes[1])

    def values(self, slots: Array) -> Array:
        """Give the priorities of slots."""
        return self._nodes[self._leaves + slots]

    def put(self, slots: Array, values: Array) -> None:
        """Set priorities; of a slot that is named twice, the last one stays."""
        self._nodes[self._leaves + slots] = values
        parents = self._leaves + slots
        while parents.size and parents[0] > 1:
            parents = np.unique(parents >> 1)
            self._nodes[parents] = self._nodes[2 * parents] + self._nodes[2 * parents + 1]

    def find(self, targets: Array) -> Array:
        """Give the slot in which each target falls, 0 <= target < total; never one without priority."""
        rest, at = targets.copy(), np.ones(len(targets), np.int64)
        while at[0] < self._leaves:
            left, right = self._nodes[2 * at], self._nodes[2 * at + 1]
            turn = (rest >= left) & (right > 0)
            rest = np.where(turn, rest - left, rest)
            at = 2 * at + turn
        return at - self._leaves
