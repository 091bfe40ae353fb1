"""A learner's whole state in, one verified file out, and back; a damaged file gives way to the one before it."""

import json
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from farfield.errors import CorruptError, MissingError
from farfield.types import Columns
from farfield.weights import folder as blobs
from farfield.weights import tensors

NAME = re.compile(r"(\d{12})-([0-9a-f]{64})\.safetensors")
TEXT = "checkpoint"  # one text alone, since several stand in no fixed order


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a checkpoint is written, and how many are kept."""

    interval: Annotated[float, Meta(ge=0, description="seconds between checkpoints")] = 30.0
    steps: Annotated[int, Meta(ge=0, description="also one every so many environment steps; 0: by time alone")] = 0
    keep: Annotated[int, Meta(ge=1, description="newest ones that are kept")] = 3


class Checkpoint(Struct, frozen=True):
    """Where a learner was."""

    number: int
    state: Columns
    facts: dict[str, Any]


class Checkpoints:
    """Keeps the newest checkpoints of one run; only the run's one learner writes."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.folder = config, folder

    def write(self, number: int, state: Columns, facts: dict[str, Any]) -> Path:
        """Write one checkpoint: all of it or, wherever this process dies, nothing; durable when it returns.

        Facts are JSON; integers of any size, infinities and NaN come back as they were.
        """
        text = json.dumps({"number": number, "facts": facts}, separators=(",", ":"))
        payload = tensors.pack(state, {TEXT: text})
        path = self.folder / f"{number:012d}-{sha256(payload).hexdigest()}.safetensors"
        blobs.tidy(self.folder)  # first, so that what a dead writer left cannot fill the disk
        if not blobs.put_if_absent(path, payload) and blobs.read(path) != payload:
            blobs.delete(path)  # the same one was written before and was damaged since
            blobs.put_if_absent(path, payload)
        self._prune(path)
        return path

    def newest(self, report: Callable[[str], None]) -> Checkpoint | None:
        """Read the newest checkpoint that is whole, if there are any; `report` hears of each that was passed over."""
        damaged = 0
        for path in self._paths():
            try:
                return _load(path)
            except MissingError:
                continue  # pruned meanwhile
            except CorruptError as error:
                report(f"checkpoint {path} is damaged ({error}): going back to the one before it")
                damaged += 1
        if damaged:
            cure = "put back a copy, or delete them to begin again from nothing, which leaves its versions behind"
            raise CorruptError(f"all {damaged} checkpoints in {self.folder} are damaged: {cure}")
        return None

    def numbers(self) -> list[int]:
        """List the numbers of the checkpoints that are there, oldest first."""
        return sorted(_number(path) for path in self._paths())

    def _prune(self, written: Path) -> None:
        """Keep this one and those before it; what stands above belongs to a line that was not continued."""
        before = [path for path in self._paths() if _number(path) < _number(written)]
        kept = {written, *before[: self.config.keep - 1]}
        for path in self._paths():
            if path not in kept:
                blobs.delete(path)

    def _paths(self) -> list[Path]:
        """List checkpoints, newest first."""
        found = [self.folder / name for name in blobs.names(self.folder) if NAME.fullmatch(name)]
        return sorted(found, key=_number, reverse=True)


def make(config: Config, folder: Path) -> Checkpoints:
    """Open the checkpoints of one run; nothing is written before the first one."""
    return Checkpoints(config, folder)


def _number(path: Path) -> int:
    return int(path.name[:12])


def _load(path: Path) -> Checkpoint:
    data = blobs.read(path)
    if sha256(data).hexdigest() != path.name[13:77]:
        raise CorruptError(f"the SHA-256 of its {len(data)} bytes differs from its name")
    state, texts = tensors.unpack(data)
    said = json.loads(texts[TEXT])
    return Checkpoint(said["number"], state, said["facts"])
