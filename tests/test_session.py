"""Sessions: a live program acts at once and loses nothing, whatever happens to server, disk, threads and processes."""

import asyncio
import json
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress
from pathlib import Path

import grpc
import numpy as np
import pytest
from msgspec import structs

import farfield
from farfield.errors import ConfigError, MissingError, SpecError
from farfield.serving import native
from farfield.types import Decision
from small_gateway import SPEC, SmallGateway, network_of, until

CORES = ["numpy", *(["native"] if native.available() else [])]
OBS = np.linspace(-1, 1, 8, dtype=np.float32)
MASKED = farfield.spec(obs=farfield.box(4), action=farfield.discrete(3), mask=True)


@pytest.fixture
def gateway():
    with SmallGateway("127.0.0.1:0") as running:
        running.publish(1)
        yield running


@pytest.fixture(params=CORES)
def core(request):
    return request.param


@pytest.fixture
def connect(gateway, tmp_path):
    """Connects to the gateway, and closes whatever is open at the end."""
    opened = []

    def make(**options):
        settings = {"run": "r", "spec": gateway.spec, "spool": tmp_path / "spool", "wait": 20} | options
        opened.append(farfield.connect(gateway.address, **settings))
        return opened[-1]

    yield make
    for app in opened:
        app.close(1.0)


def play(episode, steps, obs=OBS):
    for n in range(steps):
        episode.act(obs)
        episode.reward(float(n))


def spooled(folder):
    return sum(file.stat().st_size for file in Path(folder).rglob("*.spool"))


def test_what_a_program_does_arrives(gateway, connect, core):
    with connect(core=core) as app:
        assert app.wait(10)
        for _ in range(3):
            with app.episode() as episode:
                play(episode, 50)
        assert not app.flush(20)
        counters = app.counters()
        assert (counters.acted, counters.steps, counters.episodes) == (150, 150, 3)
        assert counters.fragments == counters.sent == counters.owned == len(gateway.fragments())
        assert (counters.waiting, counters.refused, counters.version, counters.lag) == (0, 0, 1, 0)
    fragments = gateway.fragments()
    assert len({fragment.stream for fragment in fragments}) == 1
    assert [fragment.seq for fragment in fragments] == list(range(len(fragments)))
    rewards = np.concatenate([fragment.columns["reward"] for fragment in fragments]).ravel()
    assert rewards.tolist() == list(range(50)) * 3
    assert sum(int(fragment.columns["terminated"].sum()) for fragment in fragments) == 3
    assert all(fragment.source == "" and len(fragment.columns["reward"]) <= gateway.steps for fragment in fragments)


def test_the_way_to_an_action_is_the_tracks_own(connect, core):
    app = connect(core=core)
    app.wait(10)
    episode = app.episode()
    assert type(episode.act.__self__).__name__ == "Track"
    assert episode.reward.__self__ is episode.act.__self__


def test_an_episode_that_raised_is_cut_off_and_not_lost(gateway, connect, core):
    app = connect(core=core)
    app.wait(10)
    with suppress(RuntimeError), app.episode() as episode:
        play(episode, 3)
        raise RuntimeError("the game crashed")
    with pytest.raises(MissingError, match="begin another one"):
        episode.act(OBS)
    assert not app.flush(20)
    columns = gateway.fragments()[-1].columns
    assert columns["truncated"].ravel().tolist() == [False, False, True, False]
    assert columns["valid"].ravel().tolist() == [True, True, True, False]


def test_before_any_version_random_allowed_actions_are_marked(connect, gateway, core):
    gateway.version, gateway.spec = None, MASKED
    app = connect(core=core)
    assert not app.wait(0.05)
    mask = np.array([False, True, True])
    with app.episode() as episode:
        taken = {episode.act(np.zeros(4), mask=mask) for _ in range(60)}
        assert taken == {1, 2}
        episode.reward(1.0)
        gateway.publish(5)
        assert app.wait(10)
        assert episode.act(np.zeros(4), mask=mask) in (1, 2)
        assert app.counters().fallbacks == 60
    app.flush(20)
    assert {fragment.source for fragment in gateway.fragments()} == {"fallback", ""}
    assert sum(f.columns["valid"].sum() for f in gateway.fragments() if f.source == "") == 1


