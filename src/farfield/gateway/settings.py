"""server.toml and options in, one frozen Settings out; what would let strangers in is refused."""

import typing
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from farfield import config as configs
from farfield.config import Section
from farfield.errors import ConfigError, nearest
from farfield.gateway.addresses import Address, parse
from farfield.serving.tokens import Token

Level = Literal["debug", "info", "warning", "error"]
Count = Annotated[int, Meta(ge=1)]


class Tls(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Certificates of both doors: PEM files."""

    cert: Annotated[str, Meta(description="the gateway's certificate, with those that vouch for it")]
    key: Annotated[str, Meta(description="its private key")]
    client_ca: Annotated[str, Meta(description="who vouches for clients; empty: clients show no certificate")] = ""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for all runs of a gateway."""

    home: Annotated[str, Meta(description="where runs live; FARFIELD_HOME, or the platform's folder for data")] = ""
    grpc: Annotated[str, Meta(description="where gRPC listens; empty: nowhere")] = "127.0.0.1:50051"
    http: Annotated[str, Meta(description="where REST listens; empty: nowhere")] = "127.0.0.1:8000"
    insecure: Annotated[bool, Meta(description="listen beyond this machine without tokens")] = False
    log_level: Annotated[Level, Meta(description="from which level on events are written")] = "info"
    limit: Annotated[int, Meta(ge=1 << 10, le=64 << 20, description="bytes of one payload")] = 16 << 20
    quota: Annotated[int, Meta(ge=1 << 10, description="bytes of one client on their way: sent, not durable")] = (
        16 << 20
    )
    clients: Annotated[int, Meta(ge=1, description="clients at the same time")] = 4096
    runs: Annotated[int, Meta(ge=1, description="runs; with so many, clients create no more")] = 100
    defaults: Annotated[Section, Meta(description="keys of a run's config that new runs begin with")] = {}
    tokens: tuple[Token, ...] = ()
    tls: Tls | None = None

    def addresses(self) -> tuple[Address | None, Address | None]:
        """Give where gRPC and REST listen, or say why they must not."""
        found = parse(self.grpc, "grpc"), parse(self.http, "http")
        if found == (None, None):
            raise ConfigError('grpc = "" and http = "": a gateway needs at least one door')
        for key, address in zip(("grpc", "http"), found, strict=True):
            if address and not address.local and not self.tokens and not self.insecure:
                raise ConfigError(
                    f"{key} = {str(address)!r} can be reached from other machines, and there are no tokens: make one "
                    "with farfield token NAME and put it into --config server.toml, or say --insecure"
                )
        return found


def resolve(file: Path | None, options: Section) -> Settings:
    """Lay options over the server's file."""
    section = configs.merge(configs.read_toml(file) if file else {}, options)
    where = str(file) if file else "options"
    _check_keys(section, Settings, "", where)
    try:
        settings = msgspec.convert(section, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from error
    if settings.quota < settings.limit:
        settings = msgspec.structs.replace(settings, quota=settings.limit)  # one payload must be able to travel
    if settings.tls is not None and file is not None:
        places = {
            key: str(file.parent / path) if path else "" for key, path in msgspec.structs.asdict(settings.tls).items()
        }
        settings = msgspec.structs.replace(settings, tls=Tls(**places))
    given = [key for key in ("run", "env", "transport") if key in settings.defaults]
    if given:
        raise ConfigError(f"{where}: [defaults] {', '.join(given)} cannot be the same for all runs: leave it out")
    configs.decode({"run": "defaults"} | settings.defaults)
    return settings


def _check_keys(section: Section, kind: type[Struct], path: str, where: str) -> None:
    """Refuse unknown keys with the nearest names, also in tables of tables."""
    hints = typing.get_type_hints(kind)
    for name, value in section.items():
        if name not in hints:
            raise ConfigError(f"{where}: unknown key {path}{name}: {nearest(name, hints)}")
        for inner in _structs(hints[name]):
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, dict):
                    _check_keys(one, inner, f"{path}{name}.", where)


def _structs(hint: Any) -> list[type[Struct]]:
    """Find the structs that a type is made of."""
    parts = [hint, *typing.get_args(hint)]
    return [part for part in parts if isinstance(part, type) and issubclass(part, Struct)]
