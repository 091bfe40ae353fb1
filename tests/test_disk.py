"""The disk log: owned means on the disk, whatever is killed, cut or full; others read and note while one appends."""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import disk_child
from farfield.errors import ConfigError, ConflictError, CorruptError, FullError
from farfield.transports import disk
from farfield.types import Record

CHILD = Path(disk_child.__file__)
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator:
    """A function that opens the log of this test; every call is another transport."""
    logs = []

    def open_log(folder: str = "log", **settings) -> disk.DiskTransport:
        logs.append(disk.make(disk.Config(str(tmp_path / folder), **settings)))
        return logs[-1]

    yield open_log
    for log in logs:
        log.close()


def put(log, *payloads: bytes, key: str = "k") -> None:
    for future in [log.append("t", payload, key=key) for payload in payloads]:
        future.result(60)


def rest(log, cursor: dict[int, int], *, limit: int = 1000) -> tuple[list[Record], dict[int, int]]:
    """Read to the end of what is there."""
    records: list[Record] = []
    while True:
        found, cursor = log.read("t", after=cursor, limit=limit, timeout=0.0)
        records += found
        if not found:
            return records, cursor


def payloads(records: list[Record]) -> list[bytes]:
    return [bytes(record.payload) for record in records]


def run(code: str, *arguments: object) -> str:
    """Run a few lines in another process."""
    command = [sys.executable, "-c", f"import sys\nfrom farfield.transports import disk\n{code}", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def live(folder: Path, life: int, seed: int, owned: int) -> int:
    """Start a process that appends, kill it when it has said that so many records are owned; gives how many were."""
    command = [sys.executable, str(CHILD), str(folder), str(life), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(owned):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        said = [line for line in process.stdout.read().split(b"\n")[:-1] if line]
    return owned + len(said)


def check_order(records: list[Record], owned: list[int]) -> None:
    """Every owned record once and in order; of those that nobody was told about, a first part of each life's."""
    found: list[list[int]] = [[] for _ in owned]
    lives = []
    for record in records:
        life, number = disk_child.HEAD.unpack_from(record.payload)
        found[life].append(number)
        lives.append(life)
    assert lives == sorted(lives)
    for numbers, count in zip(found, owned, strict=True):
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= count
    assert [record.offset for record in records] == list(range(records[0].offset, records[0].offset + len(records)))


def survive(folder: Path, kills: int, seed: int) -> None:
    """Kill one appender after the other while somebody reads on and notes how far they are."""
    rng = random.Random(seed)
    owned: list[int] = []
    records: list[Record] = []
    cursor: dict[int, int] = {}
    reader = disk.make(disk.Config(str(folder)))
    for life in range(kills):
        owned.append(live(folder, life, rng.randrange(1 << 30), rng.randrange(1, 600)))
        more, cursor = rest(reader, cursor)
        records += [record._replace(payload=record.payload[: disk_child.HEAD.size]) for record in more]
        if rng.random() < 0.5:
            reader.note("t", "g", cursor)
    reader.close()
    check_order(records, owned)


@pytest.mark.slow
def test_what_was_owned_is_there_once_and_in_order_after_twenty_kills(tmp_path: Path) -> None:
    survive(tmp_path, kills=20, seed=1)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_two_hundred_kills_lose_nothing(tmp_path: Path) -> None:
    survive(tmp_path, kills=200, seed=2)


def test_what_a_cut_write_ahead_log_leaves_is_a_first_part(tmp_path: Path, opened) -> None:
    owned = live(tmp_path / "log", 0, 7, 300)
    whole = (tmp_path / "log/t.db-wal").stat().st_size
    rng = random.Random(3)
    counts = []
    for size in sorted(rng.randrange(whole) for _ in range(8)):
        folder = f"cut{size}"
        shutil.copytree(tmp_path / "log", tmp_path / folder)
        os.truncate(tmp_path / folder / "t.db-wal", size)
        log = opened(folder)
        records, _ = rest(log, {})
        counts.append(len(records))
        put(log, disk_child.HEAD.pack(0, len(records)))  # and it goes on from there
        again, _ = rest(log, {})
        check_order(again, [len(records) + 1])
    assert counts == sorted(counts)
    assert len(rest(opened(), {})[0]) >= owned


def test_closing_delivers_what_was_appended(opened) -> None:
    log = opened()
    futures = [log.append("t", b"%d" % number, key="k") for number in range(500)]
    log.close()
    assert all(future.done() and future.exception() is None for future in futures)
    assert payloads(rest(opened(), {})[0]) == [b"%d" % number for number in range(500)]


def test_what_is_on_its_way_cannot_be_called_back(opened) -> None:
    future = opened().append("t", b"x", key="k")
    assert not future.cancel()
    assert future.result(60) is None


def test_offsets_go_on_although_everything_was_deleted(opened) -> None:
    log = opened(room=100)
    put(log, bytes(60))
    log.note("t", "g", {0: 1})
    put(log, bytes(60))
    log.note("t", "g", {0: 2})
    put(log, bytes(60))
    log.note("t", "g", {0: 3})
    log.close()
    again = opened(room=100)
    put(again, bytes(100))
    records, cursor = rest(again, {})
    assert [record.offset for record in records] == [3]
    assert cursor == {0: 4}


def test_several_threads_append_at_once(opened) -> None:
    log = opened(partitions=3)

    def fill(key: str) -> None:
        put(log, *[b"%d" % number for number in range(300)], key=key)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fill, "abcdefgh"))
    records, _ = rest(log, {})
    for key in "abcdefgh":
        assert payloads([r for r in records if r.key == key]) == [b"%d" % number for number in range(300)]


