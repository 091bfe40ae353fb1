"""Checkpoints: exact, whole, and with one before them to go back to."""

import math
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from farfield.errors import CorruptError, FullError
from farfield.types import Columns
from farfield.weights import checkpoints
from test_registry import die_everywhere

DTYPES = [
    "float16",
    "float32",
    "float64",
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
]


def state_of(number: int) -> Columns:
    draw = np.random.default_rng(number)
    return {
        "algorithm/kernel": draw.normal(size=(64, 64)),
        "algorithm/key": draw.integers(0, 2**32, 2, dtype=np.uint32),
    }


def same(left: Columns, right: Columns) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype
        and left[name].shape == right[name].shape
        and left[name].tobytes() == right[name].tobytes()
        for name in left
    )


def filled(folder: Path, *numbers: int, keep: int = 3) -> checkpoints.Checkpoints:
    kept = checkpoints.make(checkpoints.Config(keep=keep), folder)
    for number in numbers:
        kept.write(number, state_of(number), {"updates": number})
    return kept


def silent(line: str) -> None:
    raise AssertionError(f"nothing was to be said, but: {line}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3)])
def test_every_array_comes_back_bit_for_bit(tmp_path: Path, dtype: str, shape: tuple[int, ...]):
    size = math.prod(shape) * np.dtype(dtype).itemsize
    bits = np.random.default_rng(5).bytes(size) if dtype != "bool" else bytes(size)
    state = {"a/b": np.frombuffer(bits, dtype).reshape(shape)}
    kept = filled(tmp_path)
    kept.write(1, state, {})
    found = kept.newest(silent)
    assert found is not None
    assert same(found.state, state)
    assert found.state["a/b"].flags.writeable


def test_the_ends_of_the_integers_and_nan_survive(tmp_path: Path):
    state = {
        "low": np.array([-(2**63), 2**63 - 1]),
        "high": np.array([2**64 - 1], np.uint64),
        "nan": np.array([np.nan, -0.0, np.inf]),
    }
    facts = {"rng": 2**127 + 1, "best": -math.inf, "names": [["r", "s", 3]], "none": None, "text": "ü\n", "rate": 0.1}
    kept = filled(tmp_path)
    kept.write(7, state, facts)
    found = kept.newest(silent)
    assert found is not None
    assert (found.number, found.facts) == (7, facts)
    assert same(found.state, state)


def test_the_newest_is_found_and_only_the_last_few_are_kept(tmp_path: Path):
    kept = filled(tmp_path, 2, 9, 10, 100)
    assert kept.numbers() == [9, 10, 100]
    found = checkpoints.make(checkpoints.Config(), tmp_path).newest(silent)
    assert found is not None
    assert found.number == 100
    assert same(found.state, state_of(100))


def test_without_any_there_is_none(tmp_path: Path):
    kept = checkpoints.make(checkpoints.Config(), tmp_path / "none")
    assert kept.newest(silent) is None
    assert kept.numbers() == []


def run_here(verb: str, folder: Path) -> str:
    """Run one of this file's verbs in a process of its own."""
    command = [sys.executable, __file__, verb, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    match how:
        case "empty":
            path.write_bytes(b"")
        case "truncated":
            path.write_bytes(data[: len(data) // 2])
        case "zero-filled":
            path.write_bytes(bytes(len(data)))
        case "half zeros":
            path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
        case "bit flip":
            changed = bytearray(data)
            changed[-7] ^= 16
            path.write_bytes(changed)
        case "longer":
            path.write_bytes(data + b"\0")


@pytest.mark.parametrize("how", ["empty", "truncated", "zero-filled", "half zeros", "bit flip", "longer"])
def test_a_damaged_one_gives_way_to_the_one_before_and_that_is_said(tmp_path: Path, how: str):
    kept = filled(tmp_path, 1, 2)
    path = kept.write(3, state_of(3), {})
    damage(path, how)
    said: list[str] = []
    found = kept.newest(said.append)
    assert found is not None
    assert found.number == 2
    assert same(found.state, state_of(2))
    (line,) = said
    assert str(path) in line
    assert "going back to the one before it" in line


def test_when_all_are_damaged_each_is_named_and_nothing_begins_again_unasked(tmp_path: Path):
    kept = filled(tmp_path, 1, 2, 3)
    for path in tmp_path.iterdir():
        damage(path, "bit flip")
    said: list[str] = []
    with pytest.raises(CorruptError, match="all 3 checkpoints"):
        kept.newest(said.append)
    assert len(said) == 3


def test_damaged_ones_above_never_push_out_what_comes_after_going_back(tmp_path: Path):
    kept = filled(tmp_path, 1, 20, 30, 40, keep=3)
    for path in tmp_path.iterdir():
        damage(path, "truncated")
    kept.write(2, state_of(2), {})
    found = kept.newest(silent)
    assert found is not None
    assert found.number == 2


def test_writing_again_repairs_a_damaged_one(tmp_path: Path):
    kept = filled(tmp_path, 1)
    path = kept.write(2, state_of(2), {})
    damage(path, "bit flip")
    assert kept.write(2, state_of(2), {}) == path
    found = kept.newest(silent)
    assert found is not None
    assert found.number == 2


def test_a_full_disk_leaves_the_checkpoints_that_were(tmp_path: Path):
    filled(tmp_path, 1)
    done = subprocess.run(
        [sys.executable, __file__, "full", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "is full" in done.stdout
    assert len(list(tmp_path.iterdir())) == 1
    found = filled(tmp_path).newest(silent)
    assert found is not None
    assert same(found.state, state_of(1))


def test_a_writer_killed_at_any_point_leaves_whole_checkpoints(tmp_path: Path):
    points = int(run_here("die", tmp_path))
    assert points >= 12
    newest: set[int] = set()
    inside = 0
    for folder in tmp_path.iterdir():
        inside += any(path.name.startswith(".new-") for path in folder.iterdir())
        kept = checkpoints.make(checkpoints.Config(keep=2), folder)
        found = kept.newest(silent)
        assert found is not None
        assert same(found.state, state_of(found.number))
        newest.add(found.number)
        kept.write(4, state_of(4), {})
        assert sorted(path.name[:12] for path in folder.iterdir()) == [f"{number:012d}" for number in (found.number, 4)]
    assert newest == {2, 3}
    assert inside >= 3  # these died with half of it on the disk


def test_kills_from_outside_lose_at_most_the_one_being_written(tmp_path: Path):
    for _ in range(4):
        with subprocess.Popen([sys.executable, __file__, "write", str(tmp_path)], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            last = int(child.stdout.readline())
            while not any(name.startswith(".new-") for name in os.listdir(tmp_path)):
                assert child.poll() is None
            os.kill(child.pid, signal.SIGKILL)
            for line in child.stdout:  # what was written before
                last = int(line)
        found = filled(tmp_path).newest(silent)
        assert found is not None
        assert found.number in {last, last + 1}  # the next one may be whole, and not announced
        assert same(found.state, large(found.number))


def large(number: int) -> Columns:
    return {"a": np.full(200_000, number, np.int64)}


def write(folder: Path) -> None:
    """Write checkpoints until somebody kills this process."""
    kept = checkpoints.make(checkpoints.Config(), folder)
    found = kept.newest(silent)
    number = found.number + 1 if found else 0
    while True:
        kept.write(number, large(number), {})
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        number += 1


def main(verb: str, folder: Path) -> None:
    match verb:
        case "full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            with pytest.raises(FullError) as caught:
                filled(folder, 2)
            sys.stdout.write(str(caught.value))
        case "die":
            filled(folder / "first", 1, 2)
            points = die_everywhere(folder / "first", lambda copy: filled(copy, 3))
            sys.stdout.write(str(points))
        case "write":
            write(folder)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
