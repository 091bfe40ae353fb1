"""A run's metrics file: one row for each update goes in, the rows that still hold come out."""

import os
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from farfield.errors import FullError, MissingError

FILE = "metrics.jsonl"
EPISODES = 100  # that "the return" is a mean of
_CURE = "make room on the disk, then continue the run with --resume"

Row = dict[str, Any]

_encoder = msgspec.json.Encoder(enc_hook=lambda value: value.tolist())  # NaN and infinity are written as null
_decoder = msgspec.json.Decoder(Row)


class MetricsLog:
    """Appends rows to a run's metrics file; only the process that holds the run may have one open."""

    def __init__(self, folder: Path) -> None:
        """Open the file, and cut off a row that an earlier life could not finish."""
        self._path = folder / FILE
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._file, _whole(self._file))

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row, with one system call unless the disk fills up; it is not forced to the disk."""
        line = memoryview(_encoder.encode(row) + b"\n")
        try:
            while line:  # a disk takes what it has room for, and says why it takes no more when it is asked again
                line = line[os.write(self._file, line) :]
        except OSError as error:
            raise FullError(f"{self._path}: could not be written: {error.strerror}; {_CURE}") from error

    def close(self) -> None:
        """Close the file; closing twice does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read(folder: Path) -> list[Row]:
    """Give the rows that hold, in order of their updates.

    A later attempt that went on from an older checkpoint replaces what came after that checkpoint; what an
    earlier, fenced attempt still wrote afterwards is left out, and so are lines that a kill tore.
    """
    path = folder / FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise MissingError(f"{path}: there are no metrics yet; they come with the first update") from error
    rows: list[Row] = []
    attempt = 0
    for line in content.splitlines():
        row = _decoded(line)
        if row is None or row.get("attempt", 0) < attempt:
            continue
        attempt = row.get("attempt", 0)
        while rows and rows[-1]["update"] >= row["update"]:
            rows.pop()
        rows.append(row)
    return rows


def newest(folder: Path) -> Row | None:
    """Give the last row without reading the whole file; nothing where there is none yet."""
    path = folder / FILE
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return None
    with path.open("rb") as file:
        taken = 1 << 16
        while True:
            file.seek(max(0, size - taken))
            lines = file.read(size).splitlines()
            rows = (_decoded(line) for line in reversed(lines if taken >= size else lines[1:]))
            found = next((row for row in rows if row), None)
            if found or taken >= size:
                return found
            taken *= 8


def column(rows: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    """Give one number of every row; NaN where a row has none."""
    values = (row.get(name) for row in rows)
    return [float(value) if isinstance(value, int | float) else float("nan") for value in values]


def curve(rows: Iterable[Mapping[str, Any]], x: str = "steps") -> tuple[list[float], list[float]]:
    """Give the learning curve: where on `x`, and the mean return there of the last 100 episodes, or of fewer so far."""
    where: list[float] = []
    means: list[float] = []
    recent: deque[float] = deque(maxlen=EPISODES)
    for row in rows:
        recent.extend(value for value in row.get("returns", ()) if value is not None)
        mean = row.get("return_mean")
        if mean is None and recent:
            mean = sum(recent) / len(recent)
        if mean is not None:
            where.append(float(row[x]))
            means.append(float(mean))
    return where, means


def _decoded(line: bytes) -> Row | None:
    """Decode a line, or say that it is none of ours."""
    try:
        row = _decoder.decode(line)
    except msgspec.DecodeError:
        return None
    return row if isinstance(row.get("update"), int) else None


def _whole(file: int) -> int:
    """Find where the last finished line of a file ends."""
    end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - 65536)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
