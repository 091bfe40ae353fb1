"""Calls of live programs over gRPC in, calls of Host and Hosted out; what those raise as a status with its cure."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakValueDictionary

import grpc.aio

from farfield import codec
from farfield.errors import ConfigError, ConflictError, CorruptError, FarfieldError, FullError, MissingError, SpecError
from farfield.serving.asking import Asking, ask_of, reply_to
from farfield.serving.host import Host, name_of, outdated
from farfield.serving.hosted import Hosted
from farfield.serving.pulses import Pulse
from farfield.serving.tokens import StrangerError, bearer
from farfield.serving.uplinks import Uplink
from farfield.types import Hello, Welcome
from farfield.v1 import farfield_pb2 as wire

Code = grpc.StatusCode
_EOF: Any = grpc.aio.EOF  # pyright: ignore[reportAttributeAccessIssue]
GREETING = 30.0  # seconds in which a client has to say who it is
TEXT = 600  # characters of an error: it travels in a header, where some take twelve bytes
THREADS = 8  # that open runs and check large payloads
READERS = "ingest act read"  # who may know a run's versions has one of these scopes
_STATUSES: tuple[tuple[type[Exception], Code], ...] = (
    (StrangerError, Code.UNAUTHENTICATED),
    (PermissionError, Code.PERMISSION_DENIED),
    (MissingError, Code.NOT_FOUND),
    (SpecError, Code.INVALID_ARGUMENT),
    (ConfigError, Code.INVALID_ARGUMENT),
    (FullError, Code.RESOURCE_EXHAUSTED),
    (ConflictError, Code.UNAVAILABLE),
    (CorruptError, Code.UNAVAILABLE),  # what is damaged here; what a client sends is refused by name
    (OSError, Code.UNAVAILABLE),
)
_STOPPING = "this gateway is stopping: try again, here or where it starts anew"
_RUBBISH = "what came is no message of farfield/v1: use a client of this version, and TLS where a network changes bytes"
logger = logging.getLogger("farfield.gateway")


Call = Callable[[Any, Any], Awaitable[Any]]


class Talk:
    """A call in which both sides speak, without the details of gRPC."""

    def __init__(self, context: Any) -> None:
        self._context = context

    async def read(self) -> Any:
        """Give the next message; None after the last one."""
        try:
            message = await self._context.read()
        except grpc.aio.UsageError:  # the call has ended meanwhile
            return None
        return None if message is _EOF else message

    async def write(self, message: Any) -> None:
        """Send a message as soon as the client takes it."""
        await self._context.write(message)


class Service:
    """The calls, each for one client; what they raise becomes a status that says what to do."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="farfield-gateway")
        self._opening: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._pulses: dict[Hosted, Pulse] = {}
        self._calls: set[Uplink | Asking] = set()
        self.stopping = False

    async def greet(self, request: wire.Hello, context: Any) -> wire.Welcome:
        """Let a client in, and create its run where it may."""
        _, welcome, _ = await self._admit(request, context, READERS)
        return codec.write_welcome(welcome)

    async def append(self, _: Any, context: Any) -> None:
        """Take payloads until the client is done."""
        talk = Talk(context)
        first = await _first(talk)
        hosted, welcome, hello = await self._admit(first.hello, context, "ingest")
        with self._host.seat():
            await talk.write(wire.Down(welcome=codec.write_welcome(welcome)))
            admit = self._again(hello, context, "ingest")
            uplink = Uplink(hosted, self._pulse(hosted), _sender(hello, context), pool=self._pool, admit=admit)
            await self._serve(uplink, uplink.run(first, talk))

    async def versions(self, request: wire.VersionsRequest, context: Any) -> None:
        """Send the newest version, and each newer one once the one before has left."""
        hosted, _, hello = await self._admit(request.hello, context, READERS)
        pulse, admit = self._pulse(hosted), self._again(hello, context, READERS)
        await context.send_initial_metadata(())  # let in, however late the first version is
        have = {name: digest.hex() for name, digest in request.have.items()}
        sent = None
        while not (self.stopping or hosted.closed):
            release = hosted.release()
            payload = None if release is None or release is sent else hosted.announcement(have)
            if release is None or payload is None:
                await pulse.news()
                continue
            admit()
            await context.write(wire.VersionsReply(announcement=payload))
            sent, have = release, release.hashes
        raise ConflictError(_STOPPING)

    async def act(self, _: Any, context: Any) -> None:
        """Decide whatever the client asks."""
        talk = Talk(context)
        first = await _first(talk)
        hosted, _, _ = await self._admit(first.hello, context, "act")
        asking = Asking(hosted)
        try:
            await self._serve(asking, asking.run(first, talk))
        except MissingError as error:
            raise ConflictError(str(error)) from error  # later there is one

    async def act_once(self, request: wire.ActRequest, context: Any) -> wire.ActReply:
        """Decide once."""
        hosted, _, _ = await self._admit(request.hello, context, "act")
        try:
            answer = await hosted.act(ask_of(request))
        except MissingError as error:
            raise ConflictError(str(error)) from error  # later there is one
        return reply_to(request.id, answer)

    async def credit(self, request: wire.CreditRequest, context: Any) -> wire.CreditReply:
        """Take late rewards, from whichever process has them."""
        hosted, _, hello = await self._admit(request.hello, context, "ingest")
        sender = _sender(hello, context)
        try:
            owned = [hosted.credit(payload, sender) for payload in request.payloads]
        except CorruptError as error:
            raise SpecError(str(error)) from error
        await asyncio.gather(*map(asyncio.wrap_future, owned))
        return wire.CreditReply(owned=len(owned))

    def stop(self) -> None:
        """Take nothing more; calls end once what they took is answered."""
        self.stopping = True
        for call in self._calls:
            call.stop()
        for pulse in self._pulses.values():
            pulse.wake()

    def close(self) -> None:
        """Give threads back."""
        for pulse in self._pulses.values():
            pulse.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _serve(self, call: "Uplink | Asking", run: Awaitable[None]) -> None:
        self._calls.add(call)
        try:
            await run
        finally:
            self._calls.discard(call)
        if self.stopping:
            raise ConflictError(_STOPPING)

    async def _admit(self, message: wire.Hello, context: Any, scopes: str) -> tuple[Hosted, Welcome, Hello]:
        """Find the run that a client may use; whoever asks for one that is not open waits for that elsewhere."""
        if self.stopping:
            raise ConflictError(_STOPPING)
        try:
            hello = codec.read_hello(message)
        except CorruptError as error:
            raise SpecError(f"hello: {error}") from error
        run, token = name_of(hello), _token(context)
        self._host.check(token, run, scopes)
        if old := outdated(hello):
            await context.abort(Code.FAILED_PRECONDITION, old)
        found = self._host.find(run)
        if found is not None and found.spec is not None:
            return *self._host.greet(hello, token, scopes), hello
        lock = self._opening.get(run) or self._opening.setdefault(run, asyncio.Lock())
        async with lock:
            greeting = asyncio.get_running_loop().run_in_executor(self._pool, self._host.greet, hello, token, scopes)
            return *(await greeting), hello

    def _again(self, hello: Hello, context: Any, scopes: str) -> Callable[[], None]:
        """Give what refuses a client whose token has expired since."""
        run, token = name_of(hello), _token(context)
        return lambda: self._host.check(token, run, scopes)

    def _pulse(self, hosted: Hosted) -> Pulse:
        if hosted not in self._pulses:
            for closed in [other for other in self._pulses if other.closed]:
                self._pulses.pop(closed).close()
            self._pulses[hosted] = Pulse(hosted)
        return self._pulses[hosted]


