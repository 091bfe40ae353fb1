"""Late rewards: each counts once, for its own decision, while its fragment is held; and a restart changes nothing."""

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from farfield import codec
from farfield.errors import SpecError
from farfield.learning import credits as late
from farfield.learning.credits import CreditWindow
from farfield.learning.sources import TopicSource
from farfield.transports import disk, memory
from farfield.types import Columns, Credit, Fragment
from producers import Producer

WINDOW = 10.0
STREAM = f"{1:032x}"


class Script:
    """A source that gives what it was told to give; its place is its state."""

    def __init__(self, *batches: Sequence[Fragment | Credit]) -> None:
        self.batches = deque(batches)
        self.given = self.unreadable = self.commits = 0

    def give(self, *batch: Fragment | Credit) -> None:
        self.batches.append(batch)

    def arrive(self, wait: bool) -> list[Fragment | Credit]:
        self.given += 1
        return list(self.batches.popleft()) if self.batches else []

    def commit(self) -> None:
        self.commits += 1

    def state(self) -> Columns:
        return {"given": np.asarray(self.given)}

    def restore(self, state: Columns) -> None:
        self.given = int(state["given"])


class Clock:
    """Time that passes when told to."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Stage:
    """A window between a script and a test."""

    def __init__(self, window: float = WINDOW) -> None:
        self.script, self.clock = Script(), Clock()
        self.window = CreditWindow(self.script, window, self.clock)

    def __call__(self, *batch: Fragment | Credit, after: float = 0.0) -> list[Fragment]:
        """Let time pass, then let things arrive."""
        self.clock.now += after
        self.script.give(*batch)
        return self.window.arrive(wait=False)

    def counts(self) -> dict[str, int]:
        return {name: count for name, count in self.window.numbers().items() if count}


class App:
    """A producer whose fragments tell the returns of finished episodes."""

    def __init__(self, number: int = 1, lanes: int = 1, *, at_once: bool = False) -> None:
        self.producer = Producer(number, lanes, live=not at_once, at_once=at_once)
        self.total = np.zeros(lanes)

    def fragment(self, steps: int) -> Fragment:
        fragment = self.producer.fragment(steps)
        columns = fragment.columns
        columns["reward"] = (columns["reward"] % 1000).astype(np.float32)
        returns = []
        for t in range(steps):
            self.total += columns["reward"][t]
            for lane in np.flatnonzero(columns["terminated"][t] | columns["truncated"][t]):
                returns.append(self.total[lane])
                self.total[lane] = 0
        columns["episode/return"] = np.asarray(returns, np.float32)
        columns["episode/length"] = np.zeros(len(returns), np.int32)
        return codec.decode_fragment(codec.encode_fragment(fragment))


def quiet(steps: int, lanes: int = 1) -> Fragment:
    """A fragment in which no episode ends."""
    producer = Producer(1, lanes, live=True)
    producer.rng = type("Never", (), {"choice": lambda *_: 0, "integers": lambda *_: 0})()  # type: ignore[assignment]
    fragment = producer.fragment(steps)
    fragment.columns["reward"] = np.zeros((steps, lanes), np.float32)
    return codec.decode_fragment(codec.encode_fragment(fragment))


def credit(n: int, reward: float = 1.0, mode: str = "add", name: str = "", stream: str = STREAM) -> Credit:
    return Credit("r", stream, n, reward, mode, name or f"id {n} {reward} {mode}")  # type: ignore[arg-type]


def test_a_fragment_is_held_for_the_window_and_no_longer() -> None:
    stage, fragment = Stage(), quiet(4)
    assert stage(fragment) == []
    assert stage(after=9.9) == []
    assert stage(after=0.1) == [fragment]
    assert stage(after=100) == []


def test_credits_are_added_and_set_in_the_order_in_which_they_came() -> None:
    stage, fragment = Stage(), quiet(4)
    stage(fragment, credit(0, 2.0), credit(0, 0.5), credit(1, 7.0), credit(1, 3.0, "set"), credit(2, 5.0, "set"))
    stage(credit(2, 1.5))
    (out,) = stage(after=WINDOW)
    assert out.columns["reward"][:, 0].tolist() == [2.5, 3.0, 6.5, 0.0]
    assert out.name == fragment.name
    assert fragment.columns["reward"].sum() == 0, "what came is not written to"
    assert stage.counts() == {"credits": 6}


def test_decisions_are_numbered_over_rows_and_lanes() -> None:
    stage, first = Stage(), quiet(3, lanes=2)
    second = structs.replace(first, seq=1, decision=6)
    stage(first, second, credit(3), credit(6, 4.0), credit(11, 9.0))
    one, two = stage(after=WINDOW)
    assert one.columns["reward"].tolist() == [[0, 0], [0, 1], [0, 0]]
    assert two.columns["reward"].tolist() == [[4, 0], [0, 0], [0, 9]]


def test_an_id_counts_once_for_each_decision() -> None:
    stage = Stage()
    stage(quiet(2), credit(0, name="a"), credit(0, name="a"), credit(1, name="a"), credit(0, name="b"))
    (out,) = stage(credit(1, name="a"), after=WINDOW)
    assert out.columns["reward"][:, 0].tolist() == [2.0, 1.0]
    assert stage.counts() == {"credits": 3, "credits_repeated": 2}


def test_a_credit_may_come_before_its_fragment() -> None:
    stage = Stage()
    stage(credit(1, 3.0, name="a"), credit(1, 3.0, name="a"), credit(1, 4.0, "set"))
    stage(quiet(2), after=WINDOW - 1)
    (out,) = stage(credit(1, 3.0, name="a"), after=WINDOW)
    assert out.columns["reward"][:, 0].tolist() == [0.0, 4.0]
    assert stage.counts() == {"credits": 2, "credits_repeated": 2}


def test_a_credit_whose_fragment_never_comes_is_given_up_on() -> None:
    stage = Stage()
    stage(credit(100), credit(3, stream="f" * 32))
    assert stage.counts() == {}
    stage(after=WINDOW)
    assert stage.counts() == {"credits_unknown": 2}


def test_there_is_an_end_to_how_many_credits_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "EARLY", 3)
    stage = Stage()
    stage(*[credit(n) for n in range(5)])
    assert stage.counts() == {"credits_unknown": 2}
    stage(quiet(5))
    assert stage.counts() == {"credits": 3, "credits_unknown": 2}


def test_a_credit_for_what_was_given_already_is_late() -> None:
    stage = Stage()
    stage(quiet(2))
    stage(after=WINDOW)
    stage(credit(1))
    assert stage.counts() == {"credits_late": 1}


def test_without_a_window_fragments_pass_and_credits_are_late() -> None:
    stage, fragment = Stage(0.0), quiet(2)
    assert stage(credit(0), fragment, credit(1)) == [fragment]
    assert stage.counts() == {"credits_late": 2}


def test_nobody_decided_in_the_row_of_a_last_observation() -> None:
    stage, fragment = Stage(), quiet(2)
    fragment = structs.replace(fragment, columns=fragment.columns | {"valid": np.array([[True], [False]])})
    stage(fragment, credit(1), credit(0, 3e38), credit(0, 3e38, name="beyond what a reward can be"))
    (out,) = stage(after=WINDOW)
    assert out.columns["reward"][:, 0].tolist() == [np.float32(3e38), 0]
    assert stage.counts() == {"credits": 1, "credits_unknown": 2}


def test_a_fragment_that_came_twice_passes_twice_and_its_credits_count_once() -> None:
    stage, fragment = Stage(), quiet(2)
    stage(fragment, credit(0), fragment)
    stage(credit(1), fragment, after=WINDOW / 2)
    first, second = stage(after=WINDOW / 2)
    assert first.columns["reward"][:, 0].tolist() == [1.0, 1.0]
    assert second == fragment
    assert stage(credit(0, name="late"), after=WINDOW / 2) == [fragment]
    assert stage.counts() == {"credits": 2, "credits_late": 1}


def test_too_much_to_hold_is_let_go_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, app = Stage(), App()
    fragments = [app.fragment(4) for _ in range(5)]
    size = sum(column.nbytes for column in fragments[0].columns.values())
    monkeypatch.setattr(late, "HELD", 3 * size + 200)
    out = stage(*fragments)
    assert out == fragments[: len(out)]
    assert 1 <= len(out) <= 3
    assert stage.counts() == {"hurried": len(out)}


events = st.lists(
    st.tuples(
        st.sampled_from(["fragment", "credit", "credit", "time", "again"]),
        st.integers(0, 1),  # stream
        st.integers(1, 6),  # rows
        st.integers(-12, 8),  # decision, from the newest one
        st.sampled_from([1.0, 2.5, -3.0]),
        st.sampled_from(["add", "set"]),
    ),
    min_size=1,
    max_size=60,
)


def play(plan: list, at_once: bool, restart: Callable[[Stage, int], Stage]) -> tuple[list[Fragment], list[Fragment]]:
    """Let events happen; gives what was sent and what came out."""
    apps = [App(number + 1, number + 1, at_once=at_once) for number in range(2)]
    stage, sent, out = Stage(), [], []
    for place, (what, number, rows, n, reward, mode) in enumerate(plan):
        stage = restart(stage, place)
        producer = apps[number].producer
        if what == "fragment":
            sent.append(apps[number].fragment(rows))
            out += stage(sent[-1])
        elif what == "credit":
            found = credit(max(0, producer.decision + n), reward, mode, f"{place % 7}", producer.stream)
            out += stage(found)
        elif what == "again" and sent:
            out += stage(sent[-1])
        else:
            out += stage(after=rows)
    stage = restart(stage, len(plan))
    out += stage(after=WINDOW)
    return sent, out


@settings(max_examples=150, deadline=None)
@given(plan=events, at_once=st.booleans())
def test_order_stays_and_returns_are_the_sums_of_what_is_learned(plan: list, at_once: bool) -> None:
    sent, out = play(plan, at_once, lambda stage, _: stage)
    once = list({fragment.name: fragment for fragment in reversed(out)}.values())[::-1]  # the first of each name
    assert [f.name for f in sorted(once, key=lambda f: [s.name for s in sent].index(f.name))] == [f.name for f in sent]
    for number in range(2):
        mine = [fragment for fragment in once if fragment.stream == f"{number + 1:032x}"]
        assert [fragment.seq for fragment in mine] == list(range(len(mine)))
        total = np.zeros(number + 1)
        for fragment in mine:
            columns, returns = fragment.columns, []
            for t, reward in enumerate(columns["reward"]):
                total += reward
                for lane in np.flatnonzero(columns["terminated"][t] | columns["truncated"][t]):
                    returns.append(total[lane])
                    total[lane] = 0
            assert columns["episode/return"] == pytest.approx(returns, abs=1e-2)


@settings(max_examples=150, deadline=None)
@given(plan=events, at_once=st.booleans(), where=st.lists(st.integers(0, 60), min_size=1, max_size=3))
def test_a_restart_changes_nothing(plan: list, at_once: bool, where: list[int]) -> None:
    stages: list[Stage] = []

    def restart(stage: Stage, place: int) -> Stage:
        again = stage
        if place in where:
            again = Stage()
            again.clock.now = -5.0 * place  # another process, another clock
            again.window.restore({name: value.copy() for name, value in stage.window.state().items()})
            assert again.script.given == stage.script.given
        stages.append(again)
        return again

    def go_on(stage: Stage, _: int) -> Stage:
        stages.append(stage)
        return stage

    _, torn = play(plan, at_once, restart)
    counts = stages[-1].counts()
    _, whole = play(plan, at_once, go_on)
    assert [fragment.name for fragment in torn] == [fragment.name for fragment in whole]
    for one, other in zip(torn, whole, strict=True):
        assert one.columns.keys() == other.columns.keys()
        for name in one.columns:
            assert np.array_equal(one.columns[name], other.columns[name]), name
    assert counts == stages[-1].counts()


def test_a_restart_does_not_begin_the_window_anew() -> None:
    stage, fragment = Stage(), quiet(2)
    stage(fragment, credit(50))
    stage(after=6.0)
    again = Stage()
    again.clock.now = -77.0
    again.window.restore(stage.window.state())
    assert again(after=3.9) == []
    assert again.counts() == {}
    (out,) = again(after=0.2)
    assert out.name == fragment.name
    assert again.counts() == {"credits_unknown": 1}


def test_after_a_restart_nothing_is_held_longer_than_the_window_is_now() -> None:
    stage, fragment = Stage(100.0), quiet(2)
    stage(fragment, credit(0))
    again = Stage(5.0)
    again.window.restore(stage.window.state())
    assert again(after=4.9) == []
    (out,) = again(credit(1), after=0.2)
    assert out.columns["reward"][:, 0].tolist() == [1.0, 1.0]
    none = Stage(0.0)
    none.window.restore(stage.window.state())
    assert [fragment.name for fragment in none()] == [fragment.name]
    assert none(structs.replace(fragment, seq=1, decision=2), credit(2)) != []


def test_a_state_from_before_there_were_credits_can_be_restored() -> None:
    stage = Stage()
    stage.window.restore({"given": np.asarray(3)})
    assert stage.script.given == 3


# The topic


def topic(log: object, *, durable: bool = True) -> TopicSource:
    return TopicSource(log, "experiences", spec="0" * 64, durable=durable)  # type: ignore[arg-type]


def send(log: object, *things: Fragment | Credit | bytes) -> None:
    for thing in things:
        match thing:
            case Fragment():
                payload = codec.encode_fragment(thing)
            case Credit():
                payload = codec.encode_credit(thing)
            case _:
                payload = thing
        log.append("experiences", payload, key=STREAM).result(60)  # type: ignore[attr-defined]


def test_a_topic_gives_fragments_and_credits_and_counts_rubbish() -> None:
    log = memory.make(memory.Config())
    fragment = quiet(2)
    flat = structs.replace(fragment, columns=fragment.columns | {"reward": np.zeros(2, np.float32)})
    other = structs.replace(fragment, spec="1" * 64)
    whole = codec.encode_fragment(fragment)
    cut = [whole[:size] for size in (0, 1, 20, len(whole) - 1)]
    send(log, fragment, b"rubbish", credit(1), flat, other, *cut, credit(0, float("inf")), credit(0, 1e39), fragment)
    source = topic(log)
    came = source.arrive(wait=False)
    assert [type(one) for one in came] == [Fragment, Credit, Fragment]
    assert source.unreadable == 9
    again = topic(log)
    again.restore(source.state())
    assert again.unreadable == 9
    assert again.arrive(wait=False) == []


def test_actors_of_our_own_that_send_rubbish_end_the_run() -> None:
    log = memory.make(memory.Config())
    send(log, structs.replace(quiet(2), spec="1" * 64))
    with pytest.raises(SpecError, match="expected spec"):
        topic(log, durable=False).arrive(wait=False)


def test_what_does_not_outlive_the_learner_is_let_go_at_once() -> None:
    log = memory.make(memory.Config())
    send(log, quiet(2))
    source = topic(log, durable=False)
    assert len(source.arrive(wait=False)) == 1
    assert log.read("experiences", after={}, limit=9, timeout=0.0) == ([], {})
    assert source.state()["cursor"].shape == (0, 2)


def test_a_durable_log_keeps_what_the_last_two_checkpoints_go_on_from(tmp_path: Path) -> None:
    fragment = quiet(2)
    log = memory.make(memory.Config())
    source, states = topic(log), []

    def kept() -> int:
        return len(log.read("experiences", after={}, limit=99, timeout=0.0)[0])

    for number in range(3):
        send(log, structs.replace(fragment, seq=number, decision=2 * number))
        assert len(source.arrive(wait=False)) == 1
        states.append(source.state())
        source.commit()
    assert kept() == 1  # of the last checkpoint but one
    again = topic(log)
    again.restore(states[1])
    (third,) = again.arrive(wait=False)
    assert isinstance(third, Fragment)
    assert third.seq == 2
    again.state()
    again.commit()
    assert kept() == 1
    again.state()
    again.commit()
    assert kept() == 0


def test_nothing_is_forgotten_for_others_before_the_learner_was_there(tmp_path: Path) -> None:
    log = disk.make(disk.Config(str(tmp_path), room=10_000, wait=0.0))
    source = topic(log)
    source.arrive(wait=False)
    send(log, quiet(2))
    log.note("experiences", "archiver", {0: 1})
    send(log, quiet(2))
    assert len(source.arrive(wait=False)) == 2
    log.close()


def test_credits_find_their_fragments_across_a_killed_learner(tmp_path: Path) -> None:
    log = disk.make(disk.Config(str(tmp_path)))
    send(log, quiet(2), credit(0))
    clock = Clock()
    first = CreditWindow(topic(log), WINDOW, clock)
    assert first.arrive(wait=True) == []
    state = first.state()
    first.commit()
    send(log, credit(0), credit(1, 5.0))
    first.arrive(wait=True)  # and here it dies: what came after the checkpoint comes again
    again = CreditWindow(topic(log), WINDOW, clock)
    again.restore(state)
    again.arrive(wait=True)
    clock.now += WINDOW
    (out,) = again.arrive(wait=False)
    assert out.columns["reward"][:, 0].tolist() == [1.0, 5.0]
    assert again.numbers()["credits_repeated"] == 1
    log.close()
