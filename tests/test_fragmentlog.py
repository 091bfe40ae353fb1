"""The fragment log: what was appended comes back, whatever is torn, damaged or full."""

import os
from pathlib import Path

import numpy as np
import pytest

from farfield.errors import CorruptError, FullError
from farfield.learning.fragmentlog import FragmentLog
from farfield.types import Fragment


def fragment(seq: int, size: int = 20) -> Fragment:
    columns = {"reward": np.full((size, 2), seq, np.float32)}
    return Fragment(run="r", stream="ab" * 16, seq=seq, version=3, attempt=1, spec="0" * 64, columns=columns)


def filled(folder: Path, count: int = 10) -> tuple[FragmentLog, list[int]]:
    log = FragmentLog(folder, segment_bytes=1000)
    return log, [log.append(fragment(seq)) for seq in range(count)]


def seqs(log: FragmentLog, start: int = 0) -> list[int]:
    return [found.seq for _, found in log.read(start)]


def test_what_was_appended_comes_back_from_any_position(tmp_path: Path) -> None:
    log, positions = filled(tmp_path)
    assert len(list(tmp_path.iterdir())) > 2
    for first in range(10):
        found = list(log.read(positions[first]))
        assert [position for position, _ in found] == positions[first:]
        for seq, (_, back) in enumerate(found, start=first):
            assert back.name == ("r", "ab" * 16, seq)
            assert np.array_equal(back.columns["reward"], fragment(seq).columns["reward"])


@pytest.mark.parametrize("torn", [1, 7, 9, 100])
def test_a_torn_tail_is_cut_off(tmp_path: Path, torn: int) -> None:
    log, positions = filled(tmp_path)
    log.close()
    last = max(tmp_path.iterdir())
    os.truncate(last, max(1, last.stat().st_size - torn))
    again = FragmentLog(tmp_path, segment_bytes=1000)
    again.restore(0, positions[7])
    assert seqs(again) == list(range(7))
    assert again.append(fragment(70)) == positions[7]
    assert seqs(again) == [*range(7), 70]


def test_appending_after_a_restore_survives_another_one(tmp_path: Path) -> None:
    log, positions = filled(tmp_path)
    log.restore(0, positions[4])
    log.append(fragment(40))
    end = log.end
    log.append(fragment(41))
    again = FragmentLog(tmp_path, segment_bytes=1000)
    again.restore(positions[2], end)
    assert seqs(again, positions[2]) == [2, 3, 40]


def test_old_segments_are_deleted_only_when_all_of_them_is_old(tmp_path: Path) -> None:
    log, positions = filled(tmp_path)
    before = len(list(tmp_path.iterdir()))
    log.drop(positions[5])
    assert len(list(tmp_path.iterdir())) < before
    assert seqs(log, positions[5]) == [5, 6, 7, 8, 9]
    log.restore(positions[5], log.end)
    assert seqs(log, positions[5]) == [5, 6, 7, 8, 9]


def test_a_log_that_ends_too_early_is_refused(tmp_path: Path) -> None:
    log, _ = filled(tmp_path)
    end = log.end
    log.close()
    os.truncate(max(tmp_path.iterdir()), 10)
    with pytest.raises(CorruptError, match=f"bytes 0 to {end}.*another checkpoint"):
        FragmentLog(tmp_path, segment_bytes=1000).restore(0, end)


def test_a_log_with_a_gap_is_refused(tmp_path: Path) -> None:
    log, _ = filled(tmp_path)
    sorted(tmp_path.iterdir())[1].unlink()
    with pytest.raises(CorruptError, match="gap"):
        FragmentLog(tmp_path, segment_bytes=1000).restore(0, log.end)


@pytest.mark.parametrize("at", [0, 3, 5, 60])
def test_a_flipped_byte_is_noticed(tmp_path: Path, at: int) -> None:
    log, _ = filled(tmp_path, 3)
    path = min(tmp_path.iterdir())
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(CorruptError, match=path.name):
        list(log.read(0))


def test_a_new_run_forgets_what_was_never_checkpointed(tmp_path: Path) -> None:
    filled(tmp_path)
    log = FragmentLog(tmp_path, segment_bytes=1000)
    assert log.append(fragment(99)) == 0
    assert seqs(log) == [99]


def test_a_log_that_cannot_be_written_says_so_and_goes_on_later(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.write_text("a file where the folder should be")
    log = FragmentLog(folder, segment_bytes=1000)
    with pytest.raises(FullError, match="make room"):
        log.append(fragment(0))
    folder.unlink()
    assert log.append(fragment(0)) == 0
    assert seqs(log) == [0]


def test_half_a_record_on_a_full_disk_does_not_spoil_the_next(tmp_path: Path) -> None:
    import resource
    import signal

    log = FragmentLog(tmp_path, segment_bytes=1_000_000)
    log.append(fragment(0))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (log.end + 50, limits[1]))
        with pytest.raises(FullError, match="make room"):
            log.append(fragment(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    log.append(fragment(2))
    assert seqs(log) == [0, 2]
