"""Rows of metrics survive kills and resumes, reach TensorBoard, and become curves."""

import json
import math
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from farfield.errors import ConfigError, FullError, MissingError
from farfield.telemetry import curves, metrics, plots, writers
from farfield.telemetry.lines import Lines


def row(update: int, attempt: int = 1, **more):
    return {"update": update, "attempt": attempt, "steps": update * 100, "returns": [], "return_mean": None} | more


def written(folder: Path, *rows) -> None:
    log = Lines(folder / metrics.FILE)
    for one in rows:
        log.append(one)
    log.close()


def test_rows_come_back_as_they_were(tmp_path):
    first = row(1, returns=[1.5, -2.0], lengths=[3, 4], return_mean=0.25, loss=np.float32(0.5), count=np.int64(7))
    written(tmp_path, first, row(2))
    back = metrics.read(tmp_path)
    assert back[0] == first
    assert [one["update"] for one in back] == [1, 2]


def test_numbers_that_json_lacks_become_null(tmp_path):
    written(tmp_path, row(1, loss=math.nan, ratio=-math.inf, gradient=np.float32("inf"), returns=[math.nan]))
    line = json.loads((tmp_path / metrics.FILE).read_text())
    assert (line["loss"], line["ratio"], line["gradient"], line["returns"]) == (None, None, None, [None])
    assert math.isnan(metrics.column(metrics.read(tmp_path), "loss")[0])


def test_one_row_is_one_write(tmp_path):
    def calls() -> int:
        return int(Path("/proc/self/io").read_text().split("syscw: ")[1].split()[0])

    if not Path("/proc/self/io").exists():
        pytest.skip("this system does not count system calls")
    log = Lines(tmp_path / metrics.FILE)
    before = calls()
    for i in range(50):
        log.append(row(i, returns=list(range(500))))
    assert calls() - before == 50
    log.close()


def test_a_torn_last_line_is_passed_over_and_then_cut_off(tmp_path):
    written(tmp_path, row(1), row(2))
    path = tmp_path / metrics.FILE
    path.write_bytes(path.read_bytes()[:-9])
    assert [one["update"] for one in metrics.read(tmp_path)] == [1]
    written(tmp_path, row(2, attempt=2))
    assert [(one["update"], one["attempt"]) for one in metrics.read(tmp_path)] == [(1, 1), (2, 2)]
    assert all(json.loads(line) for line in path.read_text().splitlines())


@pytest.mark.parametrize("content", [b"", b"{", b"\x00" * 200_000, b'[1]\n"x"\n{"update": "no"}\n'])
def test_files_without_a_single_row_read_as_empty(tmp_path, content):
    (tmp_path / metrics.FILE).write_bytes(content)
    assert metrics.read(tmp_path) == []
    written(tmp_path, row(1))
    assert [one["update"] for one in metrics.read(tmp_path)] == [1]


def test_a_later_attempt_replaces_what_came_after_its_checkpoint(tmp_path):
    written(tmp_path, *(row(i) for i in range(1, 8)), *(row(i, attempt=2) for i in (4, 5)))
    assert [(one["update"], one["attempt"]) for one in metrics.read(tmp_path)] == [
        (1, 1), (2, 1), (3, 1), (4, 2), (5, 2),
    ]  # fmt: skip


def test_a_fenced_attempt_that_still_writes_is_not_read(tmp_path):
    written(tmp_path, row(1), row(2, attempt=2), row(3), row(3, attempt=2))
    assert [(one["update"], one["attempt"]) for one in metrics.read(tmp_path)] == [(1, 1), (2, 2), (3, 2)]


def test_a_run_without_metrics_says_so(tmp_path):
    with pytest.raises(MissingError, match="first update"):
        metrics.read(tmp_path)


def test_a_full_disk_is_told_with_its_cure():
    log = Lines.__new__(Lines)
    log._path = Path("/dev/full")
    log._file = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(FullError, match="--resume"):
        log.append(row(1))
    log.close()


def test_a_curve_is_the_mean_of_the_last_hundred_or_of_fewer_so_far():
    rows = [row(1), row(2, returns=[10.0, 20.0]), row(3, returns=[30.0]), row(4, return_mean=99.0)]
    assert metrics.curve(rows) == ([200.0, 300.0, 400.0], [15.0, 20.0, 99.0])


