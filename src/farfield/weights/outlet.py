"""Weights of a finished update in, a version out: committed if it is time, and announced to whoever follows."""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from farfield.codec import encode_announcement
from farfield.protocols import Transport
from farfield.types import Announcement, Cursor, Network, Spec, Version, Weights, acting
from farfield.weights.registry import Registry

FULL = 64  # announcements until all tensors are sent again, so that a late follower finds its feet
SIZES = 4  # as many times the size of all: partial ones since then add up to no more, so that a log holds them
RECENT = 1000  # updates that the mean lag is of

Follow = Callable[[Version, Weights], None]


class Outlet:
    """Publishes: payloads first, then the commit record, then the announcement.

    Every update makes a version; the registry commits one each `interval` seconds, and those that checkpoints
    belong to. Followers get every one.
    """

    def __init__(
        self, registry: Registry, *, run: str, attempt: int, spec: Spec, network: Network, parent: int | None
    ) -> None:
        self.registry = registry
        self.version: Version | None = None
        self.lags: deque[float] = deque(maxlen=RECENT)
        self._run, self._attempt, self._spec, self._network, self._parent = run, attempt, spec, network, parent
        self._acting = acting(network)
        self._weights: Weights = {}
        self._committed, self._next = -1, 0.0
        self._transport: Transport | None = None
        self._topic = ""
        self._follow: Follow | None = None
        self._settled: dict[str, int] = {}
        self._end: Cursor = {}  # of the topic, when the last full announcement was about to be made
        self._base: dict[str, str] = {}  # hashes of the last full announcement
        self._since, self._partial = FULL, 0  # announcements and bytes since the last full one
        self._sent: Future[None] | None = None

    def announce_to(self, transport: Transport, topic: str) -> None:
        """Send announcements there."""
        self._transport, self._topic = transport, topic

    def tell(self, follow: Follow) -> None:
        """Hand every version to somebody in this process."""
        self._follow = follow

    def publish(self, number: int, weights: Weights, *, steps: int, settled: dict[str, int]) -> Version:
        """Make a version, commit it if it is time, and announce it."""
        version = self.registry.describe(
            weights, run=self._run, number=number, attempt=self._attempt, parent=self._parent,
            steps=steps, spec=self._spec, network=self._network,
        )  # fmt: skip
        self.version, self._weights, self._parent = version, weights, number
        if time.monotonic() >= self._next:
            self.commit()
        if self._follow:
            self._follow(version, weights)
        self._announce(settled)
        return version

    def commit(self) -> None:
        """Make the newest version last, unless that was done."""
        version = self.version
        if version is None or self._committed == version.number:
            return
        self.registry.publish(version, self._weights)
        self._committed = version.number
        self._next = time.monotonic() + self.registry.config.interval

    def settle(self, settled: dict[str, int]) -> None:
        """Announce the newest version again if more was settled without a new one."""
        if self._transport and settled != self._settled:
            self._announce(settled)

    def collect(self) -> None:
        """Delete versions that nobody needs any more."""
        if self._committed >= 0:
            self.registry.collect({self._committed})

    def _announce(self, settled: dict[str, int]) -> None:
        transport, version = self._transport, self.version
        if transport is None or version is None:
            return
        hashes = {name: version.tensors[name].sha256 for name in self._acting}
        every = {name: self._weights[name] for name in hashes}
        sent = {name: array for name, array in every.items() if self._base.get(name) != hashes[name]}
        partial = self._partial + sum(array.nbytes for array in sent.values())
        most = SIZES * sum(array.nbytes for array in every.values())
        full = self._since >= FULL or len(sent) == len(every) or partial > most
        if full:
            self._forget(transport)
            sent, partial = every, 0
        payload = encode_announcement(Announcement(version, sent, full, dict(settled)))
        self._sent = transport.append(self._topic, payload, key=self._run)
        self._settled = dict(settled)
        self._since, self._partial = 0 if full else self._since + 1, partial
        if full:
            self._base = hashes

    def _forget(self, transport: Transport) -> None:
        """Let the log free what is older than the last full announcement: who starts late begins with that one."""
        transport.note(self._topic, "outlet", self._end)
        records, cursor = transport.read(self._topic, after=self._end, limit=FULL, timeout=0.0)
        while records:
            self._end = cursor
            records, cursor = transport.read(self._topic, after=self._end, limit=FULL, timeout=0.0)
