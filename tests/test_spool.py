"""Spools: what was finished survives its process, a full disk and torn frames, in order."""

import os
import resource
import signal
import struct
import subprocess
import sys
import textwrap
import zlib

import pytest

from farfield.experience.spool import Spool

BIG = 256 << 20


def left_behind(folder, *payloads):
    """Files of a process that was killed: written by a child, which dies with them."""
    script = """
        import os, signal, sys
        from pathlib import Path
        from farfield.experience.spool import Spool
        spool = Spool(Path(sys.argv[1]), 1 << 28)
        for payload in sys.argv[2:]:
            assert spool.write(payload.encode())
        os.kill(os.getpid(), signal.SIGKILL)
    """
    child = subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(folder), *payloads], check=False)
    assert child.returncode == -signal.SIGKILL


def contents(spool):
    return [spool.read(place) for place in spool.adopt()]


def files(folder):
    return sorted(folder.glob("*.spool"))


def test_what_was_written_can_be_read_until_it_is_released(tmp_path):
    spool = Spool(tmp_path / "run", BIG)
    places = [spool.write(bytes([n]) * n) for n in range(1, 20)]
    assert [spool.read(place) for place in places] == [bytes([n]) * n for n in range(1, 20)]
    assert [file.stat().st_size for file in files(tmp_path / "run")] == [spool.held]
    for place in places:
        spool.release(place)
    assert (spool.held, files(tmp_path / "run")[0].stat().st_size) == (0, 0)
    spool.close()
    assert files(tmp_path / "run") == []


def test_frames_are_length_checksum_and_payload(tmp_path):
    spool = Spool(tmp_path, BIG)
    spool.write(b"hello")
    (file,) = files(tmp_path)
    assert len(file.stem) == 16
    assert int(file.stem, 16) >= 0
    assert file.read_bytes() == struct.pack("<II", 5, zlib.crc32(b"hello")) + b"hello"


def test_the_next_process_finds_what_a_killed_one_left_in_its_order(tmp_path):
    left_behind(tmp_path, "a", "b", "c")
    left_behind(tmp_path, "d", "e")
    spool = Spool(tmp_path, BIG)
    places = list(spool.adopt())
    assert [spool.read(place) for place in places] == [b"a", b"b", b"c", b"d", b"e"]
    for place in places[:4]:
        spool.release(place)
    assert len(files(tmp_path)) == 1  # removed with its last payload
    spool.close()  # without the last one being owned
    assert contents(Spool(tmp_path, BIG)) == [b"d", b"e"]


def test_what_is_written_is_there_for_the_next_process_even_when_nothing_was_closed(tmp_path):
    first = Spool(tmp_path, BIG)
    first.write(b"mine")
    assert contents(Spool(tmp_path, BIG)) == []  # its owner lives
    first.abandon()
    assert contents(Spool(tmp_path, BIG)) == [b"mine"]


def test_two_processes_share_one_folder(tmp_path):
    one, two = Spool(tmp_path, BIG), Spool(tmp_path, BIG)
    one.write(b"one")
    two.write(b"two")
    assert len(files(tmp_path)) == 2
    assert list(one.adopt()) == list(two.adopt()) == []
    two.close()
    assert contents(one) == [b"two"]


@pytest.mark.parametrize("damage", ["cut", "flipped", "length", "empty"])
def test_a_torn_frame_ends_its_file(tmp_path, damage):
    left_behind(tmp_path, "first", "second", "third")
    (file,) = files(tmp_path)
    data = bytearray(file.read_bytes())
    frame = 8 + len("first")
    if damage == "cut":
        del data[-1:]
    elif damage == "flipped":
        data[frame + 9] ^= 1
    elif damage == "length":
        data[frame : frame + 4] = b"\xff\xff\xff\x7f"
    else:
        data[frame : frame + 4] = bytes(4)
    file.write_bytes(data)
    spool = Spool(tmp_path, BIG)
    places = list(spool.adopt())
    whole = 2 if damage == "cut" else 1
    assert [spool.read(place) for place in places] == [b"first", b"second"][:whole]
    assert spool.damaged == len(data) - sum(8 + place.size for place in places)
    for place in places:
        spool.release(place)
    assert files(tmp_path) == []


def test_a_file_of_nothing_but_rubbish_is_removed(tmp_path):
    (tmp_path / "0123456789abcdef.spool").write_bytes(os.urandom(100))
    (tmp_path / "fedcba9876543210.spool").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("not ours")
    spool = Spool(tmp_path, BIG)
    assert list(spool.adopt()) == []
    assert spool.damaged == 100
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_the_quota_counts_what_others_keep(tmp_path):
    left_behind(tmp_path, "x" * 600)
    spool = Spool(tmp_path, 1000)
    assert spool.write(bytes(300)) is not None
    assert spool.write(bytes(300)) is None
    assert "quota" in spool.trouble
    for place in list(spool.adopt()):
        spool.release(place)
    assert spool.write(bytes(300)) is not None


def test_a_stream_that_never_rests_does_not_grow_its_files(tmp_path):
    spool = Spool(tmp_path, 1 << 20)
    waiting = [spool.write(bytes(4000)) for _ in range(4)]
    for n in range(2000):
        place = spool.write(bytes([n % 256]) * 4000)
        assert place is not None, f"{n}: {spool.trouble}"
        waiting.append(place)
        spool.release(waiting.pop(0))
    assert [spool.read(place)[0] for place in waiting] == [n % 256 for n in range(1996, 2000)]
    assert sum(file.stat().st_size for file in files(tmp_path)) < 400_000


def test_a_full_disk_takes_no_half_frames(tmp_path):
    script = """
        import resource, sys
        from pathlib import Path
        from farfield.experience.spool import Spool
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
        spool = Spool(Path(sys.argv[1]), 1 << 28)
        first = [spool.write(bytes([n]) * 1000) for n in range(6)]
        assert [place is None for place in first] == [False] * 4 + [True] * 2, first
        assert "File too large" in spool.trouble, spool.trouble
        assert spool.write(b"small") is not None
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert spool.write(bytes([9]) * 1000) is not None
        spool.close()
    """
    assert resource.RLIM_INFINITY
    subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], check=True)
    spool = Spool(tmp_path, BIG)
    assert [payload[:1] for payload in contents(spool)] == [b"\0", b"\1", b"\2", b"\3", b"s", b"\x09"]
    assert spool.damaged == 0


def test_a_folder_that_cannot_be_made_is_tried_again_later(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    spool = Spool(blocked / "run", BIG)
    assert spool.write(b"x") is None
    assert "file" in spool.trouble
    assert Spool(None, BIG).write(b"x") is None
