"""What clients send in, counts for people and dashboards out: of the whole run, and of each of its clients."""

import time

from msgspec import Struct, structs

CLIENTS = 1000  # that are counted one by one; the one that was silent longest makes room


class Tally(Struct):
    """Counts since the start of the gateway; payloads unless said otherwise."""

    fragments: int = 0  # stored
    steps: int = 0  # in them
    bytes: int = 0  # in them
    credits: int = 0  # stored
    repeated: int = 0  # came again and were stored before
    refused: int = 0
    put_off: int = 0  # times that there was no room
    version: int = -1  # that the last fragment was made with
    last: float = 0.0  # seconds since 1970 when something came


class Counters(Struct, frozen=True):
    """A run's counts at one moment."""

    run: str
    total: Tally
    clients: dict[str, Tally]
    waiting: int  # fragments that are not durable yet
    streams: int  # that are remembered
    dead_letters: int
    dead_letters_left_out: int  # refusals that came faster than letters are written
    version: int  # the newest; -1: none yet
    announced: float  # seconds since 1970 when it came; 0: never
    broken_announcements: int
    trouble: str  # with the last of these


class Tallies:
    """The counts of one run; its owner holds a lock around each call."""

    def __init__(self) -> None:
        self.total = Tally()
        self.clients: dict[str, Tally] = {}

    def of(self, sender: str) -> Tally:
        """Give a client's own counts, noting that it was here now."""
        tally = self.clients.pop(sender, None)
        if tally is None:
            tally = Tally()
            while len(self.clients) >= CLIENTS:
                del self.clients[next(iter(self.clients))]
        self.clients[sender] = tally
        tally.last = self.total.last = time.time()
        return tally

    def copy(self) -> tuple[Tally, dict[str, Tally]]:
        """Give the counts as they are now."""
        return structs.replace(self.total), {sender: structs.replace(tally) for sender, tally in self.clients.items()}
