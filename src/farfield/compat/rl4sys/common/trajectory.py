"""Decisions of one episode, in the order in which the program added them."""

from farfield.compat.rl4sys.common.action import RL4SysAction


class RL4SysTrajectory:
    """What a program holds while an episode runs; `completed` once its end was marked."""

    def __init__(self, version: int = 0) -> None:
        self.actions: list[RL4SysAction] = []
        self.version = version
        self.invalid_mixed = False  # every step states its own version, so several of them do no harm
        self.completed = False

    def add_action(self, action: RL4SysAction) -> None:
        """Add a decision; one that was added before, here or elsewhere, stays where it is."""
        if action.owner is None:
            action.owner = self
            self.actions.append(action)

    def get_actions(self) -> list[RL4SysAction]:
        """Give the decisions."""
        return self.actions

    def is_empty(self) -> bool:
        """Say whether nothing was added."""
        return not self.actions

    def clear(self) -> None:
        """Forget what was added: nothing of it will be learned from."""
        for action in self.actions:
            action.owner = None
        self.actions.clear()

    def is_valid(self) -> bool:
        """Say that it can be learned from."""
        return not self.invalid_mixed

    def mark_completed(self) -> None:
        """Say that the episode is over; the agent takes it up at its next call."""
        self.completed = True

    def is_completed(self) -> bool:
        """Say whether the episode is over."""
        return self.completed

    def print_actions(self) -> None:
        """Write the decisions to the terminal."""
        print(*self.actions, sep="\n")  # noqa: T201

    def __len__(self) -> int:
        """Count the decisions."""
        return len(self.actions)
