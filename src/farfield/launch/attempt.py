"""A run's folder in, what its one learner holds while it lives out: the run's lock, and signals as reasons to stop."""

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

from farfield.errors import ConflictError

Say = Callable[[str], None]


@contextmanager
def lock(folder: Path) -> Generator[None]:
    """Hold the run: one learner at a time, and the lock goes with its process, however that ends."""
    with (folder / "lock").open("a+") as file:
        if not _locked(file):
            file.seek(0)
            raise ConflictError(
                f"run {folder.name!r} is being trained by process {file.read().strip() or 'unknown'}; "
                "stop that one first, or choose another --name"
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _locked(file: IO[str]) -> bool:
    """Try for a moment: whoever lists runs holds their locks for an instant."""
    for _ in range(5):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return True
    return False


@contextmanager
def signals(say: Say) -> Generator[list[str]]:
    """Turn the first Ctrl-C or SIGTERM into a reason to stop after this update, and the next one into the end."""
    reasons: list[str] = []

    def stop(number: int, _: FrameType | None) -> None:
        if reasons:
            raise KeyboardInterrupt
        reasons.append(signal.Signals(number).name.lower())
        say("stopping after this update, with a checkpoint; once more stops at once")

    if threading.current_thread() is not threading.main_thread():
        yield reasons
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield reasons
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
