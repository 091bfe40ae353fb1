"""What somebody without gRPC asks for in, a reply in JSON or protobuf out: the meaning of REST, without HTTP."""

import asyncio
import struct
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from farfield.canonical import from_json, spec_hash, to_json
from farfield.codec import encode_credit, encode_fragment
from farfield.errors import CorruptError, FarfieldError, SpecError
from farfield.serving import plain
from farfield.serving.host import Host, outdated
from farfield.serving.hosted import Hosted
from farfield.serving.predictor import Ask
from farfield.serving.problems import MEDIA, RefusedError, problem_of
from farfield.serving.tokens import Tokens
from farfield.types import Hello, Spec

KNOWN = "ingest act read"  # whoever has one of these may greet a run and have its versions
JSON, PROTOBUF = "application/json", "application/x-protobuf"
LARGE = 64 << 10  # bytes of JSON from which on reading it would hold up everybody else
_FRAME = struct.Struct("<I")
_LENGTH = struct.Struct("<BI")  # what every payload begins with: a tag, and how long it is
_LENGTH_TAG = 0x0D
T = TypeVar("T")


class Reply(NamedTuple):
    """What is sent back."""

    body: bytes
    media: str = JSON
    status: int = 200
    headers: Mapping[str, str] = MappingProxyType({})


class Status(Struct, frozen=True):
    """What the gateway's process knows of a run besides what its clients did."""

    state: str
    learner: Any = None  # plain data
    metrics: dict[str, Any] | None = None  # the last row


class Desk:
    """Answers for all runs; `status` says how the learner of a run is, and may look into files."""

    def __init__(self, host: Host, tokens: Tokens, status: Callable[[str], Status]) -> None:
        self.host, self.tokens, self._status = host, tokens, status

    async def greet(self, secret: str, run: str, body: bytes) -> Reply:
        """Let a client in: Hello as JSON, Welcome as JSON."""
        told = from_json(body or b"{}", plain.PlainHello)
        if told.run and told.run != run:
            raise SpecError(f"run: the address says {run!r}, the message {told.run!r}: leave it out of the message")
        facts: dict[str, Any] = msgspec.structs.asdict(told) | {"run": run}
        hello = Hello(**facts)
        if old := outdated(hello):
            raise RefusedError(412, old)
        _, welcome = await asyncio.to_thread(self.host.greet, hello, secret, KNOWN)
        return Reply(to_json(welcome))

    async def fragments(self, secret: str, run: str, media: str, body: bytes, sender: str) -> Reply:
        """Store fragments: payloads as they are, or JSON."""
        hosted = await self._open(secret, run, "ingest")
        if media in (PROTOBUF, "application/octet-stream"):
            try:
                payloads = split(body)
            except CorruptError as error:
                hosted.refuse(str(error), sender, body)
                raise
            return await _store(hosted, payloads, sender)
        _only_json(media, f"{PROTOBUF} or {JSON}")
        spec = _spec(hosted)
        return await _store(hosted, await _apart(len(body), lambda: _fragments(body, spec, run)), sender)

    async def credits(self, secret: str, run: str, media: str, body: bytes, sender: str) -> Reply:
        """Store rewards that come late."""
        hosted = await self._open(secret, run, "ingest")
        _only_json(media, JSON)
        payloads = [encode_credit(plain.credit_of(each, run)) for each in _several(body, plain.PlainCredit)]
        return await _store(hosted, payloads, sender)

    async def act(self, secret: str, run: str, media: str, body: bytes) -> Reply:
        """Decide for N lanes."""
        hosted = await self._open(secret, run, "act")
        _only_json(media, JSON)
        spec = _spec(hosted)
        if hosted.release() is None:
            raise RefusedError(503, f"run {run!r} has no version yet: try again once its learner has published one")
        asked = await _apart(len(body), lambda: msgspec.json.decode(body, type=plain.PlainAsk))
        observations, memory = plain.observations_of(asked, spec)
        answer = await hosted.act(
            Ask(observations=observations, memory=memory, stream=asked.stream or "", decision=asked.decision)
        )
        found: dict[str, Any] = {"actions": plain.lists_of(answer.action)}
        if answer.log_prob is not None:
            found |= plain.lists_of({"log_prob": answer.log_prob})
        if answer.memory:
            found["memory"] = plain.lists_of(answer.memory)
        return Reply(msgspec.json.encode(found | {"version": answer.version, "attempt": answer.attempt}))

    async def newest(self, secret: str, run: str, *, have: str, accept: str, known: str) -> Reply:
        """Give the newest version: its manifest, or all tensors whose SHA-256 are not among `have`."""
        hosted = await self._open(secret, run, KNOWN)
        release = hosted.release()
        if release is None:
            raise RefusedError(503, f"run {run!r} has no version yet: try again once its learner has published one")
        mark = f'"{release.version.number}-{release.version.attempt}"'
        headers = {"etag": mark, "cache-control": "no-cache", "vary": "accept"}
        if mark in known:
            return Reply(b"", status=304, headers=headers)
        if JSON in accept:
            return Reply(to_json(release.version), headers=headers)
        held = set(have.lower().split(","))
        names = {name: digest for name, digest in release.hashes.items() if digest in held}
        announcement = await asyncio.to_thread(hosted.announcement, names)
        return Reply(announcement or b"", PROTOBUF, headers=headers)

    async def runs(self, secret: str) -> Reply:
        """List the runs that a token may read."""
        found = []
        for run, hosted in sorted(self.visible(secret).items()):
            status = await asyncio.to_thread(self._status, run)
            counters, release = hosted.counters(), hosted.release()
            found.append(
                {
                    "run": run, "state": status.state, "version": -1 if release is None else release.version.number,
                    "clients": len(counters.clients), "fragments": counters.total.fragments,
                    "steps": counters.total.steps, "refused": counters.total.refused,
                }
            )  # fmt: skip
        return Reply(msgspec.json.encode({"runs": found}))

    async def run(self, secret: str, run: str) -> Reply:
        """Say all that is known of one run."""
        hosted = await self._open(secret, run, "read")
        status, counters = await asyncio.to_thread(self._status, run), hosted.counters()
        spec = hosted.spec
        facts = {
            "run": run, "state": status.state, "learner": status.learner, "metrics": status.metrics,
            "counters": counters, "spec": None if spec is None else msgspec.Raw(to_json(spec)),
        }  # fmt: skip
        return Reply(msgspec.json.encode(facts))

    async def _open(self, secret: str, run: str, scopes: str) -> Hosted:
        self.host.check(secret, run, scopes)
        return self.host.find(run) or await asyncio.to_thread(self.host.open, run)

    def visible(self, secret: str) -> dict[str, Hosted]:
        """Give the open runs that a token may read."""
        self.tokens.check(secret, "", "read")
        holder = self.tokens.holder(secret)
        return {run: hosted for run, hosted in self.host.open_runs().items() if holder.covers(run)}

    def status(self, run: str) -> Status:
        """Say how the learner of a run is; may look into files."""
        return self._status(run)


