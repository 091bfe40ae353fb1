"""Credits in that came before their fragments, the same credits out when these come; or given up on after a while."""

from collections import deque

from farfield.types import Credit

Key = tuple[int, str]  # decision and id of a credit


class Early:
    """Credits that wait for their fragments, each until it is due."""

    def __init__(self) -> None:
        self._line: deque[tuple[float, Credit]] = deque()  # in the order in which they came; some were taken since
        self._waiting: dict[str, dict[Key, Credit]] = {}
        self.count = 0

    def has(self, credit: Credit) -> bool:
        """Say whether one with its id waits already."""
        return (credit.n, credit.id) in self._waiting.get(credit.stream, {})

    def add(self, credit: Credit, due: float) -> None:
        """Let a credit wait."""
        self._waiting.setdefault(credit.stream, {})[credit.n, credit.id] = credit
        self._line.append((due, credit))
        self.count += 1

    def take(self, stream: str, first: int, after: int) -> list[Credit]:
        """Give those for some decisions of a stream, in the order in which they came."""
        found = [credit for credit in self._waiting.get(stream, {}).values() if first <= credit.n < after]
        for credit in found:
            self._forget(credit)
        return found

    def expire(self, now: float) -> int:
        """Give up on those that are due; says how many that were."""
        before = self.count
        while self._line and self._line[0][0] <= now:
            _, credit = self._line.popleft()
            if self._waits(credit):
                self._forget(credit)
        return before - self.count

    def left(self, now: float) -> list[tuple[float, Credit]]:
        """Give all that wait, and for how long."""
        return [(due - now, credit) for due, credit in self._line if self._waits(credit)]

    def _waits(self, credit: Credit) -> bool:
        return self._waiting.get(credit.stream, {}).get((credit.n, credit.id)) is credit

    def _forget(self, credit: Credit) -> None:
        waiting = self._waiting[credit.stream]
        del waiting[credit.n, credit.id]
        if not waiting:
            del self._waiting[credit.stream]
        self.count -= 1
