"""Names of fragments in, whether they were stored before out: for each stream the ranges of numbers that were."""

from bisect import bisect_right

STREAMS = (
    1 << 16
)  # that are remembered; of one that was forgotten a repeated fragment is stored again, and learned once
RANGES = 1024  # of one stream: producers that drop leave gaps for ever


class Marks:
    """What is stored: a stream without gaps takes two numbers, however long it is."""

    def __init__(self, streams: int = STREAMS) -> None:
        self._most = streams
        self._ranges: dict[str, list[int]] = {}  # stream -> begin, end, begin, end, …; the longest unused stream first

    def __len__(self) -> int:
        return len(self._ranges)

    def known(self, stream: str, seq: int) -> bool:
        """Say whether a fragment is stored."""
        return bisect_right(self._ranges.get(stream, ()), seq) % 2 == 1

    def add(self, stream: str, seq: int) -> None:
        """Remember a fragment."""
        ranges = self._ranges.pop(stream, None)
        if ranges is None:
            ranges = []
            while len(self._ranges) >= self._most:
                del self._ranges[next(iter(self._ranges))]
        self._ranges[stream] = ranges  # now the last one to be forgotten
        if ranges and seq == ranges[-1]:
            ranges[-1] += 1
            return
        place = bisect_right(ranges, seq)
        if place % 2:
            return
        joins_left = place > 0 and ranges[place - 1] == seq
        joins_right = place < len(ranges) and ranges[place] == seq + 1
        if joins_left and joins_right:
            del ranges[place - 1 : place + 1]
        elif joins_left:
            ranges[place - 1] = seq + 1
        elif joins_right:
            ranges[place] = seq
        else:
            ranges[place:place] = [seq, seq + 1]
            if len(ranges) > 2 * RANGES:
                del ranges[:2]

    def below(self, stream: str) -> int:
        """Give how many of a stream's first fragments are stored without a gap."""
        ranges = self._ranges.get(stream)
        return ranges[1] if ranges and ranges[0] == 0 else 0