def test_tensorboard_reads_what_was_written(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = {"env": "CartPole-v1", "algorithm": {"clip": 0.2}}
    started = writers.start(["tensorboard"], folder=tmp_path, run="pole-1", config=config)
    assert started is not None
    started(100, row(1, return_mean=12.5, loss=0.5))
    started(200, row(2, return_mean=25.0, loss=0.25))
    started.close(timeout=60)
    assert started.failed == {}
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("return_mean")] == [(100, 12.5), (200, 25.0)]
    assert [event.value for event in events.Scalars("loss")] == [0.5, 0.25]
    text = events.Tensors("pole-1/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "algorithm.clip = 0.2" in text


class Recorder:
    """A writer that waits until it is let go."""

    def __init__(self, fails: bool = False) -> None:
        self.steps: list[int] = []
        self.closed = 0
        self.fails = fails
        self.go = threading.Event()

    def __call__(self, step, row) -> None:
        assert self.go.wait(60)
        self.steps.append(step)
        if self.fails:
            raise OSError("no route to host")

    def close(self) -> None:
        self.closed += 1


def test_rows_are_thinned_and_the_newest_is_always_delivered():
    recorder = Recorder()
    recorder.go.set()
    started = writers.Writers({"recorder": lambda: recorder}, period=3600)
    for step in range(1000):
        started(step, row(1))
    started.close(timeout=60)
    assert recorder.steps == [0, 999]
    assert recorder.closed == 1


def test_a_slow_writer_loses_rows_and_the_learner_does_not_wait():
    recorder = Recorder()
    started = writers.Writers({"recorder": lambda: recorder}, period=0)
    for step in range(writers.ROOM + 100):
        started(step, row(1))
    assert started.left_out >= 99
    recorder.go.set()
    started.close(timeout=60)
    assert recorder.steps[0] == 0
    assert len(recorder.steps) + started.left_out == writers.ROOM + 100


def test_a_failing_writer_is_reported_once_and_the_others_go_on():
    bad, good, reports = Recorder(fails=True), Recorder(), []
    bad.go.set()
    good.go.set()
    opens = {"bad": lambda: bad, "good": lambda: good, "shut": lambda: json.loads("{")}
    started = writers.Writers(opens, period=0, report=reports.append)
    for step in range(5):
        started(step, row(1))
    started.close(timeout=60)
    assert (bad.steps, good.steps) == ([0], [0, 1, 2, 3, 4])
    assert sorted(started.failed) == ["bad", "shut"]
    assert [text.split(":")[0] for text in reports] == ["metrics no longer go to shut", "metrics no longer go to bad"]


def test_unknown_and_missing_writers_name_their_cure(tmp_path):
    with pytest.raises(ConfigError, match="did you mean tensorboard"):
        writers.start(["tensorbord"], folder=tmp_path, run="r", config={})
    with pytest.raises(MissingError, match="acme"):
        writers.start(["acme.board"], folder=tmp_path, run="r", config={})
    if writers.find_spec("wandb") is None:
        with pytest.raises(MissingError, match=r"pip install 'farfield\[wandb\]'"):
            writers.start(["wandb"], folder=tmp_path, run="r", config={})


def test_runs_that_share_a_prefix_are_one_group():
    line = ([0.0, 100.0], [0.0, 10.0])
    curves_ = {"lander-1": line, "lander-2": line, "pole_seed_7": line, "dqn": line}
    assert [group.name for group in plots.groups(curves_)] == ["lander", "pole_seed_7", "dqn"]
    assert [len(group.y) for group in plots.groups(curves_, by="all")] == [4]
    assert [group.name for group in plots.groups(curves_, by="none")] == list(curves_)


def test_a_group_is_compared_where_all_its_runs_have_been():
    group = plots.groups({"a-1": ([0, 100], [0, 10]), "a-2": ([10, 50], [10, 50])})[0]
    assert (group.x[0], group.x[-1]) == (10, 50)
    np.testing.assert_allclose(group.y[:, -1], [5, 50])


def test_the_band_holds_the_mean_and_narrows_with_runs():
    y = np.random.default_rng(1).normal(5.0, 2.0, (40, 3))
    low, high = plots.band(y)
    assert (low < y.mean(axis=0)).all()
    assert (y.mean(axis=0) < high).all()
    np.testing.assert_allclose(high - low, 2 * 1.96 * y.std(axis=0) / 40**0.5, rtol=0.2)
    fewer = plots.band(y[:5])
    assert ((fewer[1] - fewer[0]) > (high - low)).all()


def test_a_plot_is_a_picture(tmp_path):
    lines = {f"pole-{seed}": (list(range(0, 500, 5)), [seed * i / 10 for i in range(100)]) for seed in (1, 2, 3)}
    for name, magic in (("curves.png", b"\x89PNG"), ("curves.svg", b"<?xml")):
        plots.draw(lines, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(magic)
    with pytest.raises(ConfigError, match=r"\.png"):
        plots.draw(lines, tmp_path / "curves.docx")


def test_small_pictures_for_terminals():
    assert curves.sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == curves.BARS
    assert curves.sparkline([math.nan, 3.0, 3.0]) == "▁▁"
    assert curves.sparkline([]) == ""
    rising = curves.chart([0, 1], [0, 1], width=4, height=2)
    assert rising == ["⠀⠀⡠⠊", "⡠⠊⠀⠀"]
    assert curves.chart([], [], width=3, height=1) == ["⠀⠀⠀"]


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0"), (980, "980"), (999.9, "1k"), (12_345, "12.3k"), (4.56e6, "4.56M"), (math.nan, "–"), (-250.5, "-250")],
)
def test_numbers_are_written_as_people_say_them(number, said):
    assert curves.compact(number) == said


@pytest.mark.parametrize(("seconds", "said"), [(4.23, "4.2 s"), (185, "3:05"), (7385, "2:03:05"), (math.inf, "–")])
def test_time_spans_are_written_as_people_say_them(seconds, said):
    assert curves.duration(seconds) == said
