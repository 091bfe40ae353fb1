"""A log over gRPC: `make` gives a client that implements Transport, `serve` lets clients use any transport."""

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from ipaddress import ip_address
from pathlib import Path
from threading import Event, Lock
from types import SimpleNamespace
from typing import Any

import grpc
from msgspec import Struct

from farfield.codec import LIMIT
from farfield.errors import ConfigError, FarfieldError, MissingError
from farfield.protocols import Transport
from farfield.transports._streams import CHUNK, MOST, Downlink, Stream, Uplink
from farfield.types import ALL, Buffer, Cursor, Record, Share
from farfield.v1 import farfield_pb2 as wire
from farfield.v1 import farfield_pb2_grpc as calls

_POLL = 0.25  # seconds after which a server's reader looks whether anybody still listens
_BOTH = [
    ("grpc.max_send_message_length", LIMIT + (1 << 20)),  # a payload and what is around it
    ("grpc.max_receive_message_length", LIMIT + (1 << 20)),
    ("grpc.http2.lookahead_bytes", 4 << 20),
    ("grpc.http2.bdp_probe", 0),
]
_CLIENT = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),  # what is not acknowledged is sent again by the uplink
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
_SERVER = [("grpc.so_reuseport", 0)]  # two servers on one port would each get some of the clients


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a client."""

    address: str  # "unix:/path" or "host:port"
    wait: float = 10.0  # seconds that an append waits for room, and close for acknowledgements
    outstanding: int = 32 << 20  # bytes that may be on their way: appended and not acknowledged, or read ahead


class GrpcTransport:
    """Implements Transport for another process."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._channel = grpc.insecure_channel(config.address, options=_BOTH + _CLIENT)
        self._stub: Any = calls.FarfieldStub(self._channel)
        self._lock = Lock()
        self._uplink = Uplink(
            lambda requests: _stream(self._stub.Append(requests, wait_for_ready=True)),
            to=config.address,
            wait=config.wait,
            bound=config.outstanding,
        )
        self._downlinks: dict[tuple[str, Share], Downlink] = {}
        self._notes: dict[tuple[str, str], Cursor] = {}  # the newest of each group while one is on its way
        self._closed = False

    def append(self, topic: str, payload: Buffer, *, key: str) -> "Future[None]":
        """Send a message; sent again until acknowledged, so that it may arrive twice when a connection is lost."""
        return self._uplink.append(topic, payload, key)

    def read(
        self, topic: str, *, after: Cursor, share: Share = ALL, limit: int, timeout: float
    ) -> tuple[list[Record], Cursor]:
        """Read what has been pushed; another cursor than the last one returned starts the stream anew."""
        if not 0 <= share.part < share.of or limit < 1:
            raise ConfigError(
                f"topic {topic!r}: expected 0 <= part < of and limit >= 1, came {share} and limit {limit}"
            )
        place = {number: offset for number, offset in after.items() if number % share.of == share.part}
        left: Downlink | None = None
        with self._lock:
            self._check_open()
            link = self._downlinks.get((topic, share))
            if link is None or link.place != place:
                left, link = link, Downlink(self._follow, topic, share, place, self._config.outstanding)
                self._downlinks[topic, share] = link
        if left is not None:  # without the lock: the thread that ends its stream may be waiting for it to send a note
            left.close()
        records = link.take(limit, timeout)
        return records, after | link.place

    def note(self, topic: str, group: str, cursor: Cursor) -> None:
        """Tell the server soon; where notes come faster than they travel, only the newest does."""
        with self._lock:
            self._check_open()
            busy = (topic, group) in self._notes
            self._notes[topic, group] = self._notes.get((topic, group), {}) | cursor
        if not busy:
            self._send_note(topic, group, None)

    def close(self) -> None:
        """Deliver what was appended, or fail it after `wait` seconds; stop reading."""
        with self._lock:
            self._closed = True
            links = list(self._downlinks.values())
        self._uplink.close()
        for link in links:
            link.close()
        self._channel.close()

    def _check_open(self) -> None:
        if self._closed:
            raise MissingError(f"the transport to {self._config.address} was closed: make a new one")

    def _follow(self, request: wire.ReadRequest) -> Stream:
        return _stream(self._stub.Read(request, wait_for_ready=True))

    def _send_note(self, topic: str, group: str, sent: Cursor | None) -> None:
        with self._lock:
            cursor = dict(self._notes[topic, group])
            if self._closed or cursor == sent:
                del self._notes[topic, group]
                return
            request = wire.NoteRequest(topic=topic, group=group, cursor=cursor)
            call = self._stub.Note.future(request, timeout=self._config.wait, wait_for_ready=True)
        call.add_done_callback(lambda _: self._send_note(topic, group, cursor))


