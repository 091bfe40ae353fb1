"""Tracks: what a live program does, row by row, is what its fragments say."""

import threading

import numpy as np
import pytest

from farfield.canonical import to_json
from farfield.codec import decode_fragment
from farfield.errors import CorruptError, MissingError, SpecError
from farfield.experience.noise import draw
from farfield.experience.slots import Slot
from farfield.experience.specs import box, discrete, multi_binary, multi_discrete, spec
from farfield.experience.tracks import Track
from farfield.learning.feeds import in_line
from farfield.serving import policies
from farfield.serving.admission import Admission
from farfield.serving.snapshots import Snapshot
from farfield.types import noise_blocks
from small_gateway import SPEC, network_of, version_of

STREAM = "5a" * 16
WORLDS = {
    "one choice": (SPEC, "policy", {}),
    "values": (SPEC, "q", {}),
    "masked": (spec(box(4), discrete(3), mask=True), "policy", {}),
    "masked values": (spec(box(4), discrete(3), mask=True), "q", {}),
    "several choices": (spec(box(4), multi_discrete((3, 4))), "policy", {}),
    "switches": (spec(box(4), multi_binary(3)), "policy", {}),
    "numbers": (spec(box(4), box(2)), "policy", {}),
    "remembers": (spec(box(4), discrete(3)), "policy", {"kind": "gru"}),
    "long memory": (spec(box(4), discrete(3)), "policy", {"kind": "lstm"}),
    "many parts": (
        spec({"place": box(3), "kind": discrete(5)}, {"move": discrete(3), "force": box(2)}, mask=["move"]),
        "policy",
        {},
    ),
}


class World:
    """A track, what it emitted, and a version to act with."""

    def __init__(self, name="one choice", *, lanes=0, steps=5, version=True, number=3):
        self.spec, style, config = WORLDS[name]
        self.network = network_of(self.spec, style, **config)
        self.slot, self.lanes, self.N = Slot(), lanes, max(lanes, 1)
        self.payloads, self.rows = [], []
        self.version, self.weights = version_of(self.spec, self.network, number)
        for key, value in self.weights.items():  # first heads are nearly flat; make them say something
            if key.endswith("kernel") and ("action" in key or "out" in key):
                self.weights[key] = 30 * value
        if version:
            self.publish(self.version, self.weights)
        self.track = Track(
            self.slot, to_json(self.spec), run="r", policy="main", actor="a", stream=STREAM, seed=7, steps=steps,
            lanes=lanes, emit=self.emit,
        )  # fmt: skip
        self.random = np.random.default_rng(1)

    def publish(self, version, weights):
        self.slot.put(Snapshot(to_json(version), weights))

    def emit(self, payload, rows):
        self.payloads.append(payload)
        self.rows.append(rows)

    def fragments(self):
        return [decode_fragment(payload) for payload in self.payloads]

    def columns(self, name):
        return np.concatenate([fragment.columns[name][: self.steps_of(fragment)] for fragment in self.fragments()])

    @staticmethod
    def steps_of(fragment):
        return len(fragment.columns["reward"])

    def seen(self):
        """Random observations [N, …] with masks that allow something."""
        found = {}
        for field in self.spec.observations:
            shape = (self.N, *field.shape)
            if field.name.startswith("mask"):
                found[field.name] = self.random.random(shape) < 0.5
                found[field.name][:, 0] = True
            elif field.sizes:
                found[field.name] = self.random.integers(0, field.sizes[0], shape)
            else:
                found[field.name] = self.random.standard_normal(shape).astype(field.dtype)
        return found

    def given(self, columns):
        """As a program hands it over."""
        own = {name: value if self.lanes else value[0] for name, value in columns.items()}
        return own if len(own) > 1 else next(iter(own.values()))

    def amount(self):
        amount = self.random.standard_normal(self.N)
        return amount if self.lanes else float(amount[0])


