"""The command that says what is installed, what is missing and what cures it: doctor."""

import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import typer

from farfield.cli.options import Home, Json
from farfield.cli.screen import console, emit, table

BASE = ("farfield", "numpy", "msgspec", "protobuf", "grpcio")
EXTRAS = {  # extra -> the packages that it brings
    "train": (
        "jax",
        "jaxlib",
        "gymnasium",
        "safetensors",
        "typer",
        "rich",
        "matplotlib",
        "imageio",
        "platformdirs",
        "tensorboardX",
    ),
    "box2d": ("box2d",),
    "envpool": ("envpool",),
    "onnx": ("onnx", "onnxruntime"),
    "server": ("litestar", "uvicorn", "prometheus-client"),
    "rl4sys": ("pyyaml",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
}
SHORT = 1 << 30  # bytes below which a disk is called nearly full
SIGNS = {"good": ("✓", "green"), "absent": ("–", "dim"), "bad": ("✗", "red")}


class Finding(NamedTuple):
    """One thing that was looked at; `cure` says what to do where it is not good."""

    about: str
    state: str  # good · absent (optional) · bad
    found: str
    cure: str = ""


def doctor(home: Home = "", json: Json = False) -> None:
    """Say what is installed, what is missing, and what cures it; the exit code is 1 where something is wrong.

    Example: farfield doctor
    """
    findings = [*_python(), *_packages(), *_places(home), *_machine(), *_processes()]
    if json:
        for finding in findings:
            emit(finding._asdict())
    else:
        from rich.text import Text

        rows = [(Text(*SIGNS[one.state]), one.about, one.found, one.cure) for one in findings]
        console().print(table(("", "what", "found", "cure"), rows))
    if any(finding.state == "bad" for finding in findings):
        raise typer.Exit(1)


def _python() -> Iterator[Finding]:
    """Look at the interpreter."""
    found = f"{sys.version.split()[0]} at {sys.executable}"
    good = sys.version_info >= (3, 11)
    yield Finding("python", "good" if good else "bad", found, "" if good else "install Python 3.11 or newer")


def _packages() -> Iterator[Finding]:
    """Look at what is installed, by extra."""
    for name in BASE:
        found = _installed(name)
        yield Finding(
            name, "good" if found else "bad", found or "not installed", "" if found else "pip install farfield"
        )
    for extra, names in EXTRAS.items():
        versions = {name: _installed(name) for name in names}
        missing = [name for name, found in versions.items() if not found]
        said = ", ".join(f"{name} {found}" for name, found in versions.items() if found)
        if missing:
            said = f"{said}; without {', '.join(missing)}" if said else "not installed"
        cure = f"pip install 'farfield[{extra}]'" if missing else ""
        yield Finding(f"extra {extra}", "absent" if missing else "good", said, cure)


def _installed(name: str) -> str:
    """Give a package's version without importing it; empty where there is none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _places(home: str) -> Iterator[Finding]:
    """Look at where runs live."""
    import shutil

    from farfield.wiring import home_folder

    folder = home_folder(home)
    parent = next(path for path in (folder, *folder.parents) if path.exists())
    cure = "choose another folder with --home or FARFIELD_HOME"
    try:
        with tempfile.TemporaryFile(dir=parent):
            yield Finding("home", "good", f"{folder} can be written")
    except OSError as error:
        yield Finding("home", "bad", f"{folder}: {error.strerror}", cure)
    free = shutil.disk_usage(parent).free
    state = "good" if free >= SHORT else "bad"
    yield Finding("free space", state, f"{free / 2**30:.1f} GiB", "" if state == "good" else f"make room, or {cure}")


def _machine() -> Iterator[Finding]:
    """Look at cores, memory settings, and whether processes can talk over unix sockets."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    few = "" if cores > 1 else "sampling cannot overlap learning on one core; --actors 0 is best"
    yield Finding("cores", "good", str(cores), few)
    for name, unset in (
        ("XLA_FLAGS", "not set; XLA's defaults"),
        ("MALLOC_MMAP_THRESHOLD_", "not set; actors get 32 MiB by themselves"),
        ("MALLOC_TRIM_THRESHOLD_", "not set; actors get 128 MiB by themselves"),
    ):
        yield Finding(name, "good", os.environ.get(name) or unset)
    yield _socket()


def _socket() -> Finding:
    """Try a unix socket where learners put theirs."""
    cure = "set TMPDIR to a short path on a local disk, or train with --actors 0"
    try:
        with tempfile.TemporaryDirectory(prefix="farfield-") as place, socket.socket(socket.AF_UNIX) as server:
            server.bind(f"{place}/learner.sock")
            return Finding("unix sockets", "good", f"work in {tempfile.gettempdir()}")
    except (OSError, AttributeError) as error:
        return Finding("unix sockets", "bad", str(error), cure)


def _processes() -> Iterator[Finding]:
    """Look for actors whose learner is gone."""
    if not Path("/proc/self/cmdline").exists():
        return
    orphans = sorted(orphaned(Path("/proc")))
    if orphans:
        pids = " ".join(map(str, orphans))
        yield Finding("processes", "bad", f"{len(orphans)} actors or learners without a parent", f"kill {pids}")
    else:
        yield Finding("processes", "good", "no actor without its learner, no learner without its gateway")


def orphaned(proc: Path) -> Iterator[int]:
    """Find actors and live learners whose parent is not the process that their command line names."""
    for folder in proc.glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").strip("\0").split("\0")
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:  # it ended meanwhile, or belongs to somebody else
            continue
        if words[1:3] in (["-m", "farfield.acting"], ["-m", "farfield.live"]) and parent != words[-1]:
            yield int(folder.name)