class Service:
    """Answers calls from a transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.stopping = Event()

    def append(self, requests: Iterator[wire.AppendRequest], context: Any) -> Iterator[wire.AppendReply]:
        """Append each request's messages, then acknowledge them together."""
        settled = 0
        for request in requests:
            owned: list[Future[None]] = []
            for message in request.messages:
                try:
                    owned.append(self._transport.append(message.topic, message.payload, key=message.key))
                except MissingError as error:  # closed: the client keeps what is not acknowledged
                    context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
                except FarfieldError as error:
                    owned.append(Future())
                    owned[-1].set_exception(error)
            problems = [_problem(index, future.exception()) for index, future in enumerate(owned, settled)]
            settled += len(owned)
            yield wire.AppendReply(settled=settled, errors=[problem for problem in problems if problem])

    def read(self, request: wire.ReadRequest, context: Any) -> Iterator[wire.ReadReply]:
        """Push records as they come, until nobody listens."""
        place, share = dict(request.after), Share(request.part, request.of)
        while context.is_active() and not self.stopping.is_set():
            try:
                records, cursor = self._transport.read(
                    request.topic, after=place, share=share, limit=MOST, timeout=_POLL
                )
            except FarfieldError as error:
                ours = isinstance(error, ConfigError)
                return context.abort(grpc.StatusCode[("UNAVAILABLE", "INVALID_ARGUMENT")[ours]], str(error))
            yield from _replies(records)
            if not records and cursor != place:
                yield wire.ReadReply(cursor=cursor)
            place = cursor

    def note(self, request: wire.NoteRequest, context: Any) -> wire.NoteReply:
        """Pass on how far a group is."""
        self._transport.note(request.topic, request.group, dict(request.cursor))
        return wire.NoteReply()


class Server:
    """Serves until it is stopped; `address` is where."""

    def __init__(self, server: Any, pool: ThreadPoolExecutor, service: Service, address: str) -> None:
        self._server, self._pool, self._service = server, pool, service
        self.address = address

    def stop(self) -> None:
        """End all calls and wait for their threads; clients send again what was not acknowledged."""
        self._service.stopping.set()
        self._server.stop(grace=None).wait()
        self._pool.shutdown()


def make(config: Config) -> GrpcTransport:
    """Open a client; it connects by itself, now or when there is a server."""
    _check_local(config.address)
    if config.wait < 0 or config.outstanding < 1:
        raise ConfigError(f"[transport] grpc: expected wait >= 0 and outstanding >= 1, came {config}")
    return GrpcTransport(config)


def serve(transport: Transport, address: str, *, threads: int = 64) -> Server:
    """Serve a transport on "unix:/path" or a loopback "host:port"; each stream of a client takes a thread."""
    _check_local(address)
    reason = _obstacle(address)  # first: gRPC would take a socket away from a process that serves it
    if reason:
        raise ConfigError(f"cannot serve on {address!r}: {reason}; give another address, or stop who has it")
    pool = ThreadPoolExecutor(threads, thread_name_prefix="farfield-grpc")
    server = grpc.server(pool, options=_BOTH + _SERVER, maximum_concurrent_rpcs=threads)
    service = Service(transport)
    routes = SimpleNamespace(Append=service.append, Read=service.read, Note=service.note)
    calls.add_FarfieldServicer_to_server(routes, server)
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        pool.shutdown()
        raise ConfigError(f"cannot serve on {address!r}: {error}; give another address") from error
    server.start()
    if address.startswith("unix:"):
        _path(address).chmod(0o600)
        return Server(server, pool, service, address)
    return Server(server, pool, service, f"{address.rpartition(':')[0]}:{port}")


def _stream(call: Any) -> Stream:
    def replies() -> Iterator[Any]:
        try:
            yield from call
        except grpc.RpcError as error:
            if call.code() is grpc.StatusCode.INVALID_ARGUMENT:
                raise ConfigError(call.details()) from error
            raise ConnectionError(f"{call.code().name}: {call.details()}") from error

    return Stream(replies(), call.cancel)


def _replies(records: list[Record]) -> Iterator[wire.ReadReply]:
    reply, size = wire.ReadReply(), 0
    for payload, key, partition, offset in records:
        if size and size + len(payload) > CHUNK:
            yield reply
            reply, size = wire.ReadReply(), 0
        reply.records.add(payload=bytes(payload), key=key, partition=partition, offset=offset)
        size += len(payload)
    if records:
        yield reply


def _problem(index: int, error: BaseException | None) -> wire.AppendReply.Error | None:
    return error and wire.AppendReply.Error(index=index, kind=type(error).__name__, text=str(error))


def _path(address: str) -> Path:
    return Path(address.removeprefix("unix:"))


def _check_local(address: str) -> None:
    if address.startswith("unix:"):
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f'address {address!r}: expected "unix:/path" or "host:port"')
    try:
        local = host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        local = False
    if not local:
        raise ConfigError(
            f"address {address!r} is not this machine's own, and there are no tokens yet: use 127.0.0.1:{port}"
        )


def _obstacle(address: str) -> str:
    """Say what stands in the way of serving here, by trying; gRPC does not tell."""
    host, _, port = address.rpartition(":")
    unix = address.startswith("unix:")
    family = socket.AF_UNIX if unix else socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    path = str(_path(address))
    with socket.socket(family) as probe:
        try:
            if unix and _path(address).is_socket():
                return "another process serves it" if probe.connect_ex(path) == 0 else ""
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(path if unix else (host.strip("[]"), int(port)))
        except OSError as error:
            return error.strerror or str(error)
    if unix:
        _path(address).unlink()
    return ""
