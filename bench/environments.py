"""A peer's name goes in; the Python of an environment of its own, made on first use, comes out."""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"
PEERS = ("sb3", "cleanrl", "sample_factory", "rllib")
CACHE = Path("~/.cache/farfield-bench")


class PeerError(Exception):
    """A peer that cannot be installed or run, and why."""


def python_of(peer: str, cache: Path) -> Path:
    """Give the Python that has `peer` installed; install it from the pinned files when it is not there yet."""
    folder = cache / peer
    python, stamp = folder / "bin/python", folder / "farfield-bench.stamp"
    wanted = _fingerprint(peer)
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    layer = python_of("torch", cache) if peer != "torch" else None
    print(f"installing {peer} into {folder} …", file=sys.stderr, flush=True)
    if folder.exists():
        shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _call([sys.executable, "-m", "venv", str(folder)], peer)
    if layer is not None:
        _link(layer.parents[1], folder)
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    _call([*pip, "-r", str(REQUIREMENTS / f"{peer}.txt")], peer)
    alone = REQUIREMENTS / f"{peer}.packages.txt"
    if alone.exists():
        _call([*pip, "--no-deps", "--ignore-requires-python", "-r", str(alone)], peer)
    stamp.write_text(wanted)
    return python


def versions_of(python: Path) -> dict[str, str]:
    """List what is installed beside this Python, by name."""
    done = subprocess.run(
        [python, "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (line.split("==", 1) for line in done.stdout.splitlines() if "==" in line)
    return {name.lower(): version for name, version in lines}


def _fingerprint(peer: str) -> str:
    files = [REQUIREMENTS / f"{name}.txt" for name in ("torch", peer, f"{peer}.packages")]
    text = sys.version + "".join(file.read_text() for file in files if file.exists())
    return hashlib.sha256(text.encode()).hexdigest()


def _link(layer: Path, folder: Path) -> None:
    """Begin with the packages of the layer, by hard links where the file system has them: 5 GB once, not per peer."""
    packages = Path(sysconfig.get_path("purelib", vars={"base": ""}).lstrip("/"))

    def copy(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

    shutil.rmtree(folder / packages)
    shutil.copytree(layer / packages, folder / packages, copy_function=copy, symlinks=True)


def _call(command: list[str], peer: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    if done.returncode:
        last = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()][-3:]
        raise PeerError(f"{peer} cannot be installed: {' / '.join(last)}")
