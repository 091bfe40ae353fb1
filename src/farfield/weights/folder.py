"""Paths and bytes in, files out that are there completely or not at all: the blob store over a folder."""

import errno
import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_hex

from farfield.errors import ConfigError, ConflictError, CorruptError, FarfieldError, FullError, MissingError
from farfield.types import Buffer

TEMPORARY = ".new-"  # what is being written; whoever writes it holds a lock on it
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
PATIENCE = 10.0  # seconds to wait for another process to let go of a folder


@contextmanager
def explained(path: Path) -> Generator[None]:
    """Turn what the operating system says about `path` into an error that names the cure."""
    try:
        yield
    except OSError as error:
        said = error.strerror or str(error)
        if error.errno in FULL:
            cure = "free some space, raise the quota or choose another --home; the run can be resumed"
            raise FullError(f"{path} cannot be written, the disk or quota is full ({said}): {cure}") from error
        if error.errno in FORBIDDEN:
            cure = "give this user the right to write there or choose another --home"
            raise ConfigError(f"{path} cannot be used ({said}): {cure}") from error
        if error.errno == errno.ENOENT:
            raise MissingError(f"{path} is not there: was it deleted?") from error
        if error.errno in {errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}:
            raise ConfigError(
                f"{path} cannot be used ({said}): move what is in its way or choose another --home"
            ) from error
        if error.errno == errno.EIO:
            raise CorruptError(f"{path} cannot be read or written ({said}): check the disk") from error
        raise FarfieldError(f"{path} cannot be used ({said})") from error


def put_if_absent(path: Path, payload: Buffer) -> bool:
    """Write a file unless there is one; of all processes that try, exactly one hears true. Durable when it returns."""
    with explained(path):
        _ensure(path.parent)
        temporary, handle = _begin(path.parent)
        try:
            rest = memoryview(payload).cast("B")
            while rest:
                rest = rest[os.write(handle, rest) :]
            os.fsync(handle)
            try:
                os.link(temporary, path)
                created = True
            except FileExistsError:
                created = False
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            os.close(handle)
        sync(path.parent)  # also when another one won: it may have died between its link and its fsync
    return created


def put_blob(folder: Path, payload: Buffer, *, suffix: str = "") -> str:
    """Store bytes under the SHA-256 of themselves, once; give the file's name."""
    name = sha256(payload).hexdigest() + suffix
    path = folder / name
    if not path.exists():
        put_if_absent(path, payload)
    return name


def read(path: Path) -> bytes:
    """Give the bytes of a file."""
    with explained(path):
        return path.read_bytes()


def names(folder: Path) -> list[str]:
    """List the files of a folder in order, without those that are being written; a missing folder is empty."""
    with explained(folder):
        try:
            return sorted(name for name in os.listdir(folder) if not name.startswith("."))
        except FileNotFoundError:
            return []


def delete(path: Path) -> bool:
    """Delete a file; false when there was none."""
    with explained(path):
        try:
            os.unlink(path)
        except FileNotFoundError:
            return False
    return True


def tidy(folder: Path) -> int:
    """Delete what dead writers left behind, and nothing that is still being written; give how many."""
    removed = 0
    with explained(folder):
        left = [name for name in os.listdir(folder) if name.startswith(TEMPORARY)] if folder.is_dir() else []
        for name in left:
            with suppress(FileNotFoundError):
                handle = os.open(folder / name, os.O_RDONLY)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(folder / name)
                    removed += 1
                except BlockingIOError:
                    continue  # its writer lives
                finally:
                    os.close(handle)
    return removed


def sync(folder: Path) -> None:
    """Make names that were added to or deleted from a folder durable."""
    with explained(folder):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Keep other processes and threads out while the block runs; the lock dies with its holder."""
    with explained(path):
        _ensure(path.parent)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _acquire(handle, path)
        yield
    finally:
        os.close(handle)


def _acquire(handle: int, path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with explained(path), suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.001)
    cure = "is one stopped by Ctrl-Z? Continue or kill it"
    raise ConflictError(f"{path} has been held by another process for {PATIENCE:.0f} seconds: {cure}")


def _ensure(folder: Path) -> None:
    """Make a folder that survives a power cut."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        sync(folder.parent)


def _begin(folder: Path) -> tuple[str, int]:
    """Open a temporary file that `tidy` leaves alone until its writer is done or dead."""
    while True:
        temporary = str(folder / f"{TEMPORARY}{token_hex(8)}")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.path.exists(temporary):  # else it was tidied away between the two lines above
            return temporary, handle
        os.close(handle)
