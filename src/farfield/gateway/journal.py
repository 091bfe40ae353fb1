"""Events in, one line for each on stderr out; nothing that came from outside can forge a line."""

import logging
import sys
import time

import msgspec

_ESCAPED = {number: f"\\x{number:02x}" for number in (*range(32), 127, *range(0x80, 0xA0), 0x2028, 0x2029)} | {
    10: " | "
}


class Line(logging.Formatter):
    """One event as one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Write time in UTC, level, and the event without control characters."""
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        text = record.getMessage()
        if record.exc_info:
            text = f"{text} | {self.formatException(record.exc_info)}"
        return f"{when}.{int(record.msecs):03d}Z {record.levelname.lower()} {text.translate(_ESCAPED)}"


class Json(logging.Formatter):
    """One event as one line of JSON, for programs."""

    def format(self, record: logging.LogRecord) -> str:
        """Write seconds since 1970, level, and the event."""
        event = {"time": record.created, "level": record.levelname.lower(), "event": record.getMessage()}
        if record.exc_info:
            event["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(event).decode()


def begin(level: str, *, json: bool = False) -> None:
    """Write events of the gateway from this level on, and warnings of the libraries that it stands on."""
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(Json() if json else Line())
    root = logging.getLogger()
    root.handlers[:] = [lines]
    root.setLevel(logging.WARNING)
    logging.getLogger("farfield").setLevel(level.upper())
