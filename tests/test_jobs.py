"""Job scheduling: traces, a machine beside a slow and obvious one, rules by hand, and what is seen and paid."""

import gzip
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import farfield.envs  # noqa: F401 # registers the environment
from farfield.envs.jobs import lublin, rules, scores, swf, trials
from farfield.envs.jobs import trace as traces
from farfield.envs.jobs.cluster import Cluster, window
from farfield.envs.jobs.env import Jobs, open_trace
from farfield.envs.jobs.trace import Trace
from farfield.envs.jobs.views import EMPTY, LEAST, MOST, SLOTS, Crowd
from farfield.errors import ConfigError, CorruptError, MissingError

UNKNOWN = ("memory", "user", "group", "executable")


def trace_of(rows: list[tuple[float, ...]], *, nodes: int = 4, per_node: int = 1, **known: list[float]) -> Trace:
    """Make a trace of (submit, run, processors, and the requested time where it differs)."""
    submit, run, procs = (np.array([row[i] for row in rows], float) for i in range(3))
    requested = np.array([row[3] if len(row) > 3 else -1.0 for row in rows])
    columns: dict[str, Any] = {"submit": submit, "run": run, "procs": procs.astype(int), "requested": requested}
    columns |= {name: np.array(known.get(name, [-1.0] * len(rows))) for name in UNKNOWN}
    columns["number"] = np.arange(1.0, len(rows) + 1)
    return traces.ordered(columns, name="by hand", nodes=nodes, per_node=per_node)


FOUR = trace_of([(0, 100, 4), (10, 50, 2), (20, 10, 1), (30, 5, 4)])


def costs(name: str, *, objective: str = "bounded_slowdown", backfill: bool = False, trace: Trace = FOUR) -> float:
    jobs = window(trace, 0, len(trace))
    return scores.cost(objective, jobs, rules.play(jobs, rules.RULES[name], backfill=backfill))


# --- rules and scores, by hand


def test_first_come_first_served_by_hand() -> None:
    jobs = window(FOUR, 0, 4)
    # 2 and 3 come while the machine waits for job 1, which was chosen when it was alone.
    assert rules.play(jobs, rules.RULES["fcfs"]).tolist() == [0, 100, 100, 150]
    assert costs("fcfs") == pytest.approx((1 + 2.8 + 9 + 12.5) / 4)


def test_a_choice_is_kept_even_if_it_does_not_fit() -> None:
    jobs = window(FOUR, 0, 4)
    # At 100 the shortest is job 3, for which the whole machine must become free, although job 2 would fit at once.
    assert rules.play(jobs, rules.RULES["sjf"]).tolist() == [0, 100, 155, 150]
    assert costs("sjf") == pytest.approx((1 + 2.8 + 14.5 + 12.5) / 4)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("f1", 6.325),  # at 100: 1 · 1 + 870 · log10 20 = 1132.9 before 0.7 · 4 + 870 · log10 30 = 1287.9
        ("wfp3", 7.7),  # (80 / 10)³ · 1 = 512 after (70 / 5)³ · 4 = 10,976
        ("unicep", 6.325),  # a serial job is before all others
    ],
)
def test_the_other_rules_by_hand(name: str, expected: float) -> None:
    assert costs(name) == pytest.approx(expected)


def test_rules_prefer_what_they_are_for() -> None:
    now, submit = 1000.0, np.array([0.0, 500.0, 900.0])
    requested, procs = np.array([100.0, 10.0, 1000.0]), np.array([2, 8, 32])
    first = {name: int(rule.score(now, submit, requested, procs).argmin()) for name, rule in rules.RULES.items()}
    assert first == {"fcfs": 0, "sjf": 1, "f1": 0, "wfp3": 1, "unicep": 1}


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ("wait", (0 + 90 + 80 + 120) / 4),
        ("turnaround", (100 + 140 + 90 + 125) / 4),
        ("slowdown", (1 + 2.8 + 9 + 25) / 4),
        ("utilisation", -(400 + 100 + 10 + 20) / (4 * 155)),
    ],
)
def test_the_other_objectives_by_hand(objective: str, expected: float) -> None:
    assert costs("fcfs", objective=objective) == pytest.approx(expected)