def split(body: bytes) -> list[bytes]:
    """Take a body apart: one payload, or several, each behind four bytes that say how long it is."""
    if len(body) >= _LENGTH.size and _LENGTH.unpack_from(body) == (_LENGTH_TAG, len(body)):
        return [body]
    found: list[bytes] = []
    place = 0
    while place < len(body):
        start = place + _FRAME.size
        size = _FRAME.unpack_from(body, place)[0] if start <= len(body) else 0
        if not size or start + size > len(body):
            raise CorruptError(
                f"body: at byte {place} of {len(body)} there is no whole payload: send one payload, or several with "
                "the length of each before it in four bytes, the smallest first"
            )
        found.append(body[start : start + size])
        place = start + size
    if not found:
        raise CorruptError("body: it is empty; send at least one payload")
    return found


class Batch(NamedTuple):
    """Payloads of one request: what became of each, until there was no room for one."""

    waiting: list[Future[None]]
    refused: dict[int, Exception]
    stopped: Exception | None


def _append(hosted: Hosted, payloads: Sequence[bytes], sender: str) -> Batch:
    """Hand over in order."""
    waiting: list[Future[None]] = []
    refused: dict[int, Exception] = {}
    for index, payload in enumerate(payloads):
        try:
            waiting.append(hosted.append(payload, sender))
        except (SpecError, CorruptError) as error:
            refused[index] = error
            waiting.append(_DONE)
        except FarfieldError as error:  # no room, or the gateway stops: what is behind must not overtake
            return Batch(waiting, refused, error)
    return Batch(waiting, refused, None)


async def _store(hosted: Hosted, payloads: Sequence[bytes], sender: str) -> Reply:
    """Append beside the loop that serves everybody, wait until all are durable, and say what became of them."""
    waiting, refused, stopped = await asyncio.to_thread(_append, hosted, payloads, sender)
    owned = 0
    for future in waiting:
        try:
            await asyncio.wrap_future(future)
        except (FarfieldError, OSError) as error:
            stopped = error
            break
        owned += 1
    told = [
        {"index": at, "kind": type(error).__name__, "text": str(error)} for at, error in refused.items() if at < owned
    ]
    if stopped and not owned:
        raise stopped
    if len(told) == len(payloads):
        problem = problem_of(refused[0])
        return Reply(problem.body(owned=owned, refused=told), MEDIA, problem.status)
    facts: dict[str, Any] = {"owned": owned, "refused": told}
    return Reply(msgspec.json.encode(facts | ({"again": str(stopped)} if stopped else {})))


def _fragments(body: bytes, spec: Spec, run: str) -> list[bytes]:
    digest = spec_hash(spec)
    return [encode_fragment(plain.fragment_of(each, spec, digest, run)) for each in _several(body, plain.PlainFragment)]


def _several(body: bytes, kind: type[T]) -> list[T]:
    """Read one object or a list of them."""
    if body.lstrip()[:1] == b"[":
        found = msgspec.json.decode(body, type=list[kind])
        if not found:
            raise CorruptError("body: the list is empty; send at least one")
        return found
    return [msgspec.json.decode(body, type=kind)]


async def _apart(size: int, work: Callable[[], T]) -> T:
    """Do it here when it is quick, else beside the loop that serves everybody."""
    return await asyncio.to_thread(work) if size > LARGE else work()


def _spec(hosted: Hosted) -> Spec:
    if hosted.spec is None:
        raise SpecError(f"run {hosted.run!r} has no spec yet: greet it first with what your program sees and does")
    return hosted.spec


def _only_json(media: str, expected: str) -> None:
    """Refuse what a page of somebody else could make a browser send without asking."""
    if media != JSON:
        raise RefusedError(415, f"content-type: expected {expected}, came {media or 'none'}")


_DONE: Future[None] = Future()
_DONE.set_result(None)
