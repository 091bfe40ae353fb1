"""Fragments in, segment files out, and back: an append-only log whose places are byte positions that never change."""

import os
import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from farfield.codec import decode_fragment, encode_fragment
from farfield.errors import CorruptError, FullError
from farfield.types import Fragment

HEAD = struct.Struct("<II")  # length and CRC-32 of the payload that follows
SUFFIX = ".fragments"


class FragmentLog:
    """An append-only log in a folder; each segment is named after the position of its first byte.

    It opens empty: what a folder held is seen only after `restore`, since a log without a checkpoint means nothing.
    """

    def __init__(self, folder: Path, *, segment_bytes: int) -> None:
        self.folder = folder
        self.end = 0  # position of the next byte to be written
        self._segment_bytes = segment_bytes
        self._file: BinaryIO | None = None  # the newest segment, once something was appended
        self._base = 0  # its position

    def restore(self, start: int, end: int) -> None:
        """Continue with exactly the bytes from `start` to `end`; what was appended later is cut off."""
        self.close()
        for base, path in reversed(self._segments()):
            if base >= end:
                path.unlink()
            elif base + path.stat().st_size > end:
                os.truncate(path, end - base)
        reached = start
        for base, path in self._segments():
            if base <= reached < base + path.stat().st_size:
                reached = base + path.stat().st_size
        if reached < end:
            raise CorruptError(
                f"the fragment log in {self.folder} was expected to hold bytes {start} to {end}, but ends or has a "
                f"gap at {reached}; resume from another checkpoint or start a new run"
            )
        self.end = end

    def append(self, fragment: Fragment) -> int:
        """Write a fragment; give the position where it begins."""
        payload = encode_fragment(fragment)
        record = HEAD.pack(len(payload), zlib.crc32(payload)) + payload
        position = self.end
        try:
            self._write(self._segment(), record)
        except OSError as error:
            self._undo()
            raise FullError(
                f"cannot write {len(record)} bytes to the fragment log in {self.folder}: {error.strerror}; make room "
                "or make the folder writable, then resume the run"
            ) from error
        self.end += len(record)
        return position

    def read(self, start: int) -> Iterator[tuple[int, Fragment]]:
        """Give each fragment from a position on, with its own position."""
        for base, path in self._segments():
            end = min(base + path.stat().st_size, self.end)
            with path.open("rb") as file:
                position = max(start, base)
                file.seek(position - base)
                while position < end:
                    payload = _payload(file, path, position - base, room=end - position)
                    yield position, decode_fragment(payload)
                    position += HEAD.size + len(payload)

    def drop(self, before: int) -> None:
        """Delete segments that end before a position."""
        segments = self._segments()
        for (_, path), (after, _) in pairwise(segments):
            if after <= before:
                path.unlink()

    def sync(self) -> None:
        """Make everything appended so far survive a power cut."""
        if self._file is not None:
            os.fsync(self._file.fileno())
            _sync_folder(self.folder)

    def close(self) -> None:
        """Give the newest segment's file back."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _segments(self) -> list[tuple[int, Path]]:
        return sorted((int(path.stem), path) for path in self.folder.glob(f"*{SUFFIX}"))

    def _segment(self) -> BinaryIO:
        """Give the file to append to: the newest one, or a new one when that is full."""
        if self._file is not None and self.end - self._base < self._segment_bytes:
            return self._file
        if self._file is not None:
            self.sync()
            self.close()
        elif self.end == 0:
            self._clear()
        self._base = self.end
        self._file = (self.folder / f"{self.end:020d}{SUFFIX}").open("wb", buffering=0)
        return self._file

    def _clear(self) -> None:
        """Forget what an attempt left that never reached its first checkpoint."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for _, path in self._segments():
            path.unlink()

    def _write(self, file: BinaryIO, record: bytes) -> None:
        rest = memoryview(record)
        while rest:
            rest = rest[file.write(rest) :]

    def _undo(self) -> None:
        """Cut off what a failed write left, so that the next one follows whole records."""
        if self._file is not None:
            self._file.seek(self.end - self._base)
            self._file.truncate()


def _payload(file: BinaryIO, path: Path, at: int, *, room: int) -> bytes:
    """Read one record and check it; `room` bytes are left to read."""
    head = file.read(HEAD.size)
    length, checksum = HEAD.unpack(head) if len(head) == HEAD.size else (HEAD.size, 0)
    payload = file.read(min(length, room))
    if len(payload) != length or zlib.crc32(payload) != checksum:
        raise CorruptError(
            f"{path} at byte {at}: expected a record of {length} bytes with checksum {checksum:08x}, found "
            f"{len(payload)} bytes with {zlib.crc32(payload):08x}; resume from another checkpoint or start a new run"
        )
    return payload


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