def test_backfilling_starts_what_does_not_delay_the_chosen_job() -> None:
    jobs = window(FOUR, 0, 4)
    # Job 3 is promised the machine at 150; job 2 fits now and is over by then.
    assert rules.play(jobs, rules.RULES["sjf"], backfill=True).tolist() == [0, 100, 100, 150]
    late = trace_of([(0, 100, 4), (10, 50, 2), (20, 10, 1, 60), (30, 5, 4)])  # asks for 60 s: might delay job 3
    assert rules.play(window(late, 0, 4), rules.RULES["sjf"], backfill=True).tolist() == [0, 100, 155, 150]


def test_jobs_take_whole_nodes() -> None:
    shared = trace_of([(0, 10, 1), (1, 10, 5), (2, 10, 8)], nodes=2, per_node=8)
    assert shared.need.tolist() == [1, 1, 1]
    assert rules.play(window(shared, 0, 3), rules.RULES["fcfs"]).tolist() == [0, 1, 10]


# --- the machine beside a slow and obvious one


class Slow:
    """A machine as docs/jobs.md describes it, with lists and no cleverness."""

    def __init__(self, trace: Trace) -> None:
        self.jobs = list(zip(trace.submit, trace.run, trace.need, trace.requested, strict=True))
        self.nodes, self.now = trace.nodes, float(trace.submit[0])
        self.coming, self.queue = list(range(1, len(trace))), [0]
        self.start: dict[int, float] = {}
        self.over: set[int] = set()

    def running(self) -> list[int]:
        return [j for j in self.start if j not in self.over]

    def free(self) -> int:
        return self.nodes - sum(self.jobs[j][2] for j in self.running())

    def happen(self) -> None:
        ends = sorted((self.start[j] + self.jobs[j][1], j) for j in self.running())
        if self.coming and (not ends or self.jobs[self.coming[0]][0] <= ends[0][0]):
            self.now = self.jobs[self.coming[0]][0]
            self.queue.append(self.coming.pop(0))
        else:
            self.now = ends[0][0]
            self.over.add(ends[0][1])

    def promise(self, job: int) -> float:
        """Say when the job could start if everybody ran as long as requested."""
        there = self.free()
        for end, need in sorted((self.start[j] + self.jobs[j][3], self.jobs[j][2]) for j in self.running()):
            there += need
            if there >= self.jobs[job][2]:
                return end
        return self.now

    def begin(self, job: int) -> None:
        self.start[job] = self.now
        self.queue.remove(job)

    def play(self, choose: Callable[[int], int], *, backfill: bool) -> list[float]:
        """Start all jobs; `choose` picks among so many that wait."""
        while len(self.start) < len(self.jobs):
            chosen = self.queue[choose(len(self.queue))]
            promised = self.promise(chosen)
            while self.free() < self.jobs[chosen][2]:
                for j in [j for j in self.queue if backfill and j != chosen]:
                    if self.jobs[j][2] <= self.free() and self.now + self.jobs[j][3] < promised:
                        self.begin(j)
                self.happen()
            self.begin(chosen)
            while not self.queue and self.coming:
                self.happen()
        return [float(self.start[j]) for j in range(len(self.jobs))]


job = st.tuples(st.integers(0, 40), st.integers(1, 60), st.integers(1, 8), st.integers(1, 90))