@pytest.mark.parametrize(("fallback", "mask", "expected"), [(2, [1, 1, 1], {2}), (2, [1, 1, 0], {0, 1})])
def test_a_declared_action_is_taken_where_it_is_allowed(connect, gateway, fallback, mask, expected):
    gateway.version, gateway.spec = None, MASKED
    episode = connect(fallback=fallback).episode()
    assert {episode.act(np.zeros(4), mask=mask) for _ in range(40)} == expected


def test_fallbacks_fit_every_kind_of_action(connect, gateway):
    gateway.version = None
    gateway.spec = farfield.spec(
        obs=farfield.box(2),
        action={
            "go": farfield.discrete(3), "many": farfield.multi_discrete([2, 5]), "lamps": farfield.multi_binary(4),
            "force": farfield.box(2, [-1, 0], [1, 5]), "free": farfield.box(1), "up": farfield.box(1, low=3.0),
        },
    )  # fmt: skip
    app = connect()
    one, many = app.episode(), app.episode(lanes=3)
    for _ in range(30):
        action = one.act([0, 0])
        assert 0 <= action["go"] < 3
        assert (action["many"] < [2, 5]).all()
        assert (action["force"] >= [-1, 0]).all()
        assert (action["force"] <= [1, 5]).all()
        assert action["up"][0] >= 3
        assert many.act(np.zeros((3, 2)))["lamps"].shape == (3, 4)
    app.close(20)
    assert app.counters().refused == 0


def test_an_unusable_fallback_is_refused_at_once(connect):
    with pytest.raises(SpecError, match="'action': expected values from 0"):
        connect(fallback=4).episode()
    with pytest.raises(ConfigError, match="fallback"):
        connect(fallback="nothing")


def test_a_program_acts_while_its_server_is_away_and_delivers_afterwards(gateway, connect, core, tmp_path):
    app = connect(core=core)
    app.wait(10)
    gateway.stop()
    with app.episode() as episode:
        play(episode, 200)
    left = app.flush(0.2)
    assert left
    assert left.in_memory == 0
    assert spooled(tmp_path) >= left.bytes
    gateway.start()
    assert not app.flush(20)
    assert gateway.steps_owned() == 200
    counters = app.counters()
    assert counters.reconnects >= 1
    assert (counters.owned, counters.dropped_fragments, spooled(tmp_path)) == (counters.fragments, 0, 0)


def test_a_program_may_start_before_its_server(gateway, connect, core):
    gateway.stop()
    app = connect(core=core, wait=0)
    assert not app.counters().connected
    with app.episode() as episode:
        play(episode, 20)
    gateway.start()
    assert app.wait(20)
    with app.episode() as episode:
        play(episode, 20)
    assert not app.flush(20)
    assert gateway.steps_owned() == 40
    late = [fragment for fragment in gateway.fragments() if not fragment.source]
    assert all(len(fragment.columns["reward"]) <= gateway.steps for fragment in late)


def test_an_episode_that_lives_long_goes_on_as_the_server_likes_it(gateway, connect, core):
    gateway.stop()
    app = connect(core=core, wait=0)
    episode = app.episode()
    play(episode, 20)
    gateway.start()
    assert app.wait(20)
    play(episode, 5)
    before = episode.decision
    episode.end()
    assert episode.decision == before  # it keeps its name until the next one
    play(episode, 40)
    assert episode.decision.stream != before.stream
    episode.close()
    assert not app.flush(20)
    assert gateway.steps_owned() == 65
    own = [len(f.columns["reward"]) for f in gateway.fragments() if f.stream == episode.decision.stream]
    assert own == [16, 16, 8]


def test_without_spec_and_server_nobody_knows_what_to_do(gateway, connect):
    gateway.stop()
    with pytest.raises(MissingError, match="no spec was given"):
        connect(spec=None, wait=0.1)
    gateway.start()
    app = connect(spec=None)
    app.wait(10)
    assert app.episode().act(OBS) in range(4)


