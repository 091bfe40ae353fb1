"""Payloads in, locked files of frames in one folder out, and the payloads again, those of dead processes first.

A frame is the length (u32, little-endian), the CRC-32 of the payload (u32), the payload. Whoever writes a file holds
flock on it for as long as it lives, so that a file that can be locked has no owner. C++ clients keep the same files.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import NamedTuple

from farfield.codec import LIMIT

try:
    import fcntl
except ImportError:  # no such locks here: nothing is spooled
    fcntl = None

HEAD = struct.Struct("<II")
LOOK = 1.0  # seconds between two looks at what other processes keep in the folder, or at a folder that failed
SMALLEST, LARGEST = 64 << 10, 8 << 20  # bytes after which a file is followed by another one


class Segment:
    """One file that is ours: written by us, or left by a dead process."""

    def __init__(self, path: Path, file: int) -> None:
        self.path, self.file = path, file
        self.end = os.fstat(file).st_size
        self.frames = 0  # that are not owned

    def write(self, payload: bytes) -> int:
        """Append a frame whole or not at all, and give where its payload is; OSError: there is no room."""
        head = HEAD.pack(len(payload), zlib.crc32(payload))
        size = len(head) + len(payload)
        try:
            wrote = os.pwritev(self.file, [head, payload], self.end)
            if wrote < size:  # the room ended here, or a signal came: the rest says which
                wrote += os.pwrite(self.file, (head + payload)[wrote:], self.end + wrote)
            if wrote < size:
                raise OSError(f"only {wrote} of {size} bytes were written")
        except OSError:
            with suppress(OSError):  # what is torn is written over by the next frame
                os.ftruncate(self.file, self.end)
            raise
        self.end += size
        self.frames += 1
        return self.end - len(payload)

    def scan(self) -> Iterator[tuple[int, int]]:
        """Give offset and size of every payload, until the end or until a frame is torn."""
        at = 0
        while at + HEAD.size <= self.end:
            size, check = HEAD.unpack(os.pread(self.file, HEAD.size, at))
            at += HEAD.size
            if not 0 < size <= min(LIMIT, self.end - at) or zlib.crc32(os.pread(self.file, size, at)) != check:
                return
            yield at, size
            at += size

    def close(self) -> None:
        """Give the file back, and with it the lock."""
        if self.file >= 0:
            os.close(self.file)
        self.file = -1


class Place(NamedTuple):
    """Where a payload is kept."""

    segment: Segment
    offset: int
    size: int


class Spool:
    """The files of one run's folder that are ours. Any thread may call."""

    def __init__(self, folder: Path | None, quota: int) -> None:
        self.trouble = ""  # why nothing was written last
        self.damaged = 0  # bytes behind torn frames
        self._folder, self._quota = folder if fcntl else None, quota
        self._rotate = min(max(quota // 8, SMALLEST), LARGEST)
        self._segments: list[Segment] = []
        self._current: Segment | None = None
        self._others, self._looked, self._failed = 0, -LOOK, -LOOK
        self._lock = Lock()

    @property
    def held(self) -> int:
        """Count what our files hold."""
        return sum(segment.end for segment in self._segments)

    def write(self, payload: bytes) -> Place | None:
        """Keep a payload; none where quota or disk do not let us."""
        with self._lock:
            if self._folder is None or not self._fits(self._folder, HEAD.size + len(payload)):
                return None
            try:
                if self._current is None or self._current.end >= self._rotate:
                    self._current = self._create(self._folder)
                return Place(self._current, self._current.write(payload), len(payload))
            except OSError as error:
                self.trouble = f"{self._folder}: {error}"
                return None

    def read(self, place: Place) -> bytes | None:
        """Give a payload; none where the disk does not."""
        try:
            payload = os.pread(place.segment.file, place.size, place.offset)
        except OSError as error:
            self.trouble = f"{place.segment.path}: {error}"
            return None
        return payload if len(payload) == place.size else None

    def release(self, place: Place) -> None:
        """Forget a payload; a file of which nothing is left is emptied or removed."""
        with self._lock:
            segment = place.segment
            segment.frames -= 1
            if segment.frames or segment.file < 0:
                return
            if segment is self._current and segment.end < self._rotate:
                with suppress(OSError):
                    os.ftruncate(segment.file, 0)
                    segment.end = 0
                    return
            self._remove(segment)

    def adopt(self) -> Iterator[Place]:
        """Take over what dead processes left, in their order."""
        for path in _oldest_first(self._folder) if self._folder else ():
            with self._lock:
                found = None if any(path == one.path for one in self._segments) else _adopted(path)
                if found is None:
                    continue
                self._segments.append(found)
                self._looked = -LOOK  # it counts as ours from now on
                places = [Place(found, offset, size) for offset, size in found.scan()]
                found.frames = len(places)
                self.damaged += found.end - (places[-1].offset + places[-1].size if places else 0)
                if not places:
                    self._remove(found)
            yield from places

    def close(self) -> None:
        """Remove files of which nothing is left; the others wait for the next process."""
        with self._lock:
            for segment in list(self._segments):
                if segment.frames == 0:
                    self._remove(segment)
                segment.close()
            self._segments, self._current, self._folder = [], None, None

    def abandon(self) -> None:
        """Let go of the files in a forked child, without a lock that a thread of the parent may have held."""
        for segment in self._segments:
            segment.close()

    def _fits(self, folder: Path, size: int) -> bool:
        now = monotonic()
        if now - self._looked >= LOOK:
            ours = {segment.path for segment in self._segments}
            self._others, self._looked = sum(_size(path) for path in _listed(folder) if path not in ours), now
        if self.held + self._others + size <= self._quota:
            return True
        self.trouble = f"{folder}: the quota of {self._quota} bytes is used up"
        return False

    def _create(self, folder: Path) -> Segment:
        if monotonic() - self._failed < LOOK:
            raise OSError(self.trouble)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            while True:
                path = folder / f"{os.urandom(8).hex()}.spool"
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                if _locked(file):  # unless somebody took it for one without an owner
                    break
                os.close(file)
        except OSError as error:
            self._failed, self.trouble = monotonic(), str(error)
            raise
        self._segments.append(Segment(path, file))
        return self._segments[-1]

    def _remove(self, segment: Segment) -> None:
        with suppress(OSError):
            segment.path.unlink()
        segment.close()
        self._segments.remove(segment)
        if segment is self._current:
            self._current = None


def _adopted(path: Path) -> Segment | None:
    """Open and lock a file that a dead process left."""
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # it is gone, or somebody else's
        return None
    if _locked(file):
        return Segment(path, file)
    os.close(file)
    return None


def _locked(file: int) -> bool:
    """Lock a file that still has its name; false where somebody else has it."""
    assert fcntl is not None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return os.fstat(file).st_nlink > 0


def _listed(folder: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder) if entry.name.endswith(".spool")]
    except OSError:
        return []


def _oldest_first(folder: Path) -> list[Path]:
    def age(path: Path) -> tuple[int, str]:
        with suppress(OSError):
            return path.stat().st_mtime_ns, path.name
        return 0, path.name

    return sorted(_listed(folder), key=age)


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0
