"""An address as a person writes it in; where to listen, and whether only this machine can reach it, out."""

import socket
from ipaddress import ip_address
from typing import NamedTuple

from farfield.errors import ConfigError

EXAMPLE = "127.0.0.1:50051, [::1]:50051, or 0.0.0.0:50051 for every network"


class Address(NamedTuple):
    """Where a door listens: a number of the network and a port, or a unix socket."""

    host: str
    port: int

    def __str__(self) -> str:
        """Give it as clients write it."""
        if self.host.startswith("unix:"):
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host.startswith("unix:") or ip_address(self.host).is_loopback


def parse(text: str, key: str) -> Address | None:
    """Read `host:port`; a name becomes the number that it has now, so that what was checked is what is bound."""
    if not text:
        return None
    if text.startswith("unix:"):
        if key != "grpc":
            raise ConfigError(f"{key} = {text!r}: this door needs a port, such as {EXAMPLE}")
        return Address(text, 0)
    host, colon, digits = text.rpartition(":")
    if not colon or not digits.isdecimal() or int(digits) > 65535 or (":" in host and not host.startswith("[")):
        raise ConfigError(f"{key} = {text!r}: expected host:port, such as {EXAMPLE}")
    return Address(_number(host.strip("[]") or "0.0.0.0", key), int(digits))


def _number(host: str, key: str) -> str:
    try:
        return str(ip_address(host))
    except ValueError:
        pass  # a name
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{key}: no network has the name {host!r} ({error}); give a number such as {EXAMPLE}"
        ) from error
    numbers = [str(where[0]) for family, _, _, _, where in found if family in (socket.AF_INET, socket.AF_INET6)]
    return next((number for number in numbers if ":" not in number), numbers[0]).partition("%")[0]
