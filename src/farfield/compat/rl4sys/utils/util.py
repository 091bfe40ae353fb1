"""Messages with context as keywords in, lines of Python's logging out."""

import logging
from typing import Any


class StructuredLogger:
    """Logs a message and what belongs to it; whoever configures logging decides where it goes."""

    def __init__(self, name: str, debug: bool = False) -> None:
        self._logger = logging.getLogger(name)
        if debug:
            self._logger.setLevel(logging.DEBUG)

    def debug(self, message: str, **context: Any) -> None:
        """Log what only a search for a fault needs."""
        self._write(logging.DEBUG, message, context)

    def info(self, message: str, **context: Any) -> None:
        """Log what happened."""
        self._write(logging.INFO, message, context)

    def warning(self, message: str, **context: Any) -> None:
        """Log what somebody should look at."""
        self._write(logging.WARNING, message, context)

    def error(self, message: str, **context: Any) -> None:
        """Log what went wrong."""
        self._write(logging.ERROR, message, context)

    def critical(self, message: str, **context: Any) -> None:
        """Log what ends the program."""
        self._write(logging.CRITICAL, message, context)

    def _write(self, level: int, message: str, context: dict[str, Any]) -> None:
        if self._logger.isEnabledFor(level):
            told = " ".join(f"{name}={value!r}" for name, value in context.items())
            self._logger.log(level, "%s%s", message, f" ({told})" if told else "")