@given(st.lists(job, min_size=1, max_size=25), st.booleans(), st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_the_machine_agrees_with_the_slow_one(gaps: list[tuple[int, ...]], backfill: bool, seed: int) -> None:
    submit = np.cumsum([row[0] for row in gaps])
    trace = trace_of([(float(s), *map(float, row[1:])) for s, row in zip(submit, gaps, strict=True)], nodes=8)
    first, second = np.random.default_rng(seed), np.random.default_rng(seed)
    cluster = Cluster(window(trace, 0, len(trace)), backfill=backfill)
    while cluster.left:
        cluster.start(int(cluster.waiting[int(first.integers(len(cluster.waiting)))]))
    assert cluster.started == Slow(trace).play(lambda count: int(second.integers(count)), backfill=backfill)
    assert sorted(cluster.order) == list(range(len(trace)))


# --- what is seen


def env_of(trace: Trace, **options: Any) -> Jobs:
    return Jobs(trace, jobs=len(trace), **options)


def test_the_plain_view_is_the_original_one() -> None:
    trace = trace_of([(0, 100, 4), (0, 50, 2), (0, 10, 1)], memory=[-1, 5, 10], user=[1, 2, -1])
    env = env_of(trace)
    obs, _ = env.reset(seed=0)
    assert obs["action_mask"].sum() == 1  # the others come when time passes
    assert obs["jobs"][0] == pytest.approx([0, MOST, MOST, 1, 0.5, 1, 1, MOST])
    obs, *_ = env.step(np.int64(0))
    # Job 0 runs until 100; job 1 came at 0 and, since arrivals are events of their own, job 2 is not seen yet.
    assert obs["jobs"][0] == pytest.approx([0, 0.5, 0.5, 0.5, MOST, 1, 1, LEAST])
    obs, *_ = env.step(np.int64(0))
    assert obs["jobs"][0] == pytest.approx([100 / 43_200, 0.1, 0.25, MOST, 1, 1, 1, MOST])
    assert (obs["jobs"][1:] == EMPTY).all()
    assert obs["action_mask"].tolist() == [1] + [0] * 127


@pytest.mark.parametrize("view", ["plain", "scaled"])
def test_features_stay_within_their_bounds(view: str) -> None:
    env = Jobs(view=view, backfill=True, skip=True)
    rng = np.random.default_rng(0)
    for episode in range(2):
        obs, _ = env.reset(seed=episode)
        over = False
        while not over:
            assert env.observation_space.contains(obs)
            obs, _, over, _, _ = env.step(rng.choice(np.flatnonzero(obs["action_mask"])))
        assert not obs["action_mask"].any()


def test_the_scaled_view_says_how_long_a_job_would_wait() -> None:
    trace = trace_of([(0, 100, 3), (1, 50, 1), (2, 10, 1), (3, 10, 4)])
    env = env_of(trace, view="scaled")
    env.reset(seed=0)
    env.step(np.int64(0))
    obs, *_ = env.step(np.int64(0))  # 0 runs until 100, 1 until 51; it is 2, and only job 2 waits
    row, week = obs["jobs"][0], math.log(604_800)
    assert row[[0, 3, 4, 7]] == pytest.approx([0, 0, math.log1p(49) / week, LEAST], abs=1e-6)
    assert row[[1, 2, 5, 6]] == pytest.approx([math.log(10) / math.log(100), 0, 0, math.log1p(360) / week], abs=1e-6)


def test_a_crowd_is_shown_by_turns_without_repeats() -> None:
    rng = np.random.default_rng(3)
    rows = [(0.0, float(rng.integers(1, 50)), float(rng.integers(1, 5))) for _ in range(200)]
    jobs = window(trace_of(rows), 0, 200)
    queue = np.sort(rng.permutation(200)[:170])
    short = sorted(queue.tolist(), key=lambda j: (jobs.requested[j], j))
    small = sorted(queue.tolist(), key=lambda j: (jobs.need[j], j))
    expected: list[int] = []
    for turn in range(170):
        for order in (short, small, short):  # the third list of the original is the first one again: no difference
            if order[turn] not in expected:
                expected.append(order[turn])
    chosen = Crowd(jobs, ("shortest", "smallest")).choose(queue, SLOTS)
    assert chosen.tolist() == expected[:SLOTS]


def test_a_crowded_queue_is_scheduled_to_its_end() -> None:
    rows = [(0.0, 1000.0, 4.0)] + [(1.0, 10.0 + k % 7, 1.0 + k % 3) for k in range(255)]
    env = env_of(trace_of(rows))
    obs, _ = env.reset(seed=0)
    steps, over, most = 0, False, 0
    while not over:
        most = max(most, len(env.cluster.waiting))
        assert obs["action_mask"].sum() == min(SLOTS, len(env.cluster.waiting))
        obs, _, over, _, _ = env.step(np.int64(0))
        steps += 1
    assert steps == 256
    assert most > SLOTS
    assert sorted(env.cluster.order) == list(range(256))


# --- passing over all jobs


def test_an_empty_slot_passes_to_the_next_event_or_six_minutes_on() -> None:
    env = env_of(trace_of([(0, 10_000, 4), (100, 50, 2), (5000, 10, 1)]))
    env.reset(seed=0)
    env.step(np.int64(0))
    assert env.cluster.now == 100
    for expected in [460 + 360 * k for k in range(13)] + [5000]:
        env.step(np.int64(127))
        assert env.cluster.now == expected
    assert env.cluster.waiting.tolist() == [1, 2]


def test_skipping_is_a_choice_only_while_something_will_happen() -> None:
    env = env_of(trace_of([(0, 10, 4), (0, 50, 2)]), skip=True)
    obs, _ = env.reset(seed=0)
    assert obs["action_mask"][[0, 127]].tolist() == [1, 1]
    assert obs["jobs"][127].tolist() == [1, 1, 1, 1, 1, 1, 1, 0]
    env.step(np.int64(0))
    obs, *_ = env.step(np.int64(127))  # job 0 ends: nobody runs, nobody will come
    assert obs["action_mask"][[0, 127]].tolist() == [1, 0]
    assert (obs["jobs"][127] == 1).all()
    assert env.step(np.int64(0))[2]


# --- rewards


@pytest.mark.parametrize("backfill", [False, True])
@pytest.mark.parametrize("objective", ["bounded_slowdown", "wait", "turnaround", "slowdown"])
def test_however_it_is_paid_an_episode_pays_the_same(objective: str, backfill: bool) -> None:
    totals: list[float] = []
    for paid in ("end", "start", "wait"):
        env, total, over = Jobs(objective=objective, paid=paid, backfill=backfill), 0.0, False
        rng, (obs, _) = np.random.default_rng(5), env.reset(seed=7)
        while not over:
            obs, reward, over, _, info = env.step(rng.choice(np.flatnonzero(obs["action_mask"])))
            total += reward
        assert total == pytest.approx(-info["cost"], rel=1e-9)
        totals.append(total)
    assert totals == pytest.approx([totals[0]] * 3)


def test_utilisation_is_paid_at_the_end_only() -> None:
    env = env_of(FOUR, objective="utilisation")
    env.reset(seed=0)
    paid = [env.step(np.int64(0))[1] for _ in range(4)]
    assert paid == pytest.approx([0, 0, 0, 530 / 620])
    with pytest.raises(ConfigError, match="utilisation is known at the end only"):
        Jobs(objective="utilisation", paid="wait")


def test_rules_are_compared_on_request_only() -> None:
    env = gymnasium.make("farfield/Jobs-v0", crowd=("oldest",))
    _, info = env.reset(seed=3)
    assert set(info) == {"start"}
    env.reset(options={"start": info["start"], "compare": ["sjf", "fcfs"]})
    over = False
    while not over:
        _, reward, over, _, info = env.step(np.int64(0))
    assert info["cost"] == -reward
    assert info["cost"] == pytest.approx(info["compare"]["fcfs"])  # slot 0 is the oldest
    assert info["compare"]["sjf"] < info["compare"]["fcfs"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"objective": "speed"}, "objective"),
        ({"vew": "plain"}, "vew"),
        ({"share": 2.0}, "share"),
        ({"trace_jobs": 300, "part": "held_out"}, "use a longer trace"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Jobs(**options)


def test_what_is_held_out_is_never_trained_on() -> None:
    trace = open_trace("lublin")
    train, held = traces.starts(trace, "train"), traces.starts(trace, "held_out")
    assert (train[0], train[-1] + 256) == (256, 5000)
    assert (held[0], held[-1] + 256) == (5000, 10_000)
    chosen = traces.apart(held, 19)
    assert len(chosen) == 19
    assert min(np.diff(chosen)) >= 256


# --- the model and magnitudes


def test_equal_seeds_draw_equal_traces() -> None:
    one, same, other = (lublin.generate(2000, seed=seed) for seed in (4, 4, 5))
    for name in ("submit", "run", "procs"):
        assert (getattr(one, name) == getattr(same, name)).all()
        assert (getattr(one, name) != getattr(other, name)).any()


def test_drawn_traces_have_the_statistics_of_lublin_256() -> None:
    """Hold each published value within 3 deviations of it among our own traces: it is one trace of that length, too."""
    found: dict[str, list[float]] = {}
    for seed in range(12):
        trace = lublin.generate(10_000, seed=seed)
        gaps = np.diff(trace.submit)
        for name, value in {
            "gap": gaps.mean(), "gap median": np.median(gaps), "procs": trace.procs.mean(), "load": trace.load,
            "run": trace.run.mean(), "run median": np.median(trace.run), "serial": (trace.procs == 1).mean(),
        }.items():  # fmt: skip
            found.setdefault(name, []).append(float(value))
        assert trace.procs.max() <= 256
        assert trace.run.max() <= math.exp(12)
    lublin_256 = {
        "gap": 771,
        "gap median": 116,
        "run": 4863,
        "run median": 137,
        "procs": 22.1,
        "serial": 0.249,
        "load": 1.06,
    }
    for name, value in lublin_256.items():
        deviation = np.std(found[name], ddof=1)
        assert abs(np.mean(found[name]) - value) < 3 * deviation, name
        assert deviation < 0.08 * value, f"{name} varies so much that the test says nothing"


def test_arrivals_follow_the_day() -> None:
    hours = np.concatenate([lublin.generate(10_000, seed=seed).submit % 86_400 // 3600 for seed in range(4)])
    counts = np.bincount(hours.astype(int), minlength=24) / len(hours)
    assert counts[10:17].sum() > 0.45
    assert counts[0:6].sum() < 0.12
    assert counts.argmax() in range(11, 16)


def test_large_jobs_run_longer() -> None:
    trace = lublin.generate(10_000, seed=0)
    assert np.median(trace.run[trace.procs > 64]) > 3 * np.median(trace.run[trace.procs <= 4])


@pytest.mark.slow
def test_rules_and_chance_cost_what_others_measured() -> None:
    """On lublin_256: SJF 339-391, F1 329-358, chance about 2,000-2,200; other traces of the model are like it."""
    found: dict[str, list[float]] = {name: [] for name in (*rules.RULES, "chance")}
    for seed in range(3):
        env = Jobs(trace_seed=seed)
        windows = traces.apart(env.starts, 20)
        for name, values in trials.compare(env, windows).items():
            found[name] += values.tolist()
        found["chance"] += trials.play(env, trials.at_random(0), windows[::4]).tolist()
    mean = {name: float(np.mean(values)) for name, values in found.items()}
    assert 230 < mean["f1"] < mean["sjf"] < 500
    assert 1300 < mean["chance"] < 2900
    assert mean["fcfs"] > 4 * mean["sjf"]
    assert max(mean["wfp3"], mean["unicep"]) < 600


# --- files

SWF = """\
; Version: 2.2
; Computer: Somewhere's cluster
; MaxNodes: 4 (of them 1 large)
; MaxProcs: 16
; MaxProcs: 99
   2  20 -1  30  5 -1 -1  4   60 -1 1 7 1 3 -1 -1 -1 -1
   1  10 -1 100 -1 -1 -1 16  120 2048 1 5 1 2 -1 -1 -1 -1
   3  20 -1  -1  2 -1 -1 -1   -1 -1 0 5 1 2 -1 -1 -1 -1
   4  30 -1   0  2 -1 -1  2   -1 -1 5 5 1 2 -1 -1 -1 -1

   5  40 -1   9 17 -1 -1 17   -1 -1 1 5 1 2 -1 -1 -1 -1
"""


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_of_the_archive_is_read(packed: bool, tmp_path: Path) -> None:
    path = tmp_path / ("some.swf.gz" if packed else "some.swf")
    path.write_bytes(gzip.compress(SWF.encode()) if packed else SWF.encode())
    trace = swf.read(path)
    assert trace.header["Computer"] == "Somewhere's cluster"
    assert (trace.nodes, trace.per_node, trace.processors, trace.left_out) == (4, 4, 16, 2)
    assert trace.number.tolist() == [1, 2, 3]
    assert trace.procs.tolist() == [16, 5, 2]  # the larger of allocated and requested
    assert trace.need.tolist() == [4, 2, 1]
    assert trace.run.tolist() == [100, 30, 10]  # not known: 10
    assert trace.requested.tolist() == [120, 60, 10]  # not known: the run time
    assert trace.memory.tolist() == [2048, -1, -1]


@pytest.mark.parametrize("name", ["drawn.swf", "drawn.swf.gz"])
def test_a_trace_comes_back_as_it_was_written(name: str, tmp_path: Path) -> None:
    trace = lublin.generate(300, seed=9)
    swf.write(trace, tmp_path / name)
    read = swf.read(tmp_path / name)
    for column in ("number", "submit", "run", "procs", "requested", *UNKNOWN):
        assert (getattr(read, column) == getattr(trace, column)).all(), column
    assert (read.nodes, read.per_node) == (256, 1)
    assert "Lublin" in read.header["Note"]


@pytest.mark.parametrize(
    ("header", "machine"),
    [
        ("", (4, 1)),
        ("; MaxProcs: 8\n", (8, 1)),
        ("; MaxNodes: 4\n; MaxProcs: 0\n", (4, 1)),
        ("; MaxNodes: 8\n", (8, 1)),
    ],
)
def test_a_machine_that_is_not_told_is_as_large_as_its_largest_job(
    header: str, machine: tuple[int, int], tmp_path: Path
) -> None:
    (tmp_path / "a.swf").write_text(f"{header}1 0 -1 5 4 -1 -1 4 -1 -1 1 1 1 1 -1 -1 -1 -1\n")
    trace = swf.read(tmp_path / "a.swf")
    assert (trace.nodes, trace.per_node) == machine


@pytest.mark.parametrize("text", ["", "; MaxNodes: 4\n", "1 2 3\n", "1 0 -1 five 4 -1 -1 4 -1 -1 1 1 1 1\n"])
def test_what_is_no_trace_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad.swf").write_text(text)
    with pytest.raises(CorruptError, match=r"bad\.swf"):
        swf.read(tmp_path / "bad.swf")


def test_torn_gzip_and_missing_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "torn.swf.gz").write_bytes(gzip.compress(SWF.encode())[:-20])
    with pytest.raises(CorruptError, match="torn"):
        swf.read(tmp_path / "torn.swf.gz")
    with pytest.raises(MissingError, match="Parallel Workloads Archive"):
        Jobs(str(tmp_path / "none.swf"))


def test_the_environment_takes_a_file(tmp_path: Path) -> None:
    swf.write(lublin.generate(600, seed=9), tmp_path / "t.swf")
    made = gymnasium.make("farfield/Jobs-v0", trace=str(tmp_path / "t.swf"), view="scaled", paid="wait")
    assert made.reset(seed=1)[0]["jobs"].shape == (128, 8)
