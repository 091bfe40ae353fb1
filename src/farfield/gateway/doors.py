"""Addresses and certificates in, listening doors out: gRPC, and HTTP by uvicorn, both on one event loop."""

import asyncio
import os
import socket
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it would write lines of its own, and every failure is told by ours

import grpc
import uvicorn

from farfield.errors import ConfigError
from farfield.gateway.addresses import Address
from farfield.gateway.settings import Tls

DRAIN = 3  # seconds that calls get to end
BACKLOG = 1024  # connections that wait to be accepted


class Http:
    """The HTTP door: bound at once, so that its port is known; it answers from `start` to `stop`."""

    def __init__(self, app: Any, address: Address, tls: Tls | None, *, clients: int) -> None:
        self._socket = _bound(address)
        where = self._socket.getsockname()
        self.address = Address(where[0], where[1])
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", ws="none", server_header=False,
            proxy_headers=False, limit_concurrency=clients, timeout_keep_alive=30, timeout_graceful_shutdown=DRAIN,
        )  # fmt: skip
        config.load()
        if tls is not None:
            config.ssl = _context(tls)
        self._server = Quiet(config)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Answer from now on."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def stop(self) -> None:
        """Take no more calls, and end when those that run are answered."""
        self._server.should_exit = True
        if self._task:
            await self._task


class Quiet(uvicorn.Server):
    """A server that leaves signals to the process that it is a part of."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave them."""
        yield


def grpc_credentials(tls: Tls | None) -> grpc.ServerCredentials | None:
    """Read certificates for gRPC; with `client_ca`, clients have to show one."""
    if tls is None:
        return None
    _context(tls)  # says what is wrong with them, which gRPC does not
    client_ca = _read(tls.client_ca, "client_ca") if tls.client_ca else None
    pair = _read(tls.key, "key"), _read(tls.cert, "cert")
    return grpc.ssl_server_credentials([pair], client_ca, require_client_auth=client_ca is not None)


def _context(tls: Tls) -> ssl.SSLContext:
    """Read certificates for HTTP."""
    for name, path in (("cert", tls.cert), ("key", tls.key), ("client_ca", tls.client_ca)):
        if path:
            _read(path, name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(tls.cert, tls.key, password=lambda: "")  # never asks a terminal
        if tls.client_ca:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"[tls] {tls.cert}, {tls.key}: no certificate with its own key without a passphrase, in PEM ({error})"
        ) from error
    return context


def _read(path: str, key: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"[tls] {key} = {path!r}: {error.strerror}; give a PEM file that can be read") from error


def _bound(address: Address) -> socket.socket:
    """Take the port, or say who might have it."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((address.host, address.port))
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"http = {str(address)!r} cannot be listened on ({error.strerror}): is another gateway there? "
            "Give another address"
        ) from error
    return listening
