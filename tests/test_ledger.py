"""The ledger: what was torn or undone is not told, what holds is."""

from pathlib import Path

from farfield.learning import ledger
from farfield.telemetry.lines import Lines


def written(path: Path, *entries: tuple[int, int, int]) -> None:
    """Note updates of attempts, each of one fragment."""
    lines = Lines(path)
    for update, attempt, seq in entries:
        lines.append(ledger.entry(update, attempt, (("r", "s", seq),)))
    lines.close()


def held(path: Path) -> list[tuple[int, int, int]]:
    return [(entry.update, entry.attempt, entry.fragments[0][1]) for entry in ledger.read(path)]


def test_an_attempt_that_went_back_undoes_what_came_after(tmp_path: Path) -> None:
    path = tmp_path / ledger.FILE
    written(path, (1, 1, 0), (2, 1, 1), (3, 1, 2))
    written(path, (2, 2, 5))
    assert held(path) == [(1, 1, 0), (2, 2, 5)]


def test_a_torn_line_takes_no_other_one_with_it(tmp_path: Path) -> None:
    path = tmp_path / ledger.FILE
    written(path, (1, 1, 0), (2, 1, 1))
    path.write_bytes(path.read_bytes()[:-7])
    assert held(path) == [(1, 1, 0)]
    written(path, (2, 2, 4))
    assert held(path) == [(1, 1, 0), (2, 2, 4)]


def test_what_a_fenced_attempt_still_wrote_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / ledger.FILE
    written(path, (1, 1, 0), (2, 2, 1), (3, 1, 9), (3, 2, 2))
    assert held(path) == [(1, 1, 0), (2, 2, 1), (3, 2, 2)]
