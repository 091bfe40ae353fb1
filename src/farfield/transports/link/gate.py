"""An address, a token and certificates in; the client's end of the Gateway service out, whatever the network does."""

from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
from msgspec import Struct

from farfield import codec
from farfield.errors import ConfigError, FarfieldError, FullError, MissingError, SpecError
from farfield.transports.link.appending import Appender, Parcel
from farfield.transports.link.asking import Answer, Asker
from farfield.transports.link.lifeline import Lifeline, Stream
from farfield.transports.link.versions import Follower
from farfield.types import Columns, Hello, Memory, Version, Weights, Welcome
from farfield.v1 import farfield_pb2 as wire
from farfield.v1 import farfield_pb2_grpc as calls

Code = grpc.StatusCode
_OPTIONS = [
    ("grpc.max_send_message_length", codec.LIMIT + (1 << 20)),
    ("grpc.max_receive_message_length", codec.LIMIT + (1 << 20)),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),  # what is not owned is sent again by the appender
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 20_000),  # a connection of which only one end is left is noticed
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.bdp_probe", 0),
]
_FINAL: dict[Any, type[FarfieldError]] = {
    Code.UNAUTHENTICATED: ConfigError,
    Code.PERMISSION_DENIED: ConfigError,
    Code.FAILED_PRECONDITION: ConfigError,
    Code.NOT_FOUND: MissingError,
    Code.INVALID_ARGUMENT: SpecError,
    Code.RESOURCE_EXHAUSTED: FullError,
}


