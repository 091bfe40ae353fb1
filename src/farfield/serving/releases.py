"""Announcements of a run's learner in, the newest version out, with just the tensors that each follower lacks."""

from collections.abc import Mapping, Sequence
from threading import Lock

from msgspec import Struct

from farfield.codec import decode_announcement, encode_announcement
from farfield.errors import CorruptError, FarfieldError
from farfield.serving.interpreter import needed
from farfield.types import Announcement, Array, Buffer, Network, Version, Weights, acting

ENCODINGS = 32  # of one version that are kept: followers differ in what they hold


class Release(Struct, frozen=True, eq=False):
    """A version that can be acted with: the tensors that acting needs, and their hashes."""

    version: Version
    weights: Weights
    hashes: dict[str, str]  # tensor -> SHA-256
    memory: dict[str, tuple[int, ...]]  # recurrent nodes that acting reads -> shape of their states


class Releases:
    """Keeps the newest version; one thread calls `take`, any may ask."""

    def __init__(self) -> None:
        self.newest: Release | None = None
        self.settled: dict[str, int] = {}  # replaced as a whole, never changed
        self.broken = 0  # announcements that could not be used
        self.trouble = ""
        self._tensors: dict[str, Array] = {}  # by hash: of the last full announcement and of the newest version
        self._full: frozenset[str] = frozenset()
        self._lock = Lock()
        self._encoded: tuple[Release | None, dict[frozenset[str], bytes]] = (None, {})

    def seed(self, version: Version, weights: Weights) -> None:
        """Begin with a version of the registry."""
        names = acting(version.network)
        self._use(Announcement(version, {name: weights[name] for name in names if name in weights}, True, {}))

    def take(self, payloads: Sequence[Buffer]) -> bool:
        """Read announcements in their order; say whether anything is new."""
        before = self.newest, self.settled
        for payload in payloads:
            try:
                announcement = decode_announcement(payload)
                if announcement.settled != self.settled:
                    self.settled = announcement.settled
                self._use(announcement)
            except FarfieldError as error:
                self.broken, self.trouble = self.broken + 1, str(error)
        return (self.newest, self.settled) != before

    def encode(self, have: Mapping[str, str]) -> bytes | None:
        """Write the newest version with what is not in `have` (tensor -> SHA-256); once for all who lack the same."""
        release = self.newest
        if release is None:
            return None
        lacking = frozenset(name for name, digest in release.hashes.items() if have.get(name) != digest)
        with self._lock:
            if self._encoded[0] is not release:
                self._encoded = release, {}
            encoded = self._encoded[1]
            if lacking not in encoded:
                if len(encoded) >= ENCODINGS:
                    del encoded[next(iter(encoded))]
                weights = {name: array for name, array in release.weights.items() if name in lacking}
                full = len(weights) == len(release.weights)
                encoded[lacking] = encode_announcement(Announcement(release.version, weights, full, {}))
            return encoded[lacking]

    def _use(self, announcement: Announcement) -> None:
        version = announcement.version
        names = sorted(acting(version.network))
        if unnamed := [name for name in names if name not in version.tensors]:
            raise CorruptError(f"version {version.number}: its manifest does not name the tensor {unnamed[0]!r}")
        came = {version.tensors[name].sha256: array for name, array in announcement.weights.items()}
        if announcement.full:
            self._full = frozenset(came)
        pool = self._tensors | came
        hashes = {name: version.tensors[name].sha256 for name in names}
        if lacking := [name for name, digest in hashes.items() if digest not in pool]:
            # Begun in the middle: the next full announcement has everything.
            raise CorruptError(f"version {version.number}: {lacking[0]!r} is neither in its announcement nor known")
        kept = self._full | set(hashes.values())
        self._tensors = {digest: array for digest, array in pool.items() if digest in kept}
        known = self.newest
        if known is None or (known.version.number, known.version.attempt) != (version.number, version.attempt):
            weights = {name: pool[digest] for name, digest in hashes.items()}
            self.newest = Release(version, weights, hashes, _memory(version.network))


def _memory(network: Network) -> dict[str, tuple[int, ...]]:
    nodes = needed(network, [name for head in network.heads for name in head.inputs])
    return {node.name: network.memory[node.name] for node in nodes if node.name in network.memory}
