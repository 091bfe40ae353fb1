"""Feeds: any fragments in, one static shape out; nothing lost, nothing twice, ends where they were."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

import producers
from farfield.errors import SpecError
from farfield.learning.feeds import AHEAD, Batch, FreshFeed, Marks
from farfield.types import Columns, Field, Fragment, Kind, Spec
from producers import Producer

SPEC = Spec(
    observations=(Field("obs", Kind.BOX, "float32", (1,)),),
    actions=(Field("action", Kind.DISCRETE, "int64", (), (2,)),),
)


def fragment(
    seq: int, T: int, N: int, *, version: int = 0, finals: tuple[tuple[int, int], ...] = (), end: str = "truncated",
    stream: str = "s",
) -> Fragment:  # fmt: skip
    """A fragment in which every observation and reward tells where it comes from; `finals` are resets at once."""
    t, lane = np.meshgrid(np.arange(T + 1), np.arange(N), indexing="ij")
    obs = (seq * 10_000 + lane * 1_000 + t).astype(np.float32)
    columns = {
        "obs": obs[..., None],
        "action": np.zeros((T, N), np.int64),
        "reward": obs[:T] + 0.5,
        "terminated": np.zeros((T, N), bool),
        "truncated": np.zeros((T, N), bool),
        "valid": np.ones((T, N), bool),
        "first": np.zeros((T, N), bool),
        "log_prob": np.zeros((T, N), np.float32),
        "episode/return": np.zeros(0, np.float32),
        "episode/length": np.zeros(0, np.int32),
    }
    for at, ended in finals:
        columns[end][at, ended] = True
        if at + 1 < T:
            columns["first"][at + 1, ended] = True
    if finals:
        columns["final/index"] = np.asarray(finals, np.int32)
        columns["final/obs"] = np.asarray([[-1.0 - k] for k in range(len(finals))], np.float32)
    return Fragment(run="r", stream=stream, seq=seq, version=version, attempt=1, spec="", columns=columns)


def test_a_fragment_of_the_batch_shape_is_used_without_a_copy() -> None:
    feed = FreshFeed(SPEC, steps=4, lanes=2, max_lag=9)
    given_ = fragment(0, 4, 2)
    feed.put(given_)
    batch = feed.take(0)
    assert batch is not None
    assert batch.columns["obs"] is given_.columns["obs"]
    assert batch.steps == 8
    assert batch.names == (("r", "s", 0),)


def test_fragments_of_several_actors_fill_a_batch_side_by_side() -> None:
    feed = FreshFeed(SPEC, steps=4, lanes=4, max_lag=9)
    feed.put(fragment(0, 4, 2))
    assert feed.take(0) is None
    feed.put(fragment(1, 4, 2))
    batch = feed.take(0)
    assert batch is not None
    assert batch.columns["obs"].shape == (5, 4, 1)
    assert batch.columns["obs"][0, :, 0].tolist() == [0, 1_000, 10_000, 11_000]


def test_what_is_too_old_is_counted_and_settled() -> None:
    feed = FreshFeed(SPEC, steps=4, lanes=2, max_lag=3)
    feed.put(fragment(0, 4, 2, version=1))
    feed.put(fragment(1, 4, 2, version=5))
    batch = feed.take(6)
    assert batch is not None
    assert batch.names == (("r", "s", 1),)
    assert (batch.lag, batch.lag_max, feed.dropped) == (1, 1, 1)
    assert feed.settled == [("r", "s", 0)]


def test_after_a_truncation_and_a_reset_at_once_the_last_observation_follows_its_step() -> None:
    feed = FreshFeed(SPEC, steps=4, lanes=2, max_lag=9)
    feed.put(fragment(0, 4, 2, finals=((1, 0), (3, 1))))
    batch = feed.take(0)
    assert batch is not None
    obs, columns = batch.columns["obs"][..., 0], batch.columns
    assert (obs[2, 0], obs[4, 1]) == (-1.0, -2.0)
    assert columns["valid"].T.tolist() == [[True, True, False, True], [True] * 4]
    assert columns["first"].T.tolist() == [[False, False, False, True], [False] * 4]
    assert batch.steps == 7


def test_after_a_termination_and_a_reset_at_once_no_step_is_lost() -> None:
    feed = FreshFeed(SPEC, steps=4, lanes=2, max_lag=9)
    feed.put(fragment(0, 4, 2, finals=((1, 0),), end="terminated"))
    batch = feed.take(0)
    assert batch is not None
    assert batch.steps == 8
    assert batch.columns["first"][2, 0]


def test_a_fragment_that_can_never_fit_is_refused() -> None:
    feed = FreshFeed(SPEC, steps=4, lanes=2, max_lag=9)
    with pytest.raises(SpecError, match=r"raise feed\.fragments"):
        feed.put(fragment(0, 4, 3))


def test_what_waits_is_part_of_the_state() -> None:
    feed, other = (FreshFeed(SPEC, steps=4, lanes=4, max_lag=9) for _ in range(2))
    stream = "0" * 32
    one, two = (
        Fragment(run="r", stream=stream, seq=k, version=0, attempt=1, spec="0" * 64, columns=fragment(k, 4, 2).columns)
        for k in range(2)
    )
    feed.put(one)
    other.restore(feed.state())
    other.put(two)
    batch = other.take(0)
    assert batch is not None
    assert batch.names == (("r", stream, 0), ("r", stream, 1))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 6), st.integers(1, 3), st.integers(-1, 5), st.sampled_from(("truncated", "terminated"))
        ),
        min_size=1,
        max_size=12,
    )
)
def test_every_row_of_any_fragments_is_used_exactly_once(shapes: list[tuple[int, int, int, str]]) -> None:
    """Each lane 0 may end at any row and be reset at once; the row after a truncation is the one that is lost."""
    feed = FreshFeed(SPEC, steps=6, lanes=5, max_lag=9)
    expected: dict[float, float | None] = {}  # reward of a step -> the observation after it, where it matters
    for seq, (T, N, at, end) in enumerate(shapes):
        given_ = fragment(seq, T, N, finals=((at, 0),) if 0 <= at < T else (), end=end, stream=f"{seq}")
        feed.put(given_)
        obs, reward = given_.columns["obs"][..., 0], given_.columns["reward"]
        mine: dict[float, float | None] = {
            float(reward[t, i]): float(obs[t + 1, i]) for t in range(T) for i in range(N)
        }
        if 0 <= at < T:
            mine[float(reward[at, 0])] = -1.0 if end == "truncated" else None
            if end == "truncated" and at + 1 < T:
                del mine[float(reward[at + 1, 0])]
        expected |= mine
    found: dict[float, float] = {}
    names: list[int] = []
    while (batch := feed.take(0)) is not None:
        columns = batch.columns
        assert columns["obs"].shape == (7, 5, 1)
        assert columns["reward"].shape == (6, 5)
        for t, slot in zip(*np.nonzero(columns["valid"]), strict=True):
            reward = float(columns["reward"][t, slot])
            assert reward not in found
            found[reward] = float(columns["obs"][t + 1, slot, 0])
        names += [seq for *_, seq in batch.names]
    assert len(set(names)) == len(names)
    used = {reward: after for reward, after in expected.items() if int(reward // 10_000) in names}
    assert found.keys() == used.keys()
    assert all(after in (None, found[reward]) for reward, after in used.items())


def check(columns: Columns, streams: list[Producer], seen: set[float]) -> None:
    """Every step of a batch is one that was sent, for the first time, and so is what follows it."""
    rows = {
        row.reward: (chain, at)
        for producer in streams
        for chain in producer.chains
        for at, row in enumerate(chain)
        if row.valid
    }
    ends = {id(chain): producer.obs[lane] for producer in streams for lane, chain in enumerate(producer.open)}
    for t, slot in zip(*np.nonzero(columns["valid"]), strict=True):
        reward = float(columns["reward"][t, slot])
        assert reward not in seen
        seen.add(reward)
        chain, at = rows[reward]
        row, log_prob = chain[at], columns["log_prob"][t, slot]
        # After a truncation and a reset at once the episode's first row is lost, and the second one is its first.
        moved = at > 1 and chain[at - 1].first and not chain[at - 2].valid and not chain[at - 2].first
        for name in ("action", "terminated", "truncated", *(() if moved else ("first",))):
            assert columns[name][t, slot] == getattr(row, name), name
        assert log_prob == -row.reward
        after = chain[at + 1].obs if at + 1 < len(chain) else ends.get(id(chain))
        assert columns["obs/number"][t, slot, 0] == row.obs
        if not row.terminated and after is not None:
            assert columns["obs/number"][t + 1, slot, 0] == after
        if not (row.terminated or row.truncated) and t + 1 < len(columns["valid"]) and columns["valid"][t + 1, slot]:
            assert columns["reward"][t + 1, slot] == chain[at + 1].reward


def drained(feed: FreshFeed) -> list[Batch]:
    batches = []
    while (batch := feed.take(7)) is not None:
        batches.append(batch)
    return batches


@settings(max_examples=150, deadline=None)
@given(
    plan=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.booleans()), min_size=1, max_size=40),
    steps=st.integers(1, 8),
    kind=st.sampled_from(["live", "at once", "next step"]),
    memory=st.booleans(),
)
def test_streams_go_on_across_fragments_and_batches(
    plan: list[tuple[int, int, bool]], steps: int, kind: str, memory: bool
) -> None:
    options = {"at_once": kind == "at once", "live": kind == "live", "memory": memory}
    streams = [Producer(number, 1 + number // 3, **options) for number in range(4)]
    feed = FreshFeed(producers.SPEC, steps=steps, lanes=4, max_lag=9)
    seen: set[float] = set()
    sent: dict[tuple[str, str, int], Fragment] = {}
    named = []
    for number, length, gap in plan:
        fragment_ = streams[number].fragment(min(length, 2 * steps), gap=gap)
        sent[fragment_.name] = fragment_
        feed.put(fragment_)
        for batch in drained(feed):
            assert batch.columns["reward"].shape == (steps, 4)
            assert batch.columns["obs/number"].shape == (steps + 1, 4, 2)
            check(batch.columns, streams, seen)
            assert batch.steps == batch.columns["valid"].sum()
            named += batch.names
            if memory:
                check_memory(batch, sent)
    assert len(set(named)) == len(named)
    if kind != "at once":
        assert len(seen) == sum(int(sent[name].columns["valid"].sum()) for name in named)


def check_memory(batch: Batch, sent: dict[tuple[str, str, int], Fragment]) -> None:
    """What is in the middle of an episode at a batch's first row has the memory that its fragment brought."""
    brought = {float(sent[n].columns["reward"][0, lane]): sent[n].columns["memory/core"][lane]
               for n in batch.names for lane in range(sent[n].columns["reward"].shape[1])}  # fmt: skip
    for slot, reward in enumerate(batch.columns["reward"][0]):
        if batch.columns["valid"][0, slot] and float(reward) in brought:
            assert np.array_equal(batch.columns["memory/core"][slot], brought[float(reward)])
    gaps = batch.columns["valid"][1:] & ~batch.columns["valid"][:-1] & ~batch.columns["first"][1:]
    for t, slot in zip(*np.nonzero(gaps), strict=True):
        assert float(batch.columns["reward"][t + 1, slot]) not in brought, "its memory is lost"


