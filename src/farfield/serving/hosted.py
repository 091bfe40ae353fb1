"""One run as the gateway sees it: payloads of clients in, checked and handed to its log; its versions out."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from threading import RLock
from typing import NamedTuple

from msgspec import Struct

from farfield import __version__
from farfield.codec import decode_credit, decode_fragment, kind_of
from farfield.errors import ConfigError, ConflictError, CorruptError, FarfieldError, FullError, MissingError, SpecError
from farfield.protocols import Transport
from farfield.serving.admission import Admission, check_credit
from farfield.serving.following import Following, Newest
from farfield.serving.letters import Letters, Tail
from farfield.serving.marks import Marks
from farfield.serving.predictor import Answer, Ask, Draw, Predictor
from farfield.serving.releases import Release
from farfield.serving.specs import compare, sound
from farfield.serving.tallies import Counters, Tallies
from farfield.types import Buffer, Credit, Cursor, Fragment, Hello, Spec, Welcome

EXPERIENCES, UPDATES, DEAD, PROBES = "experiences", "model_updates", "experiences.dead", "probes"
LIBRARY = f"farfield {__version__}"
PROBE, PROBES_KEPT = 64 << 10, 100  # bytes of one, and how many are kept
logger = logging.getLogger("farfield.gateway")
_READ = 256  # records at a time when marks are read back


class Facts(Struct, frozen=True):
    """What a run tells its clients."""

    seed: int
    steps: int  # rows of a fragment
    window: int  # fragments
    credit_window: float  # seconds


class Limits(Struct, frozen=True):
    """What one client of a run may do."""

    payload: int = 16 << 20  # bytes of one payload
    quota: int = 8 << 20  # bytes on their way: sent and not durable
    lanes: int = 1024  # of one fragment, and of one request to act


class Stored(NamedTuple):
    """What is counted once a fragment is durable."""

    name: tuple[str, int]
    sender: str
    steps: int
    size: int
    version: int


class Taken(NamedTuple):
    """A payload that was accepted: done when it is durable; the stream that it brought, empty for a credit."""

    owned: "Future[None]"
    stream: str


class Hosted:
    """Checks, stores and counts what clients send; knows the newest version. All but `act` may be called by any thread.

    Its log is opened with `wait = 0`: where there is no room it says so at once, no event loop stands still, and
    whoever called tries again.
    """

    def __init__(
        self, run: str, *, log: Transport, spec: Spec | None, pin: Callable[[Spec], None], facts: Facts,
        limits: Limits, newest: Newest = lambda: None, draw: Draw | None = None,
    ) -> None:  # fmt: skip
        """Read what the log holds, which takes seconds where that is gigabytes, and begin to follow its versions.

        Without a spec the first client's is handed to `pin`. `newest` (the registry's head) is asked where the log has
        no version. `draw` is the noise of experience/noise.py; without it `act` can only be greedy.
        """
        self.run, self.facts, self.limits = run, facts, limits
        self._log, self._pin = log, pin
        self._lock = RLock()
        self._admission = None if spec is None else Admission(spec, run=run, lanes=limits.lanes)
        self._marks, self._pending = Marks(), dict[tuple[str, int], Future[None]]()
        self._tallies, self._letters = Tallies(), Letters(log, DEAD)
        self._probes = Tail(log, PROBES, PROBES_KEPT)
        self._done: Future[None] = Future()
        self._done.set_result(None)
        self._remember()
        self._following = Following(log, UPDATES, newest, tidy=self._tidy, name=run)
        self._predictor = Predictor(self.release, draw=draw, seed=facts.seed, lanes=limits.lanes)

    @property
    def spec(self) -> Spec | None:
        """What its policy sees and does, once somebody has said it."""
        return None if self._admission is None else self._admission.spec

    @property
    def closed(self) -> bool:
        """Whether it was closed: what follows it has to find the run anew."""
        return self._following.stopped

    @property
    def settled(self) -> Mapping[str, int]:
        """Stream -> how many of its first fragments were used or counted as not used; replaced, never changed."""
        return self._following.releases.settled

    def welcome(self, hello: Hello) -> Welcome:
        """Let a client in, or raise SpecError that names field, expected and came; the first spec is pinned."""
        with self._lock:
            if self._admission is None:
                if hello.spec is None:
                    raise SpecError(f"run {self.run!r} has no spec yet: its first client says what it sees and does")
                sound(hello.spec)
                admission = Admission(hello.spec, run=self.run, lanes=self.limits.lanes)
                self._pin(admission.spec)
                self._admission = admission
            spec = self._admission.spec
        if hello.spec is not None:
            compare(self.run, spec, hello.spec)
        release, facts = self.release(), self.facts
        return Welcome(
            run=self.run, spec=spec, seed=facts.seed, steps=facts.steps, window=facts.window, quota=self.limits.quota,
            limit=self.limits.payload, credit_window=facts.credit_window,
            version=-1 if release is None else release.version.number, library=LIBRARY,
        )  # fmt: skip

    def append(self, payload: Buffer, sender: str) -> "Future[None]":
        """Store a Fragment or a Credit; done when it is durable. A fragment that is known already is not stored again.

        SpecError, CorruptError: refused for ever, with a dead letter. FullError: no room now and nothing was noted, try
        again. ConflictError: this gateway cannot store. The payload must not change afterwards.
        """
        return self.take(payload, sender).owned

    def take(self, payload: Buffer, sender: str) -> "Taken":
        """Append, and say which stream it was of."""
        try:
            came, steps = self._examine(payload)
            if isinstance(came, Credit):
                return self._take_credit(came, payload, sender)
            return Taken(self._take_fragment(came, steps, payload, sender), came.stream)
        except (SpecError, CorruptError) as error:
            self.refuse(str(error), sender, payload)
            raise
        except FullError:
            with self._lock:
                self._tallies.total.put_off += 1
                self._tallies.of(sender).put_off += 1
            raise

    def credit(self, payload: Buffer, sender: str) -> "Future[None]":
        """Append a Credit and nothing else."""
        if (kind := kind_of(payload)) != "Credit":
            self.refuse(text := f"expected a Credit, came {kind or 'no payload of ours'}", sender, payload)
            raise SpecError(text)
        return self.append(payload, sender)

    def refuse(self, reason: str, sender: str, payload: Buffer, size: int | None = None) -> None:
        """Count a refusal and write a dead letter; `size` where the payload is only the beginning of what came."""
        with self._lock:
            self._tallies.total.refused += 1
            self._tallies.of(sender).refused += 1
        self._letters.write(reason, sender, payload, size)

    def probe(self, data: bytes) -> "Future[None]":
        """Store bytes that nobody reads."""
        if len(data) > PROBE:
            raise SpecError(f"probe: expected at most {PROBE} bytes, came {len(data)}")
        return self._log.append(PROBES, data, key=self.run)

    def release(self) -> Release | None:
        """Give the newest version with its tensors, once there is one."""
        return self._following.releases.newest

    def announcement(self, have: Mapping[str, str]) -> bytes | None:
        """Write the newest version with the tensors (name -> SHA-256) that are not in `have`; None: no version yet."""
        return self._following.releases.encode(have)

    def listen(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Have a thread call `changed` after new versions and settled marks; gives what ends that."""
        return self._following.listen(changed)

    def act(self, ask: Ask) -> "asyncio.Future[Answer]":
        """Decide together with all that wait in this event loop. SpecError: bad request; MissingError: no version."""
        return self._predictor.put(ask)

    def counters(self) -> Counters:
        """Count everything since the start."""
        releases, release = self._following.releases, self.release()
        with self._lock:
            total, clients = self._tallies.copy()
            waiting, streams = len(self._pending), len(self._marks)
        return Counters(
            run=self.run, total=total, clients=clients, waiting=waiting, streams=streams,
            dead_letters=self._letters.written, dead_letters_left_out=self._letters.unwritten,
            version=-1 if release is None else release.version.number, announced=self._following.announced,
            broken_announcements=releases.broken, trouble=releases.trouble,
        )  # fmt: skip

    def close(self) -> None:
        """Stop following, and close the log: what is on its way becomes durable or fails."""
        self._following.stop()
        self._log.close()
        self._following.join()

    def _examine(self, payload: Buffer) -> tuple[Fragment | Credit, int]:
        """Give what a payload holds and its steps; whatever is wrong with it is said, and never stops a client."""
        if len(payload) > self.limits.payload:
            raise CorruptError(
                f"{len(payload)} bytes are over the limit of {self.limits.payload}: use fewer steps or lanes"
            )
        if self._admission is None:
            raise ConflictError(f"run {self.run!r} has no spec yet: say hello first")
        try:
            if kind_of(payload) == "Credit":
                credit = decode_credit(payload)
                check_credit(credit, self.run)
                return credit, 0
            fragment, release = decode_fragment(payload), self.release()
            return fragment, self._admission.check(fragment, None if release is None else release.memory)
        except FarfieldError:
            raise
        except Exception as error:
            logger.exception("a payload could not be checked")
            raise CorruptError("the gateway could not check this payload; its log says why") from error

    def _take_fragment(self, fragment: Fragment, steps: int, payload: Buffer, sender: str) -> "Future[None]":
        name = fragment.name[1:]
        with self._lock:
            known = self._done if self._marks.known(*name) else self._pending.get(name)
            if known is not None:
                self._tallies.total.repeated += 1
                self._tallies.of(sender).repeated += 1
                return known
            future = self._pending[name] = self._store(payload, fragment.stream)
        told = Stored(name, sender, steps, len(payload), fragment.version)
        future.add_done_callback(partial(self._landed, told))
        return future

    def _store(self, payload: Buffer, stream: str) -> "Future[None]":
        try:
            return self._log.append(EXPERIENCES, payload, key=stream)
        except ConfigError as error:  # larger than the whole log
            raise SpecError(str(error)) from error
        except (CorruptError, MissingError) as error:  # ours, not what came: it must not be refused for that
            raise ConflictError(f"run {self.run!r} cannot store now: {error}") from error

    def _landed(self, stored: "Stored", future: "Future[None]") -> None:
        """Remember what is durable; what failed may come again."""
        with self._lock:
            del self._pending[stored.name]
            if future.exception() is not None:
                return
            self._marks.add(*stored.name)
            for tally in (self._tallies.total, self._tallies.of(stored.sender)):
                tally.fragments += 1
                tally.steps += stored.steps
                tally.bytes += stored.size
                tally.version = stored.version

    def _take_credit(self, credit: Credit, payload: Buffer, sender: str) -> Taken:
        future = self._store(payload, credit.stream)
        with self._lock:
            self._tallies.total.credits += 1
            self._tallies.of(sender).credits += 1
        return Taken(future, "")

    def _remember(self) -> None:
        """Read back which fragments the log still has."""
        place: Cursor = {}
        while True:
            records, place = self._log.read(EXPERIENCES, after=place, limit=_READ, timeout=0.0)
            if not records:
                return
            for record in records:
                if kind_of(record.payload) == "Fragment":
                    with suppress(FarfieldError):  # what the disk damaged is for its reader to say
                        self._marks.add(*decode_fragment(record.payload).name[1:])

    def _tidy(self) -> None:
        self._letters.trim()
        self._probes.trim()
