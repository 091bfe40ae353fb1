"""Replay: every sampled window is what was put, in order; and a restored feed goes on as if nothing had happened."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farfield.errors import ConfigError, SpecError
from farfield.learning import replay
from farfield.learning.sumtree import SumTree
from farfield.types import Columns, Fragment
from producers import SPEC, Producer, seen


def check(batch: Columns, producers: list[Producer], steps: int) -> None:
    """Compare every window with the chain that it must be a part of."""
    places = {
        row.reward: (chain, at)
        for producer in producers
        for chain in producer.chains
        for at, row in enumerate(chain)
        if row.valid
    }
    ends = {id(chain): producer.obs[lane] for producer in producers for lane, chain in enumerate(producer.open)}
    for lane in range(batch["reward"].shape[1]):
        assert batch["valid"][0, lane]
        chain, start = places[float(batch["reward"][0, lane])]
        window = chain[start : start + steps]
        for t, row in enumerate(window):
            for name in ("reward", "action", "terminated", "truncated", "valid", "first"):
                assert batch[name][t, lane] == getattr(row, name), name
            after = chain[start + t + 1].obs if start + t + 1 < len(chain) else ends.get(id(chain))
            for shift, number in ((0, row.obs), (1, after)):
                if number is not None:
                    for name, value in seen(np.array(number)).items():
                        assert np.array_equal(batch[name][t + shift, lane], value)
            assert batch["log_prob"][t, lane] in (-row.reward, 0)  # 0 where somebody else decided
        assert not batch["valid"][len(window) :, lane].any()
        assert not batch["terminated"][len(window) :, lane].any()


def feed_of(folder: Path, *, steps: int = 3, lanes: int = 8, seed: int = 5, **options: object) -> replay.ReplayFeed:
    defaults: dict[str, object] = {"capacity": 60, "warmup": 0, "ratio": 100.0, "segment_bytes": 3000}
    config = replay.Config(**(defaults | options))  # type: ignore[arg-type]
    return replay.make(config, spec=SPEC, steps=steps, lanes=lanes, folder=folder, seed=seed)


plans = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6), st.booleans()), min_size=1, max_size=25)


@settings(max_examples=60, deadline=None)
@given(plan=plans, steps=st.integers(1, 9), at_once=st.booleans(), prioritised=st.booleans())
def test_every_window_is_what_was_put(
    plan: list[tuple[int, int, bool]], steps: int, at_once: bool, prioritised: bool
) -> None:
    producers = [Producer(number, number + 1, at_once=at_once) for number in range(3)]
    with TemporaryDirectory() as folder:
        feed = feed_of(Path(folder), steps=steps, prioritised=prioritised)
        for number, length, gap in plan:
            feed.put(producers[number].fragment(length, gap=gap))
            batch = feed.take(7)
            if batch is not None:
                check(batch.columns, producers, steps)
                feed.learned(np.arange(8.0))


@settings(max_examples=30, deadline=None)
@given(plan=plans, at_once=st.booleans(), memory=st.booleans(), others=st.integers(0, 3))
def test_a_restored_feed_continues_bit_for_bit(
    plan: list[tuple[int, int, bool]], at_once: bool, memory: bool, others: int
) -> None:
    producers = [Producer(number, number + 1, at_once=at_once, memory=memory) for number in range(3)]
    fragments = [
        producers[number].fragment(length, gap=gap, source="person" if at % 4 < others else "")
        for at, (number, length, gap) in enumerate(plan)
    ]
    cut = len(fragments) // 2
    with TemporaryDirectory() as folder:
        whole = feed_of(Path(folder, "a"), prioritised=True, ratio=5.0, warmup=10)
        state = None
        expected = []
        for number, fragment in enumerate(fragments):
            if number == cut:
                whole.sync()
                state = {name: value.copy() for name, value in whole.state().items()}
            expected.append(turn(whole, fragment))
        assert state is not None
        shutil.copytree(Path(folder, "a"), Path(folder, "b"))
        with max(Path(folder, "b").iterdir()).open("ab") as torn:
            torn.write(b"half a record")
        again = feed_of(Path(folder, "b"), prioritised=True, ratio=5.0, warmup=10)
        again.restore(state)
        same(again.state(), state)
        for fragment, before in zip(fragments[cut:], expected[cut:], strict=True):
            found = turn(again, fragment)
            assert [batch.names for batch in found] == [batch.names for batch in before]
            for one, other in zip(found, before, strict=True):
                same(one.columns, other.columns)
                assert one[1:] == other[1:]
        same(again.state(), whole.state())


@settings(max_examples=60, deadline=None)
@given(plan=plans, steps=st.integers(1, 9), others=st.integers(0, 4))
def test_apps_and_whoever_decides_in_them_are_replayed_as_they_were(
    plan: list[tuple[int, int, bool]], steps: int, others: int
) -> None:
    producers = [Producer(number, number + 1, live=True) for number in range(3)]
    with TemporaryDirectory() as folder:
        feed = feed_of(Path(folder), steps=steps)
        for at, (number, length, gap) in enumerate(plan):
            feed.put(producers[number].fragment(length, gap=gap, source="heuristic" if at % 4 < others else ""))
            batch = feed.take(7)
            if batch is not None:
                check(batch.columns, producers, steps)


def test_where_memory_is_not_known_no_window_begins(tmp_path: Path) -> None:
    app = Producer(1, 1, live=True, memory=True)
    app.rng = np.random.default_rng(4)
    feed = feed_of(tmp_path, steps=2, lanes=64)
    person = app.fragment(12, source="person")
    feed.put(person)
    first = feed.take(7)
    assert first is not None
    assert len(set(first.columns["reward"][0].tolist())) > 6, "nobody knows yet that there is memory"
    feed.put(app.fragment(12))
    feed.put(app.fragment(12, source="person"))
    begun = set()
    for _ in range(20):
        batch = feed.take(7)
        assert batch is not None
        begun |= set(zip(batch.columns["first"][0].tolist(), batch.columns["reward"][0].tolist(), strict=True))
    inside = [reward for first, reward in begun if not first]
    assert len(inside) <= 1, "the first row of the policy's fragment is the only one inside of an episode"
    assert len(begun) > 3


def turn(feed: replay.ReplayFeed, fragment: Fragment) -> list[replay.Batch]:
    """Put a fragment, take what there is, and give back priorities that depend on it."""
    feed.put(fragment)
    batches = []
    while (batch := feed.take(9)) is not None:
        batches.append(batch)
        feed.learned(batch.columns["reward"][0] % 7)
    return batches


def same(one: Columns, other: Columns) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype, name
        assert np.array_equal(one[name], other[name]), name


def test_old_checkpoints_can_be_restored_although_the_log_forgets(tmp_path: Path) -> None:
    producer = Producer(1, 2, at_once=False)
    feed = feed_of(tmp_path / "a", checkpoints=2)
    states, rows, files = [], [], []
    for _ in range(12):
        for _ in range(5):
            feed.put(producer.fragment(5))
        while feed.take(0) is not None:
            pass
        feed.sync()
        states.append(feed.state())
        files.append(len(list((tmp_path / "a").iterdir())))
    assert max(files[6:]) <= files[4] + 1, "the log does not grow for ever"
    for back in (1, 2, 3):
        shutil.copytree(tmp_path / "a", tmp_path / str(back))
        again = feed_of(tmp_path / str(back), checkpoints=2)
        again.restore(states[-back])
        same(again.state(), states[-back])
        rows.append(again.state()["rows"][1])
    assert rows[0] > rows[1] > rows[2]


def test_restoring_before_anything_was_put_begins_anew(tmp_path: Path) -> None:
    state = feed_of(tmp_path).state()
    feed_of(tmp_path).put(Producer(3, 2, at_once=False).fragment(4))
    again = feed_of(tmp_path)
    again.restore(state)
    assert again.take(0) is None
    again.put(Producer(4, 2, at_once=False).fragment(4))
    named: list[str] = []
    while (batch := again.take(0)) is not None:
        named += [stream for _, stream, _ in batch.names]
    assert named == [f"{4:032x}"]


def test_another_capacity_is_refused_at_restore(tmp_path: Path) -> None:
    feed = feed_of(tmp_path)
    producer = Producer(1, 3, at_once=False)
    for _ in range(20):
        feed.put(producer.fragment(6))
    other = feed_of(tmp_path, capacity=35)
    with pytest.raises(ConfigError, match="capacity"):
        other.restore(feed.state())


def test_the_ratio_says_how_much_is_sampled(tmp_path: Path) -> None:
    feed = feed_of(tmp_path, capacity=5000, warmup=100, ratio=4.0)
    producer = Producer(1, 4, at_once=True)
    sampled, before = 0, []
    for _ in range(40):
        feed.put(producer.fragment(5))  # 20 steps, all valid since resets are done at once
        while feed.take(0) is not None:
            sampled += 8
        before.append(sampled)
    assert before[4] == 0
    assert before[5] == 80
    assert sampled == 4 * (800 - 100)


def test_fragments_are_named_once_and_by_the_batch_that_pays_for_them(tmp_path: Path) -> None:
    feed = feed_of(tmp_path, warmup=30, ratio=4.0)
    producer = Producer(1, 2, at_once=False)
    put: list[Fragment] = []
    named: list[tuple[str, str, int]] = []
    steps = sampled = 0
    for _ in range(30):
        fragment = producer.fragment(4)
        feed.put(fragment)
        put.append(fragment)
        assert feed.settled == [], "an actor waits for a fragment that nothing was learned for"
        while (batch := feed.take(0)) is not None:
            named += batch.names
            steps += batch.steps
            sampled += feed.lanes
            assert batch.columns["new_steps"].tolist() == [batch.steps]
            assert (batch.lag, batch.lag_max) == (0.0, 0)
            covered = [fragment for fragment in put if fragment.name in named]
            assert steps == sum(int(fragment.columns["valid"].sum()) for fragment in covered)
            assert not batch.names or sampled + feed.lanes > 4.0 * (steps - 30), "named before it was paid"
        assert set(feed.settled) <= {fragment.name for fragment in put}
        assert not set(feed.settled) & set(named)
        feed.settled.clear()
    assert named == [fragment.name for fragment in put][: len(named)]
    assert len(named) > 20


def test_sums_cover_every_new_row_once(tmp_path: Path) -> None:
    feed = feed_of(tmp_path, ratio=1.0, capacity=1000)
    producer = Producer(1, 2, at_once=False)
    total, square, expected = np.zeros(2), np.zeros(2), []
    for number in range(30):
        fragment = producer.fragment(4)
        feed.put(fragment, fresh=number % 3 > 0)
        if number % 3:
            expected.append(fragment.columns["obs/number"][:-1][fragment.columns["valid"]].astype(np.float64))
        while (batch := feed.take(0)) is not None:
            total += batch.columns["fresh/obs/number/sum"]
            square += batch.columns["fresh/obs/number/square"]
            seen_rows = np.concatenate(expected)
            assert batch.columns["new_steps"][0] <= len(seen_rows)
            assert np.allclose(total, seen_rows.sum(0))
            assert np.allclose(square, (seen_rows**2).sum(0))
            assert "fresh/obs/picture/sum" not in batch.columns
    assert total[0] > 0


def test_high_priorities_come_more_often_and_weigh_less(tmp_path: Path) -> None:
    feed = feed_of(tmp_path, lanes=64, prioritised=True, alpha=1.0, beta=1.0, steps=1)
    feed.put(Producer(1, 1, at_once=True).fragment(30))
    first = feed.take(0)
    assert first is not None
    assert np.allclose(first.columns["weight"], 1)
    chosen = first.columns["index"][0]
    feed.learned(np.where(first.columns["index"] == chosen, 10.0, 1.0))
    heavy = []
    for _ in range(30):
        batch = feed.take(0)
        assert batch is not None
        heavy.append(batch.columns["index"] == chosen)
        assert np.allclose(batch.columns["weight"], np.where(heavy[-1], 0.1, 1.0), atol=1e-4)
        feed.learned(np.where(heavy[-1], 10.0, 1.0))
    assert 0.22 < np.mean(heavy) < 0.30  # 10 of 39


def test_priorities_of_overwritten_rows_are_ignored(tmp_path: Path) -> None:
    feed = feed_of(tmp_path, prioritised=True, steps=1)
    producer = Producer(1, 4, at_once=True)
    feed.put(producer.fragment(6))
    assert feed.take(0) is not None
    for _ in range(4):
        feed.put(producer.fragment(6))
    feed.learned(np.full(8, 1e9))
    slots = np.arange(60)
    assert feed._tree.values(slots).max() == 1.0


def test_windows_begin_where_memory_is_known(tmp_path: Path) -> None:
    feed = feed_of(tmp_path, capacity=300, lanes=32, steps=6)
    producer = Producer(1, 3, at_once=False, memory=True)
    known: dict[float, float] = {}
    for _ in range(15):
        fragment = producer.fragment(5)
        for t, lane in np.argwhere(fragment.columns["first"] | (np.arange(5) == 0)[:, None]):
            known[float(fragment.columns["reward"][t, lane])] = (
                float(fragment.columns["memory/core"][lane, 1]) if t == 0 else 0.0
            )
        feed.put(fragment)
        batch = feed.take(7)
        if batch is not None:
            check(batch.columns, [producer], 6)
            for reward, memory in zip(batch.columns["reward"][0], batch.columns["memory/core"][:, 1], strict=True):
                assert known[float(reward)] == memory


def test_what_does_not_fit_is_refused_with_its_cure(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="warmup = 100"):
        feed_of(tmp_path, warmup=100)
    feed = feed_of(tmp_path)
    with pytest.raises(ConfigError, match="capacity is 60; raise it"):
        feed.put(Producer(1, 3, at_once=False).fragment(30))
    columns = Producer(1, 3, at_once=False).fragment(3).columns
    wrong = columns | {"obs/number": columns["obs/number"][..., :1]}
    fragment = Fragment(run="r", stream="0" * 32, seq=0, version=0, attempt=0, spec="0" * 64, columns=wrong)
    with pytest.raises(SpecError, match=r"obs/number.*expected with shape"):
        feed.put(fragment)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.lists(st.floats(0, 0.999999), min_size=1, max_size=20))
def test_a_sum_tree_finds_what_a_cumulative_sum_finds(values: list[float], places: list[float]) -> None:
    tree = SumTree(len(values))
    tree.put(np.arange(len(values)), np.asarray(values))
    assert np.isclose(tree.total, sum(values))
    if tree.total > 0:
        found = tree.find(np.asarray(places) * tree.total)
        assert all(values[slot] > 0 for slot in found)
        whole = SumTree(len(values))
        whole.put(np.arange(len(values)), np.round(values))
        if whole.total > 0:
            targets = np.asarray(places) * whole.total
            assert (
                whole.find(targets).tolist() == np.searchsorted(np.cumsum(np.round(values)), targets, "right").tolist()
            )
