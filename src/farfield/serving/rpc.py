"""An address and a Host in, the service `Gateway` on a port out: sizes, signs of life and certificates of gRPC."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc.aio

from farfield import codec
from farfield.errors import ConfigError
from farfield.serving.calls import Service, told
from farfield.serving.host import Host
from farfield.serving.hosted import Limits
from farfield.v1.farfield_pb2_grpc import add_GatewayServicer_to_server

_AROUND = 1 << 20  # bytes of a message besides its payload
_OPTIONS = [
    ("grpc.so_reuseport", 0),  # two servers on one port would each get some of the clients
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a small message must not unpack into a huge one
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_metadata_size", 16 << 10),
]


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
    host: Host, address: str, *, credentials: grpc.ServerCredentials | None = None, limits: Limits | None = None,
    silence: float = 20.0,
) -> Server:  # fmt: skip
    """Serve on "unix:/path" or "host:port" (port 0: a free one), with TLS where credentials are given.

    Of a client that was silent for so many seconds a sign of life is asked, and half as long is waited for it.
    """
    most = 2 * (limits or Limits()).payload + _AROUND  # what is somewhat too large is still refused by name
    sizes = [("grpc.max_receive_message_length", most), ("grpc.max_send_message_length", codec.LIMIT + _AROUND)]
    patience = int(silence * 500)
    alive = [("grpc.keepalive_time_ms", int(silence * 1000)), ("grpc.keepalive_timeout_ms", patience),
             ("grpc.http2.ping_timeout_ms", patience)]  # fmt: skip
    server, service = grpc.aio.server(options=[*_OPTIONS, *sizes, *alive]), Service(host)
    routes = SimpleNamespace(
        Greet=told(service.greet), Append=told(service.append), Versions=told(service.versions),
        Act=told(service.act), ActOnce=told(service.act_once), Credit=told(service.credit),
    )  # fmt: skip
    add_GatewayServicer_to_server(routes, server)
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
