"""Pictures or text of an environment go in; the terminal shows them one after another at their own pace."""

import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

from farfield.telemetry import halfblocks

TOP, CLEAR = "\x1b[H", "\x1b[2J"


def draw() -> Callable[[Any], None]:
    """Make what draws an environment's picture whenever it is called; where there is no terminal, each hundredth."""
    live = sys.stdout.isatty()
    count, due = 0, time.monotonic()

    def show(stage: Any) -> None:
        nonlocal count, due
        count += 1
        if not live and count % 100 != 1:
            return
        picture = stage.picture()
        size = shutil.get_terminal_size((80, 24))
        if isinstance(picture, str):
            drawn = picture.splitlines()
        else:
            drawn = halfblocks.lines(picture, width=size.columns, height=size.lines - 1)
        if live:
            text = (CLEAR if count == 1 else "") + TOP + "\x1b[K\n".join(drawn) + "\x1b[K\x1b[J\n"
            due = max(due + 1 / stage.rate, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
        else:
            text = "\n".join(drawn) + "\n"
        sys.stdout.write(text)
        sys.stdout.flush()

    return show


def clear() -> None:
    """Give the terminal its own colours back, wherever the drawing was interrupted."""
    if sys.stdout.isatty():
        sys.stdout.write("\x1b[0m\n")
        sys.stdout.flush()