@pytest.mark.parametrize("streams", [1, 8, 32])
@pytest.mark.parametrize("longest", [128, 32])
def test_ragged_fragments_fill_batches(streams: int, longest: int) -> None:
    """Flushes of any length, with ends of episodes in them, leave little of a batch empty and nobody waiting long."""
    apps = [Producer(number, 1, live=True) for number in range(streams)]
    for app in apps:
        app.rng = Rarely(app.rng)
    feed = FreshFeed(producers.SPEC, steps=128, lanes=8, max_lag=9)
    rng = np.random.default_rng(5)
    came, used, shares, sent = {}, [], [], 0
    for number in range(600):
        fragment_ = apps[int(rng.integers(streams))].fragment(int(rng.integers(1, longest + 1)))
        came[fragment_.name] = number
        sent += int(fragment_.columns["valid"].sum())
        feed.put(fragment_)
        for batch in drained(feed):
            used += [number - came[name] for name in batch.names]
            shares.append(batch.steps / (128 * 8))
    assert np.mean(shares) >= 0.94
    assert max(used) <= 128 * 8 // (longest // 2) * 3 + AHEAD
    assert sent - sum(shares) * 128 * 8 <= 1.3 * 128 * 8  # what waits for its batch


class Rarely:
    """Ends of episodes for a producer: about one in 200 rows."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def choice(self, options: list[int]) -> int:
        return int(self._rng.choice(options[2:])) if self._rng.random() < 0.01 else 0

    def integers(self, below: int) -> int:
        return int(self._rng.integers(below))


def test_fragments_of_whole_length_with_ends_in_them_lose_nothing() -> None:
    app = Producer(1, 1, live=True)
    feed = FreshFeed(producers.SPEC, steps=16, lanes=4, max_lag=9)
    sent = 0
    used = []
    for _ in range(40):
        fragment_ = app.fragment(16)
        sent += int(fragment_.columns["valid"].sum())
        feed.put(fragment_)
        used += drained(feed)
    assert sum(batch.steps for batch in used) == sent
    assert len(used) == 10


def test_what_somebody_else_decided_is_settled_and_never_learned_from() -> None:
    app = Producer(1, 1, live=True)
    feed = FreshFeed(producers.SPEC, steps=4, lanes=2, max_lag=9)
    others = [app.fragment(4, source=source) for source in ("person", "fallback")]
    for fragment_ in others:
        feed.put(fragment_)
    assert feed.settled == [fragment_.name for fragment_ in others]
    assert (feed.off_policy, feed.dropped) == (2, 0)
    mine = [app.fragment(4), app.fragment(4)]
    for fragment_ in mine:
        feed.put(fragment_)
    (batch,) = drained(feed)
    assert batch.names == tuple(fragment_.name for fragment_ in mine)
    again = FreshFeed(producers.SPEC, steps=4, lanes=2, max_lag=9)
    again.restore(feed.state())
    assert again.off_policy == 2


def test_versions_inside_of_a_packed_fragment_count_for_its_lag() -> None:
    app = Producer(1, 1, live=True)
    feed = FreshFeed(producers.SPEC, steps=4, lanes=1, max_lag=9)
    three = app.fragment(3)
    three.columns["version"] = np.array([3, 4, 7], np.int64)
    feed.put(structs.replace(three, version=3))
    feed.put(app.fragment(4))
    (batch, *_) = drained(feed)
    assert (batch.lag, batch.lag_max) == (pytest.approx(7 / 3), 4)
    assert "version" not in batch.columns


def test_marks_know_what_was_seen_whatever_the_order() -> None:
    marks = Marks()
    assert [marks.add("s", seq) for seq in (0, 2, 0, 1, 2, 3)] == [True, True, False, True, False, True]
    assert marks.facts() == {"below": {"s": 4}, "above": {"s": []}}
    again = Marks(**marks.facts())
    assert not again.add("s", 3)
    assert again.add("s", 4)
