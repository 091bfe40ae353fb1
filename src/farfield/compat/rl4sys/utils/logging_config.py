"""A wish for log lines in, Python's logging configured out."""

import logging
from typing import Any


def setup_rl4sys_logging(debug: bool = False, *args: Any, **options: Any) -> None:
    """Write log lines to the terminal, unless the application has configured logging already; the rest is ignored."""
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