def test_a_second_appender_is_told_who_the_first_one_is(opened) -> None:
    first, second = opened(), opened()
    put(first, b"0")
    with pytest.raises(ConflictError, match=rf"process {os.getpid()} appends to it already"):
        second.append("t", b"1", key="k")
    assert payloads(rest(second, {})[0]) == [b"0"]
    second.note("t", "g", {0: 1})
    second.append("another topic", b"1", key="k").result(60)
    first.close()
    put(second, b"2")


def test_another_process_reads_notes_and_may_not_append(tmp_path: Path, opened) -> None:
    log = opened(room=100, wait=60.0)
    put(log, b"0" * 60)
    code = """
log = disk.make(disk.Config(sys.argv[1]))
records, cursor = log.read("t", after={}, limit=9, timeout=60)
try:
    log.append("t", b"", key="k")
except Exception as error:
    print(error)
log.note("t", "g", cursor)
"""
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(put, log, b"1" * 60)  # waits until the other process has noted
        said = run(code, tmp_path / "log")
        late.result(60)
    assert f"process {os.getpid()} appends" in said


def test_a_reader_that_was_there_first_gets_the_first_record(tmp_path: Path, opened) -> None:
    code = """
log = disk.make(disk.Config(sys.argv[1]))
print(log.read("t", after={}, limit=9, timeout=0.0), flush=True)
records, _ = log.read("t", after={}, limit=9, timeout=60)
print(records[0].payload.decode())
"""
    command = [sys.executable, "-c", f"import sys\nfrom farfield.transports import disk\n{code}", str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "([], {})\n"
        put(opened(), b"hello")
        assert process.stdout.readline() == "hello\n"


def test_notes_come_through_while_the_appender_is_busy(opened) -> None:
    log, reader = opened(room=3000 * 20_000, wait=60.0), opened()
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(put, log, *[bytes(20_000)] * 3000)
        for number in range(20):
            reader.note("t", "g", {0: number})
        busy.result(60)
    reader.note("t", "g", {0: 2990})
    put(log, *[bytes(20_000)] * 2990)  # only fits where they were
    assert [record.offset for record in rest(log, {})[0]] == list(range(2990, 5990))


def test_a_cursor_from_a_log_that_is_gone_begins_at_the_start(opened) -> None:
    log = opened()
    put(log, b"0", b"1")
    assert log.read("t", after={0: 77}, limit=9, timeout=0.0)[1] == {0: 2}


def test_one_read_gives_no_more_bytes_than_memory_should_hold(opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "READ", 1000)
    log = opened()
    put(log, *[bytes(400)] * 10)
    records, cursor = log.read("t", after={}, limit=100, timeout=0.0)
    assert len(records) == 3
    assert len(rest(log, cursor)[0]) == 7


def test_other_partitions_than_the_files_are_refused(opened) -> None:
    log = opened(partitions=2)
    put(log, b"0")
    log.close()
    with pytest.raises(ConfigError, match="in 2 partitions, the config says 3"):
        put(opened(partitions=3), b"1")
    put(opened(partitions=2), b"1")  # who was refused holds nothing


def test_a_damaged_file_is_said_to_be_damaged(tmp_path: Path, opened) -> None:
    log = opened()
    put(log, b"0")
    log.close()
    (tmp_path / "log/t.db").write_bytes(b"rubbish " * 1000)
    with pytest.raises(CorruptError, match="move it away"):
        put(opened(), b"1")
    with pytest.raises(CorruptError, match="move it away"):
        opened().read("t", after={}, limit=1, timeout=0.0)


def test_a_full_disk_fails_what_does_not_fit_and_nothing_later(tmp_path: Path, opened) -> None:
    """A limit on the size of files stands for the end of the disk."""
    code = """
import resource
from farfield.errors import FullError
log = disk.make(disk.Config(sys.argv[1]))
log.append("t", bytes(1000), key="k").result(60)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
failed = 0
for _ in range(5):
    for future in [log.append("t", bytes(100_000), key="k") for _ in range(3)]:
        try:
            future.result(60)
        except FullError as error:
            failed += 1
            said = str(error)
print(failed, said)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
log.append("t", b"room again", key="k").result(60)
log.close()
"""
    said = run(code, tmp_path / "log")
    failed = int(said.split()[0])
    assert failed > 5
    assert "make room on the disk" in said
    records, _ = rest(opened(), {})
    assert len(records) == 1 + 15 - failed + 1
    assert records[-1].payload == b"room again"
    assert [record.offset for record in records] == list(range(len(records)))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FullError, match=r"file.*allow access"):
        disk.make(disk.Config(str(tmp_path / "file" / "log")))


@pytest.mark.parametrize("wrong", [{"folder": ""}, {"room": 0}, {"wait": -1.0}, {"partitions": 0}, {"poll": 0.0}])
def test_impossible_settings_are_refused(tmp_path: Path, wrong: dict) -> None:
    with pytest.raises(ConfigError, match=r"\[transport\] disk"):
        disk.make(disk.Config(**{"folder": str(tmp_path)} | wrong))