@pytest.mark.parametrize("lanes", [0, 1, 3])
@pytest.mark.parametrize("name", WORLDS)
def test_fragments_hold_what_was_seen_decided_and_rewarded(name, lanes):
    world = World(name, lanes=lanes)
    policy = policies.make(world.spec, world.network)
    policy.load(world.version, world.weights)
    blocks = noise_blocks(world.spec, world.network)
    memory, seen, chosen, rewards, scores, first = policy.memory(world.N), [], [], [], [], []
    for n in range(37):
        begins = n % 9 == 0
        if begins:
            memory = policy.memory(world.N)
        columns = world.seen()
        noise = draw(blocks, seed=7, stream=STREAM, first=n * world.N, steps=1, lanes=world.N)[0]
        choice = policy.act(columns, noise=noise, memory=memory)
        memory = choice.memory
        action = world.track.act(world.given(columns))
        taken = action if isinstance(action, dict) else {world.spec.actions[0].name: action}
        for key, value in choice.action.items():
            mine = np.asarray(taken[key.removeprefix("action/")])
            np.testing.assert_allclose(mine.reshape(value.shape), value, rtol=1e-5, atol=1e-6)
        assert world.track.decision == n * world.N
        parts = [world.amount(), world.amount()]
        for amount in parts:
            world.track.reward(amount)
        if n % 9 == 8:
            world.track.end()
        seen.append(columns)
        chosen.append(choice.action)
        rewards.append(np.sum([np.atleast_1d(part) for part in parts], axis=0))
        scores.append(policy.log_prob(choice.logits, choice.action))
        first.append(np.full(world.N, begins))
    world.track.end()
    world.track.cut()
    fragments = world.fragments()
    assert [fragment.seq for fragment in fragments] == list(range(len(fragments)))
    assert [world.steps_of(fragment) for fragment in fragments[:-1]] == [5] * (len(fragments) - 1)
    assert [fragment.decision for fragment in fragments] == [5 * world.N * i for i in range(len(fragments))]
    assert world.rows == [int(fragment.columns["valid"].sum()) for fragment in fragments]
    for field in world.spec.observations:
        np.testing.assert_array_equal(world.columns(field.name), np.stack([row[field.name] for row in seen]))
    for field in world.spec.actions:
        expected = np.stack([row[field.name] for row in chosen])
        np.testing.assert_allclose(world.columns(field.name), expected, rtol=1e-5, atol=1e-6)
        assert world.columns(field.name).dtype == field.dtype
    np.testing.assert_allclose(world.columns("reward"), np.stack(rewards), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(world.columns("log_prob"), np.stack(scores), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(world.columns("first"), np.stack(first))
    ends = np.array([n % 9 == 8 or n == 36 for n in range(37)])
    np.testing.assert_array_equal(world.columns("terminated"), np.repeat(ends[:, None], world.N, 1))
    assert world.columns("valid").all()
    assert not world.columns("truncated").any()
    lengths = np.concatenate([fragment.columns["episode/length"] for fragment in fragments])
    assert lengths.tolist() == [9] * (4 * world.N) + [1] * world.N
    returns = np.concatenate([fragment.columns["episode/return"] for fragment in fragments])
    by_hand = [np.stack(rewards)[i : i + 9].sum(0) for i in range(0, 37, 9)]
    np.testing.assert_allclose(returns, np.concatenate(by_hand), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lanes", [0, 3])
@pytest.mark.parametrize("name", WORLDS)
def test_a_gateway_takes_every_fragment(name, lanes):
    world = World(name, lanes=lanes)
    memory = {node: shape for node, shape in world.network.memory.items() if not node.startswith("value")}
    for n in range(60):
        world.track.act(world.given(world.seen()))
        world.track.reward(world.amount())
        if n % 7 == 6:
            world.track.end(truncated=n % 2 == 0, obs=None if n % 3 else world.given(world.seen()))
        if n % 11 == 10:
            world.track.cut()
    world.track.end(truncated=True)
    world.track.cut()
    admission = Admission(world.spec, run="r", lanes=8)
    steps = sum(admission.check(fragment, memory) for fragment in world.fragments())
    assert steps == 60 * world.N
    ends = [fragment.decision + world.steps_of(fragment) * world.N for fragment in world.fragments()]
    assert [fragment.decision for fragment in world.fragments()] == [0, *ends[:-1]]


def test_what_is_seen_next_stands_behind_the_last_row():
    world = World(steps=3)
    rows = [world.seen()["obs"] for _ in range(8)]
    for row in rows:
        world.track.act(row[0])
    first, second = world.fragments()
    np.testing.assert_array_equal(first.columns["obs"], np.stack(rows[:4]))
    np.testing.assert_array_equal(second.columns["obs"], np.stack(rows[3:7]))


def test_an_episode_that_was_cut_off_shows_its_last_observation_in_a_row_that_is_no_step():
    world = World(steps=10)
    rows = [world.seen()["obs"] for _ in range(4)]
    for row in rows[:2]:
        world.track.act(row[0])
        world.track.reward(2.0)
    world.track.end(truncated=True, obs=rows[2][0])
    world.track.act(rows[3][0])
    assert world.track.decision == 3  # the row in between took a number
    world.track.end()
    assert world.track.cut() == 4
    columns = world.fragments()[0].columns
    np.testing.assert_array_equal(columns["obs"][:4], np.stack(rows))
    assert columns["valid"].ravel().tolist() == [True, True, False, True]
    assert columns["truncated"].ravel().tolist() == [False, True, False, False]
    assert columns["terminated"].ravel().tolist() == [False, False, False, True]
    assert columns["first"].ravel().tolist() == [True, False, False, True]
    assert columns["reward"].ravel().tolist() == [2.0, 2.0, 0.0, 0.0]
    assert (columns["log_prob"][2], columns["action"][2]) == (0, 0)
    assert columns["episode/length"].tolist() == [2, 1]


def test_the_last_observation_is_the_one_before_when_nobody_knows_it():
    world = World(steps=10)
    row = world.seen()["obs"]
    world.track.act(row[0])
    world.track.end(truncated=True)
    world.track.cut()
    np.testing.assert_array_equal(world.fragments()[0].columns["obs"], np.stack([row] * 3))


def test_an_end_that_fills_the_page_sends_it_at_once():
    world = World(steps=2)
    for _ in range(2):
        world.track.act(world.seen()["obs"][0])
    world.track.end()
    assert (len(world.payloads), world.track.rows, world.track.seq) == (1, 0, 1)


@pytest.mark.parametrize("name", ["one choice", "remembers", "long memory"])
def test_cutting_anywhere_changes_nothing_but_the_cuts(name):
    whole, cut = World(name, steps=50), World(name, steps=50)
    for n in range(30):
        obs = whole.given(whole.seen())
        assert whole.track.act(obs) == cut.track.act(obs)
        for world in (whole, cut):
            world.track.reward(n)
        if n % 3 == 0:
            cut.track.cut()
            assert cut.track.rows == 1
        if n % 10 == 9:
            whole.track.end()
            cut.track.end()
    for world in (whole, cut):
        world.track.cut()
    for column in ("obs", "action", "reward", "terminated", "valid", "first"):
        np.testing.assert_array_equal(whole.columns(column), cut.columns(column))
    np.testing.assert_allclose(whole.columns("log_prob"), cut.columns("log_prob"), atol=1e-5)
    for before, after in zip(cut.fragments(), cut.fragments()[1:], strict=False):
        if not before.columns["terminated"][-1]:
            np.testing.assert_array_equal(before.columns["obs"][-1], after.columns["obs"][0])


def test_memory_before_a_fragment_is_what_a_policy_remembers_there():
    world = World("remembers", steps=4)
    policy = policies.make(world.spec, world.network)
    policy.load(world.version, world.weights)
    memory, before = policy.memory(1), []
    for n in range(14):
        before.append(memory)
        seen = world.seen()
        memory = policy.act(seen, noise=None, memory=memory).memory
        world.track.act(seen["obs"][0], greedy=True)
        if n == 9:
            world.track.cut()
    for fragment in world.fragments():
        for node, state in before[fragment.decision].items():
            np.testing.assert_allclose(fragment.columns[f"memory/{node}"], state, rtol=1e-5, atol=1e-6)
    assert [fragment.decision for fragment in world.fragments()] == [0, 4, 8, 9]


def test_a_newer_version_decides_from_the_next_row_on():
    world = World(steps=6)
    obs = world.seen()["obs"][0]
    for _ in range(2):
        world.track.act(obs)
    version, weights = version_of(world.spec, world.network, 4, seed=9)
    world.publish(version, weights)
    for _ in range(11):
        world.track.act(obs)
    assert world.track.version == 4
    first, second = world.fragments()
    assert (first.version, first.columns["version"].tolist()) == (3, [3, 3, 4, 4, 4, 4])
    assert second.version == 4
    assert "version" not in second.columns
    policy = policies.make(world.spec, world.network)
    policy.load(version, weights)
    scores = policy.act({"obs": obs[None]}, noise=np.zeros((1, 4), np.float32), memory={})
    expected = policy.log_prob(scores.logits, {"action": first.columns["action"][3]})
    np.testing.assert_allclose(first.columns["log_prob"][3], expected, rtol=1e-5)


def test_another_network_is_taken_up_in_the_middle():
    world = World(steps=6)
    obs = world.seen()["obs"][0]
    world.track.act(obs)
    wider = network_of(world.spec, "q")
    world.publish(*version_of(world.spec, wider, 5))
    for _ in range(6):
        world.track.act(obs)
    columns = world.fragments()[0].columns
    policy = policies.make(world.spec, world.network)
    policy.load(world.version, world.weights)
    choice = policy.act({"obs": obs[None]}, noise=np.zeros((1, 4), np.float32), memory={})
    expected = policy.log_prob(choice.logits, {"action": columns["action"][0]})
    np.testing.assert_allclose(columns["log_prob"][0], expected, rtol=1e-5)
    assert np.isfinite(columns["log_prob"]).all()


def test_who_decided_never_changes_inside_a_fragment():
    world = World(steps=10)
    obs = world.seen()["obs"][0]
    world.track.act(obs)
    world.track.record(obs, 2, 1.5, source="person")
    world.track.reward(0.5)
    world.track.record(obs, 1, 0.0, source="person")
    world.track.act(obs)
    world.track.end()
    world.track.cut()
    fragments = world.fragments()
    assert [(f.source, f.decision, world.steps_of(f)) for f in fragments] == [("", 0, 1), ("person", 1, 2), ("", 3, 1)]
    assert ["log_prob" in fragment.columns for fragment in fragments] == [True, False, True]
    assert fragments[1].columns["reward"].ravel().tolist() == [2.0, 0.0]
    assert fragments[1].columns["action"].ravel().tolist() == [2, 1]
    assert [fragment.columns["first"][0, 0] for fragment in fragments] == [True, False, False]


def test_decisions_of_a_server_keep_their_own_log_probability():
    world = World("remembers", steps=4)
    policy = policies.make(world.spec, world.network)
    policy.load(world.version, world.weights)
    memory, befores = policy.memory(1), []
    for n in range(6):
        befores.append(memory)
        obs = world.seen()["obs"]
        noise = draw(noise_blocks(world.spec, world.network), seed=1, stream=STREAM, first=n, steps=1, lanes=1)[0]
        choice = policy.act({"obs": obs}, noise=noise, memory=memory)
        world.track.put(
            obs[0], int(choice.action["action"][0]), -0.25 * n, memory=memory, version=8 + n // 2, attempt=2
        )
        memory = choice.memory
    world.track.act(world.seen()["obs"][0])  # and one of its own in the same fragment
    world.track.end()
    world.track.cut()
    first, second = world.fragments()
    assert first.columns["log_prob"].ravel().tolist() == [0, -0.25, -0.5, -0.75]
    assert (first.version, first.attempt, first.columns["version"].tolist()) == (8, 2, [8, 8, 9, 9])
    assert second.columns["log_prob"].ravel()[:2].tolist() == [-1, -1.25]
    assert second.columns["log_prob"][2] < 0
    for node, state in befores[4].items():
        np.testing.assert_array_equal(second.columns[f"memory/{node}"], state)


def test_rewards_come_late_to_rows_that_are_still_here():
    world = World(steps=3)
    obs = world.seen()["obs"][0]
    for _ in range(5):
        world.track.act(obs)
        world.track.reward(1.0)
    assert world.track.credit(4, 2.0, "add")
    assert world.track.credit(3, 7.0, "set")
    assert not world.track.credit(2, 1.0, "add")  # gone with the first fragment
    assert not world.track.credit(9, 1.0, "add")
    with pytest.raises(SpecError, match="finite"):
        world.track.credit(4, float("inf"), "add")
    world.track.end(truncated=True)
    assert not world.track.credit(5, 1.0, "add")  # no step
    world.track.cut()
    assert world.fragments()[1].columns["reward"].ravel().tolist() == [7.0, 3.0, 0.0]


def test_lanes_end_one_by_one():
    world = World(lanes=3, steps=4)
    rows = [world.seen()["obs"] for _ in range(6)]
    last = world.seen()["obs"]
    for n, row in enumerate(rows):
        world.track.act(row)
        world.track.reward(np.array([1.0, 2.0, 3.0]))
        if n == 1:
            world.track.restart(np.array([True, False, False]))
        if n == 2:
            world.track.restart(np.array([False, True, False]), np.array([False, True, False]), obs=last)
    world.track.end()
    world.track.cut()
    columns = world.fragments()[0].columns
    assert columns["terminated"].T.tolist() == [[False, True, False, False], [False] * 4, [False] * 4]
    assert columns["truncated"][:, 1].tolist() == [False, False, True, False]
    assert columns["first"].T.astype(int).tolist() == [[1, 0, 1, 0], [1, 0, 0, 1], [1, 0, 0, 0]]
    assert columns["final/index"].tolist() == [[2, 1]]
    np.testing.assert_array_equal(columns["final/obs"], last[1:2])
    assert (columns["episode/return"].tolist(), columns["episode/length"].tolist()) == ([2.0, 6.0], [2, 3])
    shown = in_line(columns, world.spec.observations)
    np.testing.assert_array_equal(shown["obs"][3, 1], last[1])
    second = world.fragments()[1].columns
    assert second["terminated"][-1].all()
    assert second["episode/return"].tolist() == [4.0, 6.0, 18.0]
    assert second["episode/length"].tolist() == [4, 3, 6]


def test_a_lane_that_was_cut_off_with_the_last_row_is_first_in_the_next_fragment():
    world = World(lanes=2, steps=2)
    last = world.seen()["obs"]
    for n in range(5):
        world.track.act(world.seen()["obs"])
        if n == 1:
            world.track.restart([True, False], [True, False], obs=last)
    first, second = world.fragments()
    assert first.columns["final/index"].tolist() == [[1, 0]]
    np.testing.assert_array_equal(in_line(first.columns, world.spec.observations)["obs"][2, 0], last[0])
    assert second.columns["first"].tolist() == [[True, False], [False, False]]


def test_what_does_not_fit_is_refused_and_nothing_has_happened():
    world = World("many parts", steps=4)
    good = world.given(world.seen())
    wrong = [
        (good | {"obs/place": np.zeros(4, np.float32)}, r"'obs/place': expected float32 of shape \[3\], came float32"),
        (good | {"obs/place": np.array([0, np.nan, 0], np.float32)}, r"'obs/place', element \[1\]: expected a finite"),
        (good | {"obs/kind": 5}, "'obs/kind': expected values from 0 and below"),
        (good | {"obs/kind": 0.5}, "'obs/kind': expected int64"),
        (good | {"obs/place": ["a", "b", "c"]}, "'obs/place': expected float32"),
        ({key: good[key] for key in good if key != "mask/move"}, "'mask/move' is missing"),
        (good | {"plaice": 1}, "observation 'plaice' is not in the spec; did you mean place"),
        (np.zeros(3), "observation: expected a dict with"),
    ]
    world.track.act(good)
    for obs, why in wrong:
        with pytest.raises(SpecError, match=why):
            world.track.act(obs)
        with pytest.raises(SpecError, match=why):
            world.track.record(obs, {"move": 0, "force": [0.0, 0.0]}, 0.0)
    allowed = int(np.flatnonzero(good["mask/move"])[0])
    denied = good | {"mask/move": np.arange(3) == allowed}
    for action, why in [
        ({"move": (allowed + 1) % 3, "force": [0, 0]}, "which 'mask/move' allows"),
        ({"move": 3, "force": [0, 0]}, "below"),
        ({"move": 0}, "'action/force' is missing"),
        (1, "expected a dict"),
    ]:
        with pytest.raises(SpecError, match=why):
            world.track.record(denied, action, 0.0)
    for amount in (float("nan"), float("inf"), 1e39, "much", None):
        with pytest.raises(SpecError, match="reward"):
            world.track.reward(amount)
    assert world.track.rows == 1
    world.track.reward(1.0)
    world.track.end()
    with pytest.raises(SpecError, match="no decision waits"):
        world.track.reward(1.0)
    world.track.end()  # nothing to end
    world.track.cut()
    assert world.fragments()[0].columns["reward"].tolist() == [[1.0]]


@pytest.mark.parametrize(
    "obs", [[0.5] * 8, (1,) * 8, np.arange(8), np.ones(8), np.ones(8, np.float16), [True] * 8], ids=str
)
def test_anything_like_an_array_will_do(obs):
    world = World()
    world.track.act(obs)
    world.track.end()
    world.track.cut()
    np.testing.assert_array_equal(world.fragments()[0].columns["obs"][0, 0], np.asarray(obs, np.float32))


def test_nothing_decides_before_a_version_has_come():
    world = World(version=False)
    obs = world.seen()["obs"][0]
    with pytest.raises(MissingError, match="no version has come yet"):
        world.track.act(obs)
    world.track.record(obs, 1, 0.5, source="fallback")
    assert (world.track.rows, world.track.version) == (1, -1)
    world.publish(world.version, world.weights)
    assert world.track.act(obs) in range(4)
    assert world.track.version == 3


def test_weights_that_are_no_weights_are_refused():
    world = World()
    broken = dict(world.weights)
    name = next(name for name in broken if name.startswith("policy"))
    broken[name] = np.full_like(broken[name], np.nan)
    with pytest.raises(CorruptError, match="not finite"):
        world.publish(world.version, broken)
    del broken[name]
    with pytest.raises(CorruptError, match="came nothing"):
        world.publish(world.version, broken)


def test_greedy_decisions_are_the_best_ones():
    world = World()
    policy = policies.make(world.spec, world.network)
    policy.load(world.version, world.weights)
    for _ in range(20):
        seen = world.seen()
        best = policy.act(seen, noise=None, memory={}).action["action"][0]
        assert world.track.act(seen["obs"][0], greedy=True) == best


def test_rows_may_be_cut_from_another_thread_at_any_time():
    world = World(steps=16)
    done = threading.Event()

    def cut():
        while not done.is_set():
            world.track.cut()

    thread = threading.Thread(target=cut)
    thread.start()
    obs = np.zeros(8, np.float32)
    try:
        for n in range(3000):
            world.track.act(obs)
            world.track.reward(n)
            if n % 100 == 99:
                world.track.end()
    finally:
        done.set()
        thread.join()
    world.track.cut()
    np.testing.assert_array_equal(world.columns("reward").ravel(), np.arange(3000))
    starts = [fragment.decision for fragment in world.fragments()]
    assert starts == [0, *np.cumsum(world.rows)[:-1].tolist()]
