"""Calls of live programs over gRPC in, calls of Host and Hosted out: the service `Gateway`."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import grpc

from farfield import codec
from farfield.errors import ConfigError, ConflictError, CorruptError, FarfieldError, FullError, MissingError, SpecError
from farfield.serving.asking import Asking, ask_of, reply_to
from farfield.serving.host import Host, name_of, outdated
from farfield.serving.hosted import Hosted, Limits
from farfield.serving.pulses import Pulse
from farfield.serving.tokens import StrangerError, bearer
from farfield.serving.uplinks import EOF, Uplink
from farfield.types import Hello, Welcome
from farfield.v1 import farfield_pb2 as wire
from farfield.v1 import farfield_pb2_grpc as calls

Code = grpc.StatusCode
GREETING = 30.0  # seconds in which a client has to say who it is
TEXT = 1000  # characters of an error: it travels in a header
THREADS = 8  # that open runs and check large payloads
READERS = "ingest act read"  # who may know a run's versions has one of these scopes
_AROUND = 1 << 20  # bytes of a message besides its payload
_OPTIONS = [
    ("grpc.so_reuseport", 0),  # two servers on one port would each get some of the clients
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a small message must not unpack into a huge one
    ("grpc.keepalive_time_ms", 20_000),  # a client that vanished is noticed within half a minute
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_metadata_size", 16 << 10),
]
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
logger = logging.getLogger("farfield.gateway")


Call = Callable[[Any, Any], Awaitable[Any]]


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
        first = await _first(context)
        hosted, welcome, hello = await self._admit(first.hello, context, "ingest")
        with self._host.seat():
            await context.write(wire.Down(welcome=codec.write_welcome(welcome)))
            admit = self._again(hello, context, "ingest")
            uplink = Uplink(hosted, self._pulse(hosted), _sender(hello, context), pool=self._pool, admit=admit)
            await self._serve(uplink, uplink.run(first, context))

    async def versions(self, request: wire.VersionsRequest, context: Any) -> None:
        """Send the newest version, and each newer one once the one before has left."""
        hosted, _, hello = await self._admit(request.hello, context, READERS)
        pulse, admit = self._pulse(hosted), self._again(hello, context, READERS)
        await context.send_initial_metadata(())  # let in, however late the first version is
        have = {name: digest.hex() for name, digest in request.have.items()}
        sent = None
        while not self.stopping:
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
        first = await _first(context)
        hosted, _, _ = await self._admit(first.hello, context, "act")
        asking = Asking(hosted)
        try:
            await self._serve(asking, asking.run(first, context))
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
            self._pulses[hosted] = Pulse(hosted)
        return self._pulses[hosted]


class Server:
    """Serves until it is stopped; `address` is where."""

    def __init__(self, server: Any, service: Service, address: str) -> None:
        self._server, self._service = server, service
        self.address = address

    async def stop(self, grace: float = 2.0) -> None:
        """Answer what was taken, within `grace` seconds; clients send the rest again."""
        self._service.stop()
        await self._server.stop(grace)
        self._service.close()


async def serve(
    host: Host, address: str, *, credentials: grpc.ServerCredentials | None = None, limits: Limits | None = None
) -> Server:
    """Serve on "unix:/path" or "host:port" (port 0: a free one), with TLS where credentials are given."""
    most = 2 * (limits or Limits()).payload + _AROUND  # what is somewhat too large is still refused by name
    sizes = [("grpc.max_receive_message_length", most), ("grpc.max_send_message_length", codec.LIMIT + _AROUND)]
    server, service = grpc.aio.server(options=[*_OPTIONS, *sizes]), Service(host)
    routes = SimpleNamespace(
        Greet=_told(service.greet), Append=_told(service.append), Versions=_told(service.versions),
        Act=_told(service.act), ActOnce=_told(service.act_once), Credit=_told(service.credit),
    )  # fmt: skip
    calls.add_GatewayServicer_to_server(routes, server)
    try:
        port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    except RuntimeError as error:
        service.close()
        raise ConfigError(f"cannot serve on {address!r}: {error}; give another address") from error
    await server.start()
    if address.startswith("unix:"):
        Path(address.removeprefix("unix:")).chmod(0o600)
        return Server(server, service, address)
    return Server(server, service, f"{address.rpartition(':')[0]}:{port}")


def _told(call: Call) -> Call:
    """Turn what a call raises into a status; of what nobody foresaw only our own log has the details."""

    async def told(request: Any, context: Any) -> Any:
        try:
            return await call(request, context)
        except (FarfieldError, OSError) as error:
            code = next((code for kind, code in _STATUSES if isinstance(error, kind)), Code.INTERNAL)
            await _abort(context, code, str(error)[:TEXT])
        except grpc.aio.AbortError:
            raise
        except (grpc.aio.InternalError, grpc.aio.UsageError):
            logger.debug("a client went away in the middle of a call", exc_info=True)
        except Exception:
            logger.exception("a call failed")
            await _abort(context, Code.INTERNAL, "the gateway failed to answer; its log says why")

    return told


async def _abort(context: Any, code: Code, text: str) -> None:
    try:
        await context.abort(code, text)
    except (grpc.aio.InternalError, grpc.aio.UsageError):
        logger.debug("a client went away before it could be told: %s", text)


async def _first(context: Any) -> Any:
    try:
        first = await asyncio.wait_for(context.read(), GREETING)
    except TimeoutError:
        first = EOF
    if first is EOF:
        raise SpecError(f"hello: expected within {GREETING:g} s, came nothing")
    return first


def _token(context: Any) -> str:
    found = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
    return bearer(str(found[0])) if found else ""


def _sender(hello: Hello, context: Any) -> str:
    """Name a client for people."""
    label = "".join(letter if letter.isprintable() else "?" for letter in hello.client[:64])
    return label or str(context.peer())[:64]
