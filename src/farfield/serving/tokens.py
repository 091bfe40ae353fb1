"""A secret, a scope and a run in, who that is out; or PermissionError with what is wrong, and never the secret."""

import hmac
import re
import secrets
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Annotated, Literal

from msgspec import Meta, Struct

from farfield.errors import ConfigError, nearest

Scope = Literal["ingest", "act", "read", "operate", "admin", "create"]
SCOPES: tuple[Scope, ...] = ("ingest", "act", "read", "operate", "admin", "create")
RFC3339 = "%Y-%m-%dT%H:%M:%SZ"
UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
CURE = "make one on the server with: farfield token NAME"


class StrangerError(PermissionError):
    """Nobody that is known: no token, an unknown one, or one that has expired."""


class Token(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may do what: kept by the hash of a secret that only its holder has."""

    name: Annotated[str, Meta(min_length=1, max_length=100, description="who holds it, for people and logs")]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$", description="of the secret; farfield token prints it")]
    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1, description="what it may do; admin: everything")]
    runs: Annotated[tuple[str, ...], Meta(min_length=1, description="which runs; * and ? stand for anything")] = ("*",)
    expires: Annotated[datetime, Meta(tz=True, description="from when on it is refused")] | None = None

    def covers(self, run: str) -> bool:
        """Say whether it is for this run; the policies of a run (game.scout) go with it (game)."""
        return any(fnmatchcase(run, each) or fnmatchcase(run, f"{each}.*") for each in self.runs)


EVERYBODY = Token(name="everybody", sha256="0" * 64, scopes=SCOPES)


class Tokens:
    """All tokens of a gateway; without any, everybody may do everything."""

    def __init__(self, tokens: Iterable[Token] = (), *, clock: Callable[[], float] = time.time) -> None:
        self.tokens = tuple(tokens)
        self._clock = clock
        names = [token.name for token in self.tokens]
        if doubled := {name for name in names if names.count(name) > 1}:
            raise ConfigError(
                f"[[tokens]] name = {', '.join(map(repr, sorted(doubled)))} stands there twice: rename one"
            )

    @property
    def open(self) -> bool:
        """Say that nobody needs a token."""
        return not self.tokens

    def holder(self, secret: str) -> Token:
        """Find who has this secret; looks at every token whatever it finds, so that time tells nothing."""
        if self.open:
            return EVERYBODY
        if not secret:
            raise StrangerError(f"no token came: send `authorization: Bearer TOKEN` with every call; {CURE}")
        came, found = digest(secret), None
        for token in self.tokens:
            if hmac.compare_digest(token.sha256, came):
                found = token
        if found is None:
            raise StrangerError(f"unknown token: it is none of this gateway's; {CURE}")
        if found.expires is not None and self._clock() >= found.expires.timestamp():
            raise StrangerError(f"token {found.name!r} expired at {found.expires.astimezone(UTC):{RFC3339}}; {CURE}")
        return found

    def known(self, secret: str) -> bool:
        """Say whether somebody has this secret, now."""
        try:
            self.holder(secret)
        except StrangerError:
            return False
        return True

    def check(self, secret: str, run: str, scope: str) -> None:
        """Let the holder of a secret do one thing to one run (`run` empty: at all), or say why not."""
        token = self.holder(secret)
        if scope not in token.scopes and "admin" not in token.scopes:
            raise PermissionError(
                f"token {token.name!r} may {', '.join(token.scopes)}, and this takes {scope}: ask for a token with "
                f"that scope (farfield token NAME --scopes {scope})"
            )
        if run and not token.covers(run):
            raise PermissionError(
                f"token {token.name!r} is for other runs than {run!r}: ask for one that has it "
                f"(farfield token NAME --runs {run})"
            )


def bearer(header: str) -> str:
    """Read the secret out of an authorization header; empty where there is none."""
    scheme, _, secret = header.strip().partition(" ")
    if header and scheme.lower() != "bearer":
        raise StrangerError("the authorization header is no `Bearer TOKEN`: this gateway knows no other way")
    return secret.strip()


def digest(secret: str) -> str:
    """Give what is kept of a secret."""
    return sha256(secret.encode(errors="backslashreplace")).hexdigest()


def draw(name: str, scopes: Iterable[str], runs: Iterable[str], expires: datetime | None) -> tuple[str, Token]:
    """Make a new secret, and the token that is kept of it."""
    wanted = set(scopes)
    for scope in sorted(wanted - {*SCOPES}):
        raise ConfigError(f"--scopes {scope}: {nearest(scope, map(str, SCOPES))}")
    if not wanted:
        raise ConfigError(f"--scopes is empty: choose from {', '.join(SCOPES)}")
    if not name.strip():
        raise ConfigError("a token needs a name that says who holds it, such as: farfield token lander-game")
    secret = f"ff_{secrets.token_urlsafe(32)}"  # 256 bits, so that a plain hash of it gives nothing away
    chosen: tuple[Scope, ...] = tuple(scope for scope in SCOPES if scope in wanted)
    return secret, Token(name=name, sha256=digest(secret), scopes=chosen, runs=tuple(runs) or ("*",), expires=expires)


def end_of(text: str, now: datetime) -> datetime | None:
    """Read when a token ends: `30d`, `12h`, `90m`, `8w`, a date, a time with its zone, or `never`."""
    if text == "never":
        return None
    if found := re.fullmatch(r"(\d{1,4})([mhdw])", text):
        return (now + timedelta(**{UNITS[found[2]]: int(found[1])})).astimezone(UTC).replace(microsecond=0)
    try:
        end = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"--expires {text!r}: expected 30d, 12h, 90m, 8w, 2027-01-31 or never") from error
    return (end if end.tzinfo else end.replace(tzinfo=UTC)).astimezone(UTC)
