"""Feeds: any fragments in, one static shape out; nothing lost, nothing twice, ends where they were."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farfield.errors import SpecError
from farfield.learning.feeds import FreshFeed, Marks
from farfield.types import Field, Fragment, Kind, Spec

SPEC = Spec(
    observations=(Field("obs", Kind.BOX, "float32", (1,)),),
    actions=(Field("action", Kind.DISCRETE, "int64", (), (2,)),),
)


def fragment(
    seq: int, T: int, N: int, *, version: int = 0, finals: tuple[tuple[int, int], ...] = (), end: str = "truncated"
) -> Fragment:
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
    return Fragment(run="r", stream="s", seq=seq, version=version, attempt=1, spec="", columns=columns)


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
        given_ = fragment(seq, T, N, finals=((at, 0),) if 0 <= at < T else (), end=end)
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
    assert names == list(range(len(names)))
    used = {reward: after for reward, after in expected.items() if int(reward // 10_000) < len(names)}
    assert found.keys() == used.keys()
    assert all(after in (None, found[reward]) for reward, after in used.items())


def test_marks_know_what_was_seen_whatever_the_order() -> None:
    marks = Marks()
    assert [marks.add("s", seq) for seq in (0, 2, 0, 1, 2, 3)] == [True, True, False, True, False, True]
    assert marks.facts() == {"below": {"s": 4}, "above": {"s": []}}
    again = Marks(**marks.facts())
    assert not again.add("s", 3)
    assert again.add("s", 4)