def test_a_refusal_reaches_whoever_waits_for_it(gateway, connect):
    with pytest.raises(SpecError, match=r"field 'obs': shape: expected \[8\]"):
        connect(spec=MASKED)
    gateway.refuse_call = (grpc.StatusCode.UNAUTHENTICATED, "no such token: ask for one")
    with pytest.raises(ConfigError, match="no such token: ask for one"):
        connect()


def test_a_program_that_is_refused_later_goes_on_and_keeps_what_it_finishes(gateway, connect, tmp_path):
    app = connect()
    app.wait(10)
    gateway.stop()
    gateway.refuse_call = (grpc.StatusCode.PERMISSION_DENIED, "this token has expired: ask for another one")
    gateway.start()
    until(lambda: "expired" in app.trouble)
    with app.episode() as episode:
        play(episode, 100)
    left = app.close(20)
    assert left.payloads == -(-100 // gateway.steps)
    assert (left.in_memory, gateway.fragments()) == (0, [])
    assert spooled(tmp_path) > 0
    gateway.refuse_call = None
    assert not connect().flush(20)
    until(lambda: gateway.steps_owned() == 100)


def test_the_next_session_delivers_what_the_last_one_left(gateway, connect, tmp_path):
    app = connect()
    app.wait(10)
    gateway.stop()
    with app.episode() as episode:
        play(episode, 100)
    left = app.close(0.1)
    assert left.payloads > 0
    gateway.start()
    following = connect()
    until(lambda: gateway.steps_owned() == 100)
    until(lambda: spooled(tmp_path) == 0)
    assert following.counters().adopted == left.payloads
    fragments = gateway.fragments()
    assert [fragment.seq for fragment in fragments] == list(range(len(fragments)))


def test_a_killed_program_loses_only_the_rows_that_it_had_open(gateway, connect, tmp_path):
    gateway.hold = True
    script = """
        import sys, os, numpy as np, farfield
        app = farfield.connect(sys.argv[1], run="r", spool=sys.argv[2])
        app.wait(20)
        episode = app.episode()
        for n in range(100):
            episode.act(np.zeros(8))
            episode.reward(n)
        while app.counters().spooled_bytes == 0 or app.counters().memory_bytes == 0:
            pass
        print(app.counters().steps, flush=True)
        sys.stdin.read()
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), gateway.address, str(tmp_path / "spool")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    steps = int(child.stdout.readline())
    assert steps == 96
    until(lambda: spooled(tmp_path) > 6 * 1000)
    child.send_signal(signal.SIGKILL)
    child.wait()
    gateway.stop()
    gateway.hold = False
    gateway.start()
    gateway.publish(2)
    connect()
    until(lambda: gateway.steps_owned() == steps)
    rewards = np.concatenate([fragment.columns["reward"] for fragment in gateway.fragments()]).ravel()
    assert rewards.tolist() == list(range(96))


def test_without_a_disk_what_waits_is_bounded_and_what_is_dropped_is_counted(gateway, connect, core):
    app = connect(core=core, spool="", memory=1 << 20, flush=0)
    app.wait(10)
    gateway.stop()
    with app.episode() as episode:
        play(episode, 30_000)
    counters = app.counters()
    assert counters.memory_bytes <= 1 << 20
    assert counters.dropped_fragments > 0
    assert counters.dropped_steps + counters.waiting * gateway.steps == pytest.approx(30_000, abs=gateway.steps)
    gateway.start()
    assert not app.flush(20)
    after = app.counters()
    assert gateway.steps_owned() == 30_000 - after.dropped_steps
    first = gateway.fragments()[0].stream
    with app.episode() as episode:
        play(episode, 20)
    assert not app.flush(20)
    assert gateway.fragments()[-1].stream != first  # a stream with a gap is never settled beyond it


def test_a_full_disk_never_reaches_the_program(gateway, tmp_path):
    gateway.hold = True
    script = """
        import json, resource, sys, numpy as np, farfield
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
        app = farfield.connect(sys.argv[1], run="r", spool=sys.argv[2], memory=1 << 20, flush=0)
        app.wait(20)
        with app.episode() as episode:
            for n in range(3000):
                episode.act(np.zeros(8))
                episode.reward(n)
        left = app.flush(0.5)
        counters = app.counters()
        print(json.dumps([counters.dropped_steps, counters.spooled_bytes, left.payloads, left.in_memory]), flush=True)
        sys.stdin.readline()
        print(json.dumps(app.flush(20)), flush=True)
        app.close()
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), gateway.address, str(tmp_path / "spool")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    dropped, on_disk, waiting, in_memory = json.loads(child.stdout.readline())
    assert dropped == 0
    assert 0 < on_disk <= 10_000
    assert 0 < in_memory < waiting
    gateway.hold = False
    child.stdin.write("\n")
    child.stdin.flush()
    assert json.loads(child.stdout.readline()) == [0, 0, 0]
    assert child.wait() == 0
    assert gateway.steps_owned() == 3000


