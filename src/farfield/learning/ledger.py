"""Updates in, an audit out: which fragments made which update, a line of a file each, and what holds after resumes."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from farfield.types import Name

FILE = "ledger.jsonl"


class Entry(Struct, frozen=True):
    """The fragments of one update, as (stream, seq), in the order in which they entered use."""

    update: int
    attempt: int
    fragments: list[tuple[str, int]]


def entry(update: int, attempt: int, names: tuple[Name, ...]) -> Entry:
    """Note what an update used."""
    return Entry(update, attempt, [(stream, seq) for _, stream, seq in names])


def read(path: Path) -> list[Entry]:
    """Give the entries that hold: an attempt that began again at an update undid the earlier ones from there on.

    What an earlier, fenced attempt still wrote afterwards is left out.
    """
    held: list[Entry] = []
    for found in _lines(path):
        if held and found.attempt < held[-1].attempt:
            continue
        while held and held[-1].update >= found.update:
            held.pop()
        held.append(found)
    return held


def _lines(path: Path) -> Iterator[Entry]:
    decode = msgspec.json.Decoder(Entry).decode
    for line in path.read_bytes().split(b"\n"):
        try:
            yield decode(line)
        except msgspec.DecodeError:
            continue  # a kill tore the last line of an attempt; what it told was not checkpointed either
