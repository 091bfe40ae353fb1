"""The view of training: what it shows, how little it does, and how it ends."""

import io
import threading

import pytest
from rich.console import Console

from farfield.cli.view import POINTS, View

SUMMARY = {
    "stopped_by": "until", "steps": 65_536, "seconds": 5.25, "steps_per_second": 84_100.0, "lag": 0.51, "dropped": 2,
    "episodes": 720, "return_mean": 476.1, "version": 64,
}  # fmt: skip


def row(update: int, **more):
    return {
        "update": update, "attempt": 1, "version": update, "steps": update * 1024, "seconds": update / 10,
        "steps_per_second": 10_240.0, "episodes": update * 3, "returns": [float(update)], "lengths": [update],
        "return_mean": None, "lag": 0.5, "lag_max": 1, "dropped": 0, "loss/policy": -0.0125, "entropy": 0.5,
    } | more  # fmt: skip


def terminal(*, live: bool = False) -> Console:
    return Console(file=io.StringIO(), force_terminal=live, width=100, color_system=None, _environ={})


def opened(console: Console, **more) -> View:
    settings = {"total_steps": 102_400, "until": 475.0, "run": "pole-1", "env": "CartPole-v1", "algorithm": "ppo"}
    return View(console, **(settings | more))


def drawn(view: View) -> str:
    console = terminal()
    console.print(view.render())
    return console.file.getvalue()


def test_before_the_first_update_it_says_what_it_waits_for():
    assert "compiling and playing the first steps" in drawn(opened(terminal()))


def test_it_shows_progress_curve_rates_and_losses(tmp_path):
    (tmp_path / "000000000001-ab.safetensors").write_bytes(b"")
    view = opened(terminal(), backend="sync", checkpoints=tmp_path)
    for update in range(1, 51):
        view.update(row(update))
    text = drawn(view)
    for said in (
        "pole-1 · CartPole-v1 · ppo · sync", "51.2k of 102k · 50% · ETA 5.0 s", "25.5 of 475", "steps/s 10.2k",
        "episodes 150", "lag 0.5 (≤ 1)", "dropped 0", "version 50", "loss/policy -0.0125", "entropy 0.5",
        "checkpoint 0.",
    ):  # fmt: skip
        assert said in text
    assert any("\u2800" < letter < "\u28ff" for letter in text)
    assert max(map(len, text.splitlines())) <= 100


def test_the_time_left_is_guessed_from_the_goal_where_that_is_nearer():
    view = opened(terminal(), total_steps=10**9)
    for update in range(1, 61):
        view.update(row(update, return_mean=7.0 * update))
    assert "ETA 0.8 s" in drawn(view)  # 55 of return are left, 7 come every 0.1 s


def test_a_long_run_keeps_a_short_curve_over_its_whole_length():
    view = opened(terminal())
    for update in range(1, 20 * POINTS):
        view.update(row(update))
    points = view._points
    assert POINTS // 2 <= len(points) < POINTS
    assert points[0][1] == 1024
    assert points[-1][1] > 0.98 * 20 * POINTS * 1024


def test_without_a_terminal_it_writes_plain_lines_and_not_too_many():
    console = terminal()
    view = opened(console)
    for update in range(1, 200):
        view.update(row(update))
    lines = console.file.getvalue().splitlines()
    assert lines == ["0.1 s  1.02k of 102k steps  return 1 of 475  10.2k steps/s  lag 0.5  ETA 9.9 s"]


@pytest.mark.parametrize("live", [True, False])
def test_messages_and_the_summary_are_written(live):
    console = terminal(live=live)
    view = opened(console)
    view.update(row(1))
    view.update(row(2))
    view.message("actor 0 [pid 7] made no step for 60 s: replaced")
    view.close(SUMMARY)
    view.close(None)
    text = console.file.getvalue()
    for said in ("[pid 7] made no step", "solved", "476.1", "65,536 at 84.1k/s", "5.2 s", "farfield play pole-1"):
        assert said in text


@pytest.mark.parametrize(
    ("by", "said"), [("steps", "all steps done"), ("sigint", "stopped by sigint"), ("patience", "no better return")]
)
def test_the_end_says_why(by, said):
    console = terminal()
    opened(console).close(SUMMARY | {"stopped_by": by, "return_mean": None})
    assert said in console.file.getvalue()


def test_closing_without_a_summary_leaves_the_terminal_in_order():
    console = terminal(live=True)
    view = opened(console)
    view.update(row(1))
    view.close(None)
    assert console.file.getvalue().count("\x1b[?25l") == console.file.getvalue().count("\x1b[?25h") == 1
    drawing = [thread for thread in threading.enumerate() if "refresh" in type(thread).__name__.lower()]
    for thread in drawing:
        thread.join(10)
    assert not any(thread.is_alive() for thread in drawing)


def test_updates_draw_nothing_themselves():
    console = terminal(live=True)
    view = opened(console)
    view._live.stop()
    before = console.file.getvalue()
    for update in range(1, 100):
        view.update(row(update))
    assert console.file.getvalue() == before
    view.close(None)