def test_rows_do_not_wait_longer_than_they_should(gateway, connect, core):
    app = connect(core=core, flush=0.05)
    app.wait(10)
    episode = app.episode()
    episode.act(OBS)
    episode.reward(1.0)
    episode.act(OBS)
    until(lambda: gateway.steps_owned() == 1)
    np.testing.assert_array_equal(gateway.fragments()[0].columns["obs"][:, 0], [OBS, OBS])


def test_several_episodes_run_at_once_from_many_threads(gateway, connect, core):
    app = connect(core=core)
    app.wait(10)
    done = []

    def run(n):
        for _ in range(4):
            with app.episode() as episode:
                play(episode, 40 + n)
        done.append(n)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(8))
    assert not app.flush(30)
    assert gateway.steps_owned() == sum(4 * (40 + n) for n in range(8))
    assert len({fragment.stream for fragment in gateway.fragments()}) <= 8


def test_lanes_act_side_by_side(gateway, connect, core):
    app = connect(core=core)
    app.wait(10)
    with app.episode(lanes=4) as episode:
        for n in range(20):
            action = episode.act(np.tile(OBS, (4, 1)))
            assert action.shape == (4,)
            episode.reward(np.arange(4.0))
            if n == 7:
                episode.restart(np.array([True, False, False, False]))
    assert not app.flush(20)
    assert gateway.steps_owned() == 80
    assert app.counters().acted == 80
    with pytest.raises(ConfigError, match="lanes"):
        app.episode(lanes=-1)


def test_several_policies_have_their_own_runs(gateway, tmp_path):
    with farfield.connect(
        gateway.address, run="r", spec={"hunter": SPEC, "prey": SPEC}, policy="hunter", spool=tmp_path
    ) as app:
        with app.episode() as hunter, app.episode("prey") as prey:
            hunter.act(OBS)
            prey.act(OBS)
        assert not app.flush(20)
        assert {fragment.policy for fragment in gateway.fragments()} == {"hunter", "prey"}
        assert {hello.policy for hello in gateway.hellos} == {"hunter", "prey"}
        assert app.counters().acted == 2
        assert 'policy="prey"' in app.prometheus()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.hunter", "r.prey"]


def test_versions_are_taken_up_while_an_episode_runs(gateway, connect, core):
    app = connect(core=core)
    app.wait(10)
    with app.episode() as episode:
        for number in range(2, 6):
            gateway.publish(number, seed=number)
            until(lambda number=number: app.version.number == number)
            assert app.counters().lag <= 1
            episode.act(OBS)
            assert (app.counters().version, app.counters().newest) == (number, number)
    assert app.counters().versions == 5


