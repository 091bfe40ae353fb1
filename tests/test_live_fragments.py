"""From an app's calls to batches: what was seen, chosen and rewarded is what a learner sees, whoever decided."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farfield import codec
from farfield.canonical import to_json
from farfield.experience.slots import Slot
from farfield.experience.tracks import Track
from farfield.learning import networks, replay
from farfield.learning.credits import CreditWindow
from farfield.learning.feeds import FreshFeed
from farfield.serving.snapshots import Snapshot
from farfield.types import Columns, Credit, Field, Fragment, Kind, Spec, Version

STREAM = "a" * 32
SPEC = Spec((Field("obs", Kind.BOX, "float32", (1,)),), (Field("action", Kind.DISCRETE, "int64", (), (5,)),))
NETWORKS = {
    "mlp": networks.build(networks.Config(hidden=(4,)), SPEC, style="policy"),
    "gru": networks.build(networks.Config(kind="gru", hidden=(4,)), SPEC, style="policy"),
}
WEIGHTS = {name: networks.initialise(network, seed=1) for name, network in NETWORKS.items()}


class Step(NamedTuple):
    """What an app did, as it knows it itself; its observation names it."""

    action: int
    reward: float
    after: float | None  # what it saw next in this episode
    ended: str
    source: str
    first: bool


class Program:
    """An app that does whatever it is told, and remembers it."""

    def __init__(self, network: str, steps: int) -> None:
        self.network, self.number, self.slot = network, 0, Slot()
        self.fragments: list[Fragment] = []
        self.steps: dict[float, Step] = {}
        self.decisions: list[float] = []  # decision -> its observation; pseudo-rows too
        self.next = 0.0
        self.open: float | None = None  # the observation of the open row
        self.newer()
        self.track = Track(
            self.slot, to_json(SPEC), run="r", policy="main", actor="", stream=STREAM, seed=1, steps=steps, lanes=0,
            emit=self.emit,
        )  # fmt: skip

    def emit(self, payload: bytes, rows: int) -> None:
        self.fragments.append(codec.decode_fragment(payload))
        assert rows == int(self.fragments[-1].columns["valid"].sum())

    def newer(self) -> None:
        version = Version("r", self.number, 0, None, 0, SPEC, NETWORKS[self.network], {})
        self.slot.put(Snapshot(to_json(version), WEIGHTS[self.network]))
        self.number += 1

    def step(self, source: str, reward: float) -> None:
        self.next += 1
        obs = np.array([self.next], np.float32)
        if source:
            action = int(self.next) % 5
            self.track.record(obs, action, 0.0, source=source)
        else:
            action = int(self.track.act(obs))
        self.track.reward(reward)
        if self.open is not None:
            self.steps[self.open] = self.steps[self.open]._replace(after=self.next)
        self.steps[self.next] = Step(action, reward, None, "", source, self.open is None)
        self.decisions.append(self.next)
        self.open = self.next

    def end(self, truncated: bool) -> None:
        if self.open is None:
            return
        self.next += 1
        if truncated:
            self.track.end(truncated=True, obs=np.array([self.next], np.float32))
            self.decisions.append(-1.0)
        else:
            self.track.end()
        ended = "truncated" if truncated else "terminated"
        self.steps[self.open] = self.steps[self.open]._replace(after=self.next if truncated else None, ended=ended)
        self.open = None


calls = st.lists(
    st.one_of(
        st.tuples(st.just("act"), st.sampled_from(["", "", "", "person", "heuristic"])),
        st.tuples(st.just("act"), st.just("")),
        st.tuples(st.sampled_from(["end", "truncate", "cut", "newer"]), st.just("")),
    ),
    min_size=1,
    max_size=60,
)


def lived(plan: list[tuple[str, str]], network: str, steps: int) -> Program:
    """Let an app do all that, and hand over what it has at last."""
    program = Program(network, steps)
    for place, (what, source) in enumerate(plan):
        match what:
            case "act":
                program.step(source, float(place % 7))
            case "cut":
                program.track.cut()
            case "newer":
                program.newer()
            case _:
                program.end(what == "truncate")
    program.end(truncated=True)
    program.track.cut()
    return program


def rewarded(program: Program, credits_: list[tuple[int, float]]) -> list[Fragment]:
    """Send the fragments through the window in which rewards may come late."""
    now = [0.0]
    items: list[Any] = [*program.fragments]
    for place, (n, reward) in enumerate(credits_):
        items.append(Credit("r", STREAM, n, reward, "add", f"{place}"))
        if n < len(program.decisions) and program.decisions[n] > 0:
            step = program.steps[program.decisions[n]]
            program.steps[program.decisions[n]] = step._replace(reward=step.reward + reward)
    window = CreditWindow(Once(items), 5.0, lambda: now[0])
    assert window.arrive(wait=False) == []
    now[0] = 5.0
    return window.arrive(wait=False)


class Once:
    """A source that gives all it has at once."""

    unreadable = 0

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def arrive(self, wait: bool) -> list[Any]:
        items, self.items = self.items, []
        return items

    def commit(self) -> None: ...

    def state(self) -> Columns:
        return {}

    def restore(self, state: Columns) -> None: ...


def check(columns: Columns, steps: dict[float, Step], seen: list[float]) -> None:
    for t, slot in zip(*np.nonzero(columns["valid"]), strict=True):
        obs = float(columns["obs"][t, slot, 0])
        step = steps[obs]
        seen.append(obs)
        assert columns["reward"][t, slot] == step.reward
        assert columns["action"][t, slot] == step.action
        assert columns["first"][t, slot] == step.first
        assert columns["terminated"][t, slot] == (step.ended == "terminated")
        assert columns["truncated"][t, slot] == (step.ended == "truncated")
        assert (columns["log_prob"][t, slot] < 0) == (step.source == "")
        if step.after is not None:
            assert columns["obs"][t + 1, slot, 0] == step.after


@settings(max_examples=80, deadline=None)
@given(
    plan=calls, network=st.sampled_from(sorted(NETWORKS)), steps=st.integers(1, 9),
    late=st.lists(st.tuples(st.integers(0, 60), st.floats(-5, 5, width=16)), max_size=6),
)  # fmt: skip
def test_what_an_app_did_is_what_its_learner_sees(
    plan: list[tuple[str, str]], network: str, steps: int, late: list[tuple[int, float]]
) -> None:
    program = lived(plan, network, steps)
    fragments = rewarded(program, late)
    assert [fragment.seq for fragment in fragments] == list(range(len(fragments)))
    returns = [float(value) for fragment in fragments for value in fragment.columns["episode/return"]]
    assert sum(returns) == pytest.approx(sum(step.reward for step in program.steps.values()), abs=1e-3)
    fresh = FreshFeed(SPEC, steps=steps, lanes=2, max_lag=100)
    seen: list[float] = []
    for fragment in fragments:
        fresh.put(fragment)
        while (batch := fresh.take(program.number)) is not None:
            check(batch.columns, program.steps, seen)
    own = {obs for obs, step in program.steps.items() if not step.source}
    assert len(set(seen)) == len(seen)
    assert set(seen) <= own
    assert fresh.settled == [fragment.name for fragment in fragments if fragment.source]
    with TemporaryDirectory() as folder:
        config = replay.Config(capacity=500, warmup=0, ratio=30.0)
        kept = replay.make(config, spec=SPEC, steps=3, lanes=16, folder=Path(folder), seed=1)
        seen.clear()
        for fragment in fragments:
            kept.put(fragment)
        while (batch := kept.take(program.number)) is not None:
            check(batch.columns, program.steps, seen)
        assert set(seen) <= set(program.steps)
        kept.close()
