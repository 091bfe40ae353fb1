"""A Versions call that may break in; every version whole, tensor by tensor only what was lacking, out."""

from collections.abc import Callable

from farfield.codec import decode_announcement
from farfield.errors import CorruptError
from farfield.transports.link.lifeline import Lifeline, Stream
from farfield.types import Announcement, Array, Version, Weights, acting
from farfield.v1 import farfield_pb2 as wire


class Follower:
    """Keeps one Versions call open, and what it holds when that breaks: then only what is new travels."""

    def __init__(
        self,
        open_call: Callable[[wire.VersionsRequest], Stream],
        hello: wire.Hello,
        *,
        arrived: Callable[[Version, Weights], object],
        settled: Callable[[dict[str, int]], object],
    ) -> None:
        self.line = Lifeline("farfield-versions", self._once)
        self._open_call, self._hello, self._arrived, self._settled = open_call, hello, arrived, settled
        self._held: dict[str, tuple[str, Array]] = {}  # tensor -> its SHA-256, itself
        self._newest: tuple[int, int, str] | None = None

    def _once(self) -> None:
        have = {name: bytes.fromhex(digest) for name, (digest, _) in self._held.items()}
        request = wire.VersionsRequest(hello=self._hello, have=have)
        try:
            for reply in self.line.hold(self._open_call(request)):
                self._take(decode_announcement(reply.announcement))
                self.line.well()
        except ConnectionError:
            raise
        except Exception:
            self._held, self._newest = {}, None  # whatever it was, the next one shall be whole
            raise

    def _take(self, announcement: Announcement) -> None:
        version = announcement.version
        seen = {field.name for field in version.spec.observations}
        unknown = [node.inputs for node in version.network.nodes if node.op == "input" and not seen >= {*node.inputs}]
        if unknown:
            raise CorruptError(
                f"version {version.number}: its network reads {unknown[0]}, but its spec has {sorted(seen)}"
            )
        held = {} if announcement.full else dict(self._held)
        held |= {name: (version.tensors[name].sha256, array) for name, array in announcement.weights.items()}
        weights: Weights = {}
        for name in acting(version.network):
            wanted = version.tensors.get(name)
            if wanted is None or name not in held or held[name][0] != wanted.sha256:
                raise CorruptError(f"version {version.number}: tensor {name!r} did not come, and is not here already")
            weights[name] = held[name][1]
        newest = (version.attempt, version.number, "".join(sorted(held[name][0] for name in weights)))
        if newest != self._newest:  # otherwise only what is settled has changed
            self._arrived(version, weights)
            self._newest = newest
        self._held = {name: held[name] for name in weights}
        if announcement.settled:
            self._settled(announcement.settled)