def test_a_version_that_cannot_be_acted_with_is_rubbish_and_the_last_one_stays(gateway, connect, core):
    app = connect(core=core)
    app.wait(10)
    weights = {name: np.full_like(value, np.nan) for name, value in gateway.version[1].items()}
    gateway.publish(2, weights=weights)
    until(lambda: app.counters().rubbish >= 1)
    with app.episode() as episode:
        assert episode.act(OBS) in range(4)
    other = farfield.spec(obs=farfield.box(8), action=farfield.discrete(7))
    gateway.version = None
    gateway.spec, before = other, gateway.spec
    network = network_of(other)
    gateway.publish(3, network=network)
    gateway.spec = before
    seen = app.counters().rubbish
    until(lambda: app.counters().rubbish > seen)
    gateway.publish(4)
    until(lambda: app.version.number == 4)


def broken(network, what):
    """The network with one thing that makes acting impossible."""
    nodes = list(network.nodes)
    if what == "operator":
        nodes[1] = structs.replace(nodes[1], op="explode")
    elif what == "input":
        nodes[0] = structs.replace(nodes[0], options=nodes[0].options | {"shape": [3]})
    elif what == "column":
        nodes[0] = structs.replace(nodes[0], inputs=("elsewhere",))
    elif what == "order":
        nodes.reverse()
    elif what == "options":
        nodes[0] = structs.replace(nodes[0], options={})
    else:
        return structs.replace(network, heads=())
    return structs.replace(network, nodes=tuple(nodes))


@pytest.mark.parametrize("what", ["operator", "input", "column", "order", "options", "heads"])
def test_a_network_that_cannot_decide_never_reaches_the_program(gateway, connect, core, what):
    app = connect(core=core)
    app.wait(10)
    gateway.publish(2, network=broken(network_of(SPEC), what), weights=gateway.version[1])
    until(lambda: app.counters().rubbish >= 1)
    with app.episode() as episode:
        assert episode.act(OBS) in range(4)
    assert app.counters().version == 1


def test_decisions_of_people_are_marked(gateway, connect, core):
    app = connect(core=core)
    app.wait(10)
    with app.episode() as episode:
        episode.act(OBS)
        episode.record(OBS, 3, 0.5, source="person")
        episode.reward(0.25)
    app.flush(20)
    own, other = gateway.fragments()
    assert (own.source, other.source) == ("", "person")
    assert "log_prob" not in other.columns
    assert (other.columns["action"].ravel().tolist(), other.columns["reward"].ravel().tolist()) == ([3], [0.75])


def test_advice_is_what_the_policy_would_like_best(gateway, connect, core):
    app = connect(core=core)
    episode = app.episode()
    gateway.publish(2, style="q")
    until(lambda: app.version and app.version.number == 2)
    advice = episode.advise(OBS, best=4)
    assert [value for *_, value in advice] == sorted((value for *_, value in advice), reverse=True)
    assert sum(chance for _, chance, _ in advice) == pytest.approx(1)
    assert app.episode(greedy=True).act(OBS) == advice[0][0]
    gateway.publish(3)
    until(lambda: app.version.number == 3)
    chances = [chance for _, chance, _ in episode.advise(OBS, best=4)]
    assert chances == sorted(chances, reverse=True)
    assert sum(chances) == pytest.approx(1)
    assert len(episode.advise(OBS)) == 3
    assert app.counters().acted == 1  # advice is no decision


def test_advice_says_nothing_before_there_is_a_version(gateway, connect):
    gateway.version = None
    assert connect().episode().advise(OBS) == []


