"""Values in, lines of JSON at the end of a file out: each line whole, or cut off when the file is opened again."""

import os
from pathlib import Path
from typing import Any

import msgspec

from farfield.errors import FullError

_CURE = "make room on the disk, then continue the run with --resume"
_encoder = msgspec.json.Encoder(enc_hook=lambda value: value.tolist())  # NaN and infinity are written as null


class Lines:
    """Appends to one file; only the process that holds the run may have it open."""

    def __init__(self, path: Path) -> None:
        """Open the file, and cut off a line that an earlier life could not finish."""
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._file, _whole(self._file))

    def append(self, value: Any) -> None:
        """Write one line, with one system call unless the disk fills up; it is not forced to the disk."""
        line = memoryview(_encoder.encode(value) + b"\n")
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
