"""Updates in, an audit out: which fragments made which update, one line each, and what holds after resumes."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from farfield.types import Name


class Entry(Struct, frozen=True):
    """The fragments of one update, as (stream, seq), in the order in which they entered use."""

    update: int
    attempt: int
    fragments: list[tuple[str, int]]


class Ledger:
    """Appends entries to a file; a line is written in one piece."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._encode = msgspec.json.Encoder().encode

    def append(self, update: int, attempt: int, names: tuple[Name, ...]) -> None:
        """Note what an update used."""
        entry = Entry(update, attempt, [(stream, seq) for _, stream, seq in names])
        self._file.write(self._encode(entry) + b"\n")

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


def read(path: Path) -> list[Entry]:
    """Give the entries that hold: an attempt that began again at an update undid the earlier ones from there on."""
    held: list[Entry] = []
    for entry in _lines(path):
        while held and held[-1].update >= entry.update:
            held.pop()
        held.append(entry)
    return held


def _lines(path: Path) -> Iterator[Entry]:
    decode = msgspec.json.Decoder(Entry).decode
    for line in path.read_bytes().split(b"\n"):
        try:
            yield decode(line)
        except msgspec.DecodeError:
            continue  # a kill tore the last line of an attempt; what it told was not checkpointed either