def test_rewards_come_late_and_from_anywhere(gateway, connect, core):
    app = connect(core=core, flush=0)
    app.wait(10)
    with app.episode() as episode:
        names = []
        for _ in range(20):
            episode.act(OBS)
            names.append(episode.decision)
        assert app.credit(names[19], 5.0, "set")  # still here
        assert app.credit(names[18], 1.0, id="a")
        assert app.credit(names[18], 1.0, id="a")  # the same once more
        assert app.credit(str(names[0]), 2.0, id="b")
        assert connect().credit([*names[1]], -1.0, "set")
    assert not app.flush(20)
    until(lambda: len(gateway.credits()) == 2)
    last = gateway.fragments()[-1].columns["reward"].ravel()
    assert last[2:4].tolist() == [1.0, 5.0]
    late = {credit.n: credit for credit in gateway.credits()}
    assert (late[0].reward, late[0].mode, late[0].id) == (2.0, "add", "b")
    assert (late[1].stream, late[1].mode) == (names[1].stream, "set")
    assert app.counters().credits == 1
    for wrong in ("nothing", "ab:1", ("ab" * 16, -1), 7 * ("a",)):
        with pytest.raises(SpecError, match="decision"):
            app.credit(wrong, 1.0)
    assert app.credit(Decision("ab" * 16, 1), 1.0)  # of a stream that nobody here knows
    with pytest.raises(SpecError, match="finite"):
        app.credit(names[0], float("nan"))
    with pytest.raises(SpecError, match="mode"):
        app.credit(names[0], 1.0, "multiply")


def test_a_server_decides_for_those_who_want_no_weights(gateway, connect, core):
    app = connect(core=core, remote=True, deadline=20)
    with app.episode() as episode:
        play(episode, 20)
    with app.episode(greedy=True) as episode:
        episode.act(OBS)
    with app.episode(lanes=2) as episode:
        assert episode.act(np.tile(OBS, (2, 1))).shape == (2,)
    assert not app.flush(20)
    assert gateway.acts == 22
    assert gateway.versions_sent == []
    sources = [fragment.source for fragment in gateway.fragments()]
    assert set(sources) == {"", "greedy"}
    assert all((f.columns["log_prob"] < 0).all() and f.version == 1 for f in gateway.fragments() if not f.source)
    assert app.counters().fallbacks == 0


@pytest.mark.parametrize("style", ["gru", "lstm"])
def test_a_server_that_decides_is_told_what_to_remember(gateway, connect, core, style):
    gateway.publish(2, network=network_of(SPEC, kind=style))
    app = connect(core=core, remote=True, deadline=20)
    for _ in range(2):
        with app.episode() as episode:
            play(episode, 20)
    assert not app.flush(20)
    columns = [fragment.columns for fragment in gateway.fragments()]
    (name,) = (name for name in columns[0] if name.startswith("memory/"))
    assert not columns[0][name].any()
    assert columns[1][name].any()


@pytest.mark.parametrize("fallback", ["last", "random", 3])
def test_a_deadline_that_passes_falls_back(gateway, connect, core, fallback):
    gateway.deaf = True
    app = connect(core=core, remote=True, deadline=0.05, fallback=fallback)
    if fallback == "last":
        assert app.wait(10)
    with app.episode() as episode:
        action = episode.act(OBS)
        episode.reward(1.0)
    assert action == 3 or fallback != 3
    counters = app.counters()
    assert (counters.late, counters.fallbacks) == (1, 1)
    app.flush(20)
    assert [f.source for f in gateway.fragments()] == ["" if fallback == "last" else "fallback"]


def test_an_answer_that_is_no_action_never_reaches_the_program(gateway, connect, core):
    gateway.rubbish = "Act"
    app = connect(core=core, remote=True, deadline=20)
    assert app.episode().act(OBS) in range(4)
    assert (app.counters().rubbish, app.counters().fallbacks) == (1, 1)


def test_a_simulator_may_wait_for_its_learner(gateway, connect, core):
    app = connect(core=core, pace=True, flush=0)
    app.wait(10)
    done = []

    def run():
        with app.episode() as episode:
            for n in range(gateway.steps * 6):
                episode.act(OBS)
                done.append(n)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: len(gateway.fragments()) == gateway.window + 1)
    stream = gateway.fragments()[0].stream
    assert len(done) <= gateway.steps * (gateway.window + 1) + 1
    for count in range(1, 7):
        gateway.settle(**{stream: count})
        until(lambda count=count: len(done) >= min(6, gateway.window + 1 + count) * gateway.steps)
    thread.join()
    until(lambda: app.counters().ahead == 0)


