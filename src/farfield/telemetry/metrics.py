"""A run's metrics file, one line for each update (lines.py writes it), in; the rows that still hold out."""

from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from farfield.errors import MissingError

FILE = "metrics.jsonl"
EPISODES = 100  # that "the return" is a mean of

Row = dict[str, Any]

_decoder = msgspec.json.Decoder(Row)


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