def told(call: Call) -> Call:
    """Turn what a call raises into a status; of what nobody foresaw only our own log has the details."""

    async def answer(request: Any, context: Any) -> Any:
        try:
            return await call(request, context)
        except (FarfieldError, OSError) as error:
            code = next((code for kind, code in _STATUSES if isinstance(error, kind)), Code.INTERNAL)
            await _abort(context, code, str(error)[:TEXT])
        except codec.DecodeError:  # not a last word: the network may have changed it
            await _abort(context, Code.INTERNAL, _RUBBISH)
        except grpc.aio.AbortError:
            raise
        except (grpc.aio.InternalError, grpc.aio.UsageError):
            logger.debug("a client went away in the middle of a call", exc_info=True)
        except Exception:
            logger.exception("a call failed")
            await _abort(context, Code.INTERNAL, "the gateway failed to answer; its log says why")

    return answer


async def _abort(context: Any, code: Code, text: str) -> None:
    try:
        await context.abort(code, text)
    except (grpc.aio.InternalError, grpc.aio.UsageError):
        logger.debug("a client went away before it could be told: %s", text)


async def _first(talk: Talk) -> Any:
    try:
        first = await asyncio.wait_for(talk.read(), GREETING)
    except TimeoutError:
        first = None
    if first is None:
        raise SpecError(f"hello: expected within {GREETING:g} s, came nothing")
    return first


def _token(context: Any) -> str:
    found = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
    return bearer(str(found[0])) if found else ""


def _sender(hello: Hello, context: Any) -> str:
    """Name a client for people."""
    label = "".join(letter if letter.isprintable() else "?" for letter in hello.client[:64])
    return label or str(context.peer())[:64]
