"""A folder for compiled updates in, a process that is ready to import JAX out."""

import ctypes
import os
from pathlib import Path

KEEP_MAPPED, KEEP_FREE = 32 << 20, 128 << 20  # bytes: smaller temporaries are reused instead of given back
MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # names of mallopt


def prepare(cache: Path, *, devices: int = 1) -> None:
    """Set one thread of arithmetic, the cache of compilations, and an allocator that keeps what it has.

    Call it before anything imports JAX. What the environment says already stays as it is.
    """
    flags = ["--xla_cpu_multi_thread_eigen=false"]  # the other cores belong to actors
    if devices > 1:
        flags.append(f"--xla_force_host_platform_device_count={devices}")
    given = os.environ.get("XLA_FLAGS", "")
    missing = [flag for flag in flags if flag.partition("=")[0] not in given]
    os.environ["XLA_FLAGS"] = " ".join([given, *missing]).strip()
    if devices == 1:  # two threads that hand one small update to and fro take a third of an actor's core
        os.environ.setdefault("PJRT_NPROC", "1")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    keep_memory()


def keep_memory() -> None:
    """Raise glibc's thresholds: page faults are dear, and updates take the same large temporaries again and again."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc has it; musl and macOS do not
        libc.mallopt(MMAP_THRESHOLD, KEEP_MAPPED)
        libc.mallopt(TRIM_THRESHOLD, KEEP_FREE)