class Tls(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files in PEM form. Without `ca`, the authorities that gRPC brings along; `cert` and `key` say who we are."""

    ca: str = ""
    cert: str = ""
    key: str = ""
    name: str = ""  # that the server's certificate is for, where that is not the address


class Told(Struct, frozen=True):
    """Who hears what; called from threads of the link, one at a time for each call."""

    welcomed: Callable[[Welcome], object]
    settled: Callable[[dict[str, int]], object]  # stream -> fragments
    arrived: Callable[[Version, Weights], object]


class Gate:
    """A channel to one gateway; connects by itself, now or when there is one."""

    def __init__(self, address: str, *, token: str = "", tls: Tls | None = None) -> None:
        self.address = address
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        options: list[tuple[str, Any]] = list(_OPTIONS)
        if address.startswith(("unix:", "localhost:", "127.", "[::1]")):
            options.append(("grpc.enable_http_proxy", 0))
        if tls is None:
            self._channel = grpc.insecure_channel(address, options=options)
        else:
            if tls.name:
                options.append(("grpc.ssl_target_name_override", tls.name))
            self._channel = grpc.secure_channel(address, _credentials(tls), options=options)
        self._stub: Any = calls.GatewayStub(self._channel)

    def greet(self, hello: Hello, timeout: float) -> Welcome:
        """Ask to be let in, once."""
        return codec.read_welcome(self._unary(self._stub.Greet, codec.write_hello(hello), timeout))

    def credit(self, hello: Hello, payloads: list[bytes], timeout: float) -> int:
        """Hand over late rewards, once; gives how many are owned."""
        request = wire.CreditRequest(hello=codec.write_hello(hello), payloads=payloads)
        return self._unary(self._stub.Credit, request, timeout).owned

    def probe(self, hello: Hello, size: int, timeout: float) -> Iterator[None]:
        """Let bytes that nobody reads be made durable: yields when let in, and each time when they are."""
        requests: SimpleQueue[Any] = SimpleQueue()
        requests.put(wire.Up(hello=codec.write_hello(hello)))
        call = self._stub.Append(iter(requests.get, None), metadata=self._metadata, timeout=timeout)
        stream = self._stream(call, None)
        try:
            for _ in stream.replies:
                yield
                requests.put(wire.Up(probe=bytes(size)))
        finally:
            requests.put(None)
            stream.cancel()

    def newest(self, hello: Hello, timeout: float) -> Version | None:
        """Ask for the newest version, once; none where there is none in time."""
        request = wire.VersionsRequest(hello=codec.write_hello(hello))
        stream = self._stream(self._stub.Versions(request, metadata=self._metadata, timeout=timeout), None)
        try:
            return codec.decode_announcement(next(stream.replies).announcement).version
        except (ConnectionError, StopIteration):
            return None
        finally:
            stream.cancel()

    def link(self, hello: Hello, told: Told, *, follow: bool) -> "Link":
        """Begin to send experience and, asked for, to follow versions."""
        return Link(self, hello, told, follow=follow)

    def open(self, name: str, requests: Any, line: Lifeline) -> Stream:
        """Open a streaming call; a final refusal ends its lifeline."""
        call = getattr(self._stub, name)(requests, metadata=self._metadata)
        return self._stream(call, line)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _unary(self, call: Any, request: Any, timeout: float) -> Any:
        try:
            return call(request, metadata=self._metadata, timeout=timeout)
        except grpc.RpcError as error:
            raise self._refused(error) or ConnectionError(self._said(error)) from error

    def _stream(self, call: Any, line: Lifeline | None) -> Stream:
        def replies() -> Iterator[Any]:
            try:
                yield from call
            except grpc.RpcError as error:
                refusal = self._refused(error)
                if refusal is not None and line is None:
                    raise refusal from error
                if refusal is not None and line is not None:
                    line.refuse(refusal)
                raise ConnectionError(self._said(error)) from error

        return Stream(replies(), call.cancel)

    def _refused(self, error: Any) -> FarfieldError | None:
        kind = _FINAL.get(error.code())
        return kind(f"{self.address}: {error.details()}") if kind else None

    def _said(self, error: Any) -> str:
        return f"{self.address}: {error.code().name}: {error.details()}"


class Link:
    """What one policy of one program has open to its gateway."""

    def __init__(self, gate: Gate, hello: Hello, told: Told, *, follow: bool) -> None:
        said = codec.write_hello(hello)
        self._appender = Appender(
            lambda requests: gate.open("Append", requests, self._appender.line),
            said, welcomed=told.welcomed, settled=told.settled,
        )  # fmt: skip
        self._follower = Follower(
            lambda request: gate.open("Versions", request, self._follower.line),
            said, arrived=told.arrived, settled=told.settled,
        )  # fmt: skip
        self._asker = Asker(lambda requests: gate.open("Act", requests, self._asker.line), said)
        self._asking = False
        self._appender.line.start()
        if follow:
            self._follower.line.start()

    @property
    def lines(self) -> tuple[Lifeline, ...]:
        """Give all calls, for those who count."""
        return self._appender.line, self._follower.line, self._asker.line

    @property
    def refusal(self) -> FarfieldError | None:
        """Say why the server will never let us in, if it said so."""
        return next((line.refusal for line in self.lines if line.refusal), None)

    @property
    def connected(self) -> bool:
        """Say whether experience can be sent now."""
        return self._appender.line.connected

    @property
    def trouble(self) -> str:
        """Say what went wrong last."""
        return self._appender.line.trouble

    @property
    def reconnects(self) -> int:
        """Count calls that were opened again."""
        return sum(max(0, line.connects - 1) for line in self.lines)

    @property
    def rubbish(self) -> int:
        """Count answers that made no sense."""
        return sum(line.rubbish for line in self.lines)

    @property
    def sent(self) -> int:
        """Count payloads that were sent, those sent again too."""
        return self._appender.sent

    def send(self, parcel: Parcel) -> None:
        """Deliver a parcel, in order."""
        self._appender.send(parcel)

    def ask(
        self, observations: Columns, memory: Memory, *, stream: str, decision: int, timeout: float
    ) -> Answer | None:
        """Let the server decide; none in time."""
        if not self._asking:
            self._asking = True
            self._asker.line.start()
        return self._asker.ask(observations, memory, stream=stream, decision=decision, timeout=timeout)

    def close(self) -> None:
        """End all calls."""
        self._appender.close()
        self._follower.line.close()
        self._asker.close()


def _credentials(tls: Tls) -> Any:
    return grpc.ssl_channel_credentials(_pem(tls.ca, "ca"), _pem(tls.key, "key"), _pem(tls.cert, "cert"))


def _pem(path: str, what: str) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"tls: {what} = {path!r}: {error.strerror}; give a PEM file that can be read") from error
