"""Files in the Standard Workload Format (plain or gzip) in, a Trace out, and back."""

import gzip
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from farfield.envs.jobs.trace import Trace, ordered
from farfield.errors import CorruptError, MissingError
from farfield.types import Array

# Fields of a line, counted from 0; 18 in all.
FIELDS = {"number": 0, "submit": 1, "run": 3, "allocated": 4, "asked": 7, "requested": 8, "memory": 9,
          "user": 11, "group": 12, "executable": 13}  # fmt: skip
WIDTH = 18
GZIP = b"\x1f\x8b"
KEY = re.compile(r";\s*([A-Za-z][\w ]*?)\s*:\s*(.*)")


def read(path: str | Path) -> Trace:
    """Read a trace of the Parallel Workloads Archive, or any file of its format.

    Processors are the larger of those allocated and those requested. A job whose run time is not known counts as
    10 seconds, one of 0 seconds is left out, and so is one that is larger than the machine.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingError(
            f"trace {path} is not there; download one from the Parallel Workloads Archive, or use 'lublin'"
        )
    with _open(path) as file:
        header = dict(_header(file))
    with _open(path) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about files without jobs, which we refuse ourselves
        try:
            rows = np.loadtxt(file, comments=";", usecols=tuple(FIELDS.values()), ndmin=2)
        except (ValueError, OSError, EOFError) as error:
            raise CorruptError(f"trace {path} is not in the Standard Workload Format: {error}") from error
    if not len(rows):
        raise CorruptError(f"trace {path} has no jobs; expected lines of {WIDTH} numbers")
    columns: dict[str, Array] = dict(zip(FIELDS, rows.T, strict=True))
    columns["procs"] = np.maximum(columns.pop("allocated"), columns.pop("asked")).astype(np.int64)
    nodes, per_node = _machine(header, int(columns["procs"].max()))
    return ordered(columns, name=path.name, nodes=nodes, per_node=per_node, header=header)


def write(trace: Trace, path: str | Path) -> None:
    """Write a trace, as gzip where the name says so; what a Trace does not hold is -1."""
    path = Path(path)
    known = {"Version": "2.2", "MaxJobs": str(len(trace)), "MaxRecords": str(len(trace))}
    known |= dict(trace.header) | {"MaxNodes": str(trace.nodes), "MaxProcs": str(trace.processors)}
    table = np.full((len(trace), WIDTH), -1.0)
    for name, place in FIELDS.items():
        table[:, place] = trace.procs if name in ("allocated", "asked") else getattr(trace, name)
    table[:, 10] = 1  # completed
    text = "".join(f"; {key}: {value}\n" for key, value in known.items())
    text += "\n".join(" ".join(f"{value:g}" if value % 1 else f"{value:.0f}" for value in row) for row in table) + "\n"
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode())


def _open(path: Path) -> IO[str]:
    with path.open("rb") as file:
        packed = file.read(2) == GZIP
    opener = gzip.open if packed else open
    return opener(path, "rt", encoding="utf-8", errors="replace")  # type: ignore[return-value]


def _header(file: IO[str]) -> Iterator[tuple[str, str]]:
    """Read the comments before the first job; a key that comes twice keeps its first value."""
    seen: set[str] = set()
    for line in file:
        if not line.startswith(";"):
            if line.strip():
                return
        elif (found := KEY.match(line)) and found[1] not in seen:
            seen.add(found[1])
            yield found[1], found[2].strip()


def _machine(header: dict[str, str], largest: int) -> tuple[int, int]:
    """Give nodes and processors of each: from MaxNodes and MaxProcs, or what the largest job needs."""
    nodes, procs = (
        int(found[0]) if (found := re.match(r"\d+", header.get(key, ""))) else 0 for key in ("MaxNodes", "MaxProcs")
    )
    procs = procs or nodes or largest
    nodes = min(nodes or procs, procs)
    return nodes, max(1, procs // nodes)