def test_closing_lets_nobody_wait(gateway, connect, core):
    app = connect(core=core, pace=True)
    app.wait(10)
    episode = app.episode()
    thread = threading.Thread(target=lambda: _until_refused(episode))
    thread.start()
    until(lambda: len(gateway.fragments()) > gateway.window)
    app.close(0.5)
    thread.join(20)
    assert not thread.is_alive()
    with pytest.raises(MissingError, match="closed"):
        app.episode()
    assert app.close() == app.close()


def _until_refused(episode):
    try:
        while True:
            episode.act(OBS)
    except MissingError:
        pass


@pytest.mark.parametrize("way", ["_exit", "exit"])
def test_a_forked_child_is_told_to_connect_again_and_the_parent_goes_on(gateway, tmp_path, way):
    script = """
        import os, sys, numpy as np, farfield
        app = farfield.connect(sys.argv[1], run="r", spool=sys.argv[2])
        app.wait(20)
        episode = app.episode()
        episode.act(np.zeros(8))
        pid = os.fork()
        if pid == 0:
            calls = [lambda: episode.act(np.zeros(8)), lambda: episode.reward(1.0), app.episode, app.flush,
                     app.counters, app.prometheus, episode.end, lambda: app.credit("ab" * 16 + ":1", 1.0),
                     lambda: episode.advise(1)]
            for call in calls:
                try:
                    call()
                except farfield.errors.MissingError as error:
                    assert "connect again in the child" in str(error), error
                else:
                    print("no error", call, flush=True)
            with farfield.connect(sys.argv[1], run="r", spool=sys.argv[2]) as again:
                again.wait(20)
                with again.episode() as mine:
                    mine.act(np.ones(8))
            print("child done", flush=True)
            os._exit(0) if sys.argv[3] == "_exit" else sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        episode.reward(1.0)
        episode.act(np.zeros(8))
        episode.end()
        print("left", app.close(20).payloads, flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), gateway.address, str(tmp_path), way],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["child done", "left 0"], done.stdout + done.stderr
    assert sorted(int(fragment.columns["valid"].sum()) for fragment in gateway.fragments()) == [1, 2]


def test_an_event_loop_is_not_held_up(gateway, tmp_path):
    async def run():
        async with farfield.connect(gateway.address, run="r", spec=SPEC, spool=tmp_path) as app:
            await asyncio.to_thread(app.wait, 10)
            with app.episode() as episode:
                play(episode, 20)
            return await asyncio.to_thread(app.flush)

    assert not asyncio.run(run())
    assert gateway.steps_owned() == 20


def test_a_program_that_ends_without_closing_delivers(gateway, tmp_path):
    script = """
        import sys, numpy as np, farfield
        app = farfield.connect(sys.argv[1], run="r", spool=sys.argv[2])
        app.wait(20)
        episode = app.episode()
        for n in range(5):
            episode.act(np.zeros(8))
    """
    command = [sys.executable, "-c", textwrap.dedent(script), gateway.address, str(tmp_path)]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0
    until(lambda: gateway.steps_owned() == 5)
    assert spooled(tmp_path) == 0


def test_two_programs_share_one_spool(gateway, connect, tmp_path):
    first, second = connect(), connect()
    gateway.hold = True
    for app in (first, second):
        app.wait(10)
        with app.episode() as episode:
            play(episode, 20)
        app.flush(0.1)
    assert len(list(Path(tmp_path).rglob("*.spool"))) == 2
    second.close(0.1)
    third = connect()
    until(lambda: third.counters().adopted == 2)
    gateway.hold = False
    assert not first.flush(20)
    assert not third.flush(20)
    until(lambda: gateway.steps_owned() == 40)


def test_prometheus_reads_every_counter(connect):
    app = connect(client='the "best" client')
    lines = app.prometheus().splitlines()
    values = {line.split("{")[0]: line for line in lines if not line.startswith("#")}
    names = {name.removeprefix("farfield_session_").removesuffix("_total") for name in values}
    assert names == set(app.counters().__struct_fields__)
    assert '\\"best\\"' in values["farfield_session_acted_total"]
    assert values["farfield_session_connected"].endswith(" 1")
