"""Runs `farfield` with a trap: at a chosen place inside a durable write it says so and waits to be killed.

VICTIM="<part of a path>:<updates>" springs at the first fsync of such a path after so many updates were logged.
"""

import os
import sys
import threading
from pathlib import Path

from farfield.cli import main

part, _, after = os.environ.get("VICTIM", "").partition(":")
home = Path(os.environ["FARFIELD_HOME"])
real = os.fsync


def trap(file: int) -> None:
    path = os.readlink(f"/proc/self/fd/{file}")
    if f"/{part}" in path and updates() >= int(after):
        (home / "trapped").write_text(path)
        threading.Event().wait()
    real(file)


def updates() -> int:
    return max((log.read_bytes().count(b"\n") for log in home.glob("runs/*/metrics.jsonl")), default=0)


if part:
    os.fsync = trap
sys.argv[0] = "farfield"
main()
