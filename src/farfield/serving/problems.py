"""What went wrong in, an HTTP status and a problem (RFC 9457) out: with its cure, and with nothing of the inside."""

from typing import Any, NamedTuple

import msgspec

from farfield.errors import ConfigError, ConflictError, CorruptError, FullError, MissingError, SpecError
from farfield.serving.tokens import StrangerError

MEDIA = "application/problem+json"
_TITLES = {
    400: "cannot be read", 401: "who are you", 403: "not allowed", 404: "not there", 405: "wrong method",
    408: "too slow", 409: "conflict", 412: "another protocol", 413: "too large", 415: "another type of content",
    422: "does not fit", 429: "no room now", 500: "the gateway failed", 503: "not now",
}  # fmt: skip
_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (StrangerError, 401),
    (PermissionError, 403),
    (MissingError, 404),
    (SpecError, 422),
    (ConfigError, 422),
    (CorruptError, 400),
    (ConflictError, 503),  # somebody else holds what this gateway would need: perhaps not for long
    (FullError, 429),
    (msgspec.ValidationError, 422),
    (msgspec.DecodeError, 400),
    (RecursionError, 400),
    (TimeoutError, 408),
)


class RefusedError(Exception):
    """A call that HTTP has a status of its own for."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Problem(NamedTuple):
    """An answer that says why there is no other."""

    status: int
    detail: str

    def headers(self) -> dict[str, str]:
        """Say how to go on."""
        if self.status == 401:
            return {"www-authenticate": "Bearer"}
        return {"retry-after": "1"} if self.status in (429, 503) else {}

    def body(self, **more: Any) -> bytes:
        """Write it."""
        title = _TITLES.get(self.status, "refused")
        return msgspec.json.encode({"title": title, "status": self.status, "detail": self.detail} | more)


def problem_of(error: Exception) -> Problem:
    """Say what a client should know of an error; of one that nobody foresaw, only that the log has it."""
    if isinstance(error, RefusedError):
        return Problem(error.status, str(error))
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return Problem(status, str(error) or _TITLES[status])
    return Problem(500, "the gateway failed to answer; its log says why")
