"""One run of the gateway: what is stored, once; what is refused, bounded; versions, marks, many runs at once."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest
from msgspec.structs import replace

from farfield.codec import decode_announcement, decode_dead, decode_fragment, encode_credit, encode_fragment
from farfield.errors import ConfigError, ConflictError, CorruptError, FullError, MissingError, SpecError
from farfield.serving.host import Host, name_of, outdated
from farfield.serving.hosted import DEAD, EXPERIENCES, PROBES, UPDATES, Hosted, Limits
from farfield.serving.letters import PAYLOAD, Letters, Tail
from farfield.serving.marks import RANGES, Marks
from farfield.serving.tokens import Token, Tokens, digest
from farfield.transports import disk, memory
from farfield.types import Credit, Hello
from hosting import FACTS, SPEC, STREAM, Runs, announce, fragment, payload, version

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(params=["memory", "disk"])
def runs(request, tmp_path):
    return Runs(tmp_path, request.param, spec=SPEC)


@pytest.fixture
def hosted(runs):
    hosted = runs.open("game", None)
    yield hosted
    hosted.close()


def records(log, topic=EXPERIENCES):
    found, place = [], {}
    while True:
        some, place = log.read(topic, after=place, limit=100, timeout=0.0)
        if not some:
            return found
        found += some


def stored(hosted):
    return [decode_fragment(record.payload).seq for record in records(hosted._log)]


def until(condition, seconds=20):
    done = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        done.wait(0.01)
    raise AssertionError("it never came true")


# -- what is stored ----------------------------------------------------------------------------------------------


def test_fragments_are_stored_as_they_came(hosted):
    sent = [payload(seq) for seq in range(3)]
    for each in sent:
        hosted.append(each, "me").result(20)
    found = records(hosted._log)
    assert [bytes(record.payload) for record in found] == sent
    assert {record.key for record in found} == {STREAM}


def test_a_fragment_that_comes_again_is_owned_and_stored_once(hosted):
    for seq in [0, 1, 0, 2, 1, 5, 5, 4, 3, 4]:
        hosted.append(payload(seq), "me").result(20)
    assert stored(hosted) == [0, 1, 2, 5, 4, 3]
    assert hosted.counters().total.repeated == 4


def test_what_the_log_retains_is_known_after_a_restart(runs):
    first = runs.open("game", None)
    for seq in [0, 1, 2, 7]:
        first.append(payload(seq), "me").result(20)
    first.append(encode_credit(Credit("game", STREAM, 3, 1.0, "add", "one")), "me").result(20)
    first.close()
    second = runs.open("game", None)
    for seq in [1, 7, 2, 3]:
        second.append(payload(seq), "me").result(20)
    found = [record for record in records(second._log) if len(record.payload) > 200]
    assert [decode_fragment(record.payload).seq for record in found] == [0, 1, 2, 7, 3]
    second.close()


class Slow:
    """A log whose records become durable when the test says so."""

    def __init__(self):
        self.futures, self.payloads = [], []

    def append(self, topic, payload, *, key):
        self.futures.append(Future())
        self.payloads.append(payload)
        return self.futures[-1]

    def read(self, topic, *, after, limit, timeout):
        return [], after

    def note(self, topic, group, cursor):
        pass

    def close(self):
        pass


@pytest.fixture
def slow():
    log = Slow()
    hosted = Hosted("game", log=log, spec=SPEC, pin=lambda _: None, facts=FACTS, limits=Limits())
    yield log, hosted
    hosted.close()


def test_a_repeated_fragment_is_owned_when_the_first_one_is(slow):
    log, hosted = slow
    first, second = hosted.append(payload(0), "me"), hosted.append(payload(0), "me")
    assert len(log.futures) == 1
    assert not second.done()
    log.futures[0].set_result(None)
    assert first.done()
    assert second.done()
    assert hosted.append(payload(0), "me").done()


def test_what_could_not_be_written_may_come_again(slow):
    log, hosted = slow
    first = hosted.append(payload(0), "me")
    log.futures[0].set_exception(FullError("the disk is full"))
    assert isinstance(first.exception(), FullError)
    assert hosted.counters().total.fragments == 0
    again = hosted.append(payload(0), "me")
    log.futures[1].set_result(None)
    assert again.exception() is None
    assert hosted.counters().total.fragments == 1


def test_no_room_is_said_at_once_and_nothing_is_noted(tmp_path):
    hosted = Runs(tmp_path, room=900, spec=SPEC).open("game", None)
    hosted.append(payload(0), "me").result(20)
    with pytest.raises(FullError):
        hosted.append(payload(1), "me")
    hosted._log.note(EXPERIENCES, "learner", {0: 1})
    hosted.append(payload(1), "me").result(20)
    assert stored(hosted) == [1]
    assert hosted.counters().total.put_off == 1
    hosted.close()


def test_what_can_never_fit_is_refused(tmp_path):
    hosted = Runs(tmp_path, room=100, spec=SPEC).open("game", None)
    with pytest.raises(SpecError, match="can never fit"):
        hosted.append(payload(0), "me")
    hosted.close()


@pytest.mark.parametrize("trouble", [CorruptError("damaged"), MissingError("closed"), ConflictError("taken")])
def test_trouble_of_the_log_is_no_fault_of_the_fragment(trouble):
    class Broken(Slow):
        def append(self, topic, payload, *, key):
            raise trouble

    hosted = Hosted("game", log=Broken(), spec=SPEC, pin=lambda _: None, facts=FACTS, limits=Limits())
    with pytest.raises(ConflictError):
        hosted.append(payload(0), "me")
    assert hosted.counters().total.refused == 0
    hosted.close()


def test_many_threads_store_each_fragment_once(hosted):
    with ThreadPoolExecutor(8) as pool:
        for future in list(pool.map(lambda seq: hosted.append(payload(seq % 20), "me"), range(160))):
            future.result(20)
    assert sorted(stored(hosted)) == list(range(20))
    assert hosted.counters().total.repeated == 140


def test_credits_are_stored_beside_fragments_and_checked(hosted):
    good = Credit("game", STREAM, 3, 1.0, "add", "one")
    hosted.append(encode_credit(good), "me").result(20)
    hosted.credit(encode_credit(good), "me").result(20)
    with pytest.raises(SpecError, match="finite"):
        hosted.append(encode_credit(replace(good, reward=float("inf"))), "me")
    with pytest.raises(SpecError, match="expected a Credit, came Fragment"):
        hosted.credit(payload(0), "me")
    assert len(records(hosted._log)) == 2
    assert hosted.counters().total.credits == 2
    assert hosted.counters().total.refused == 2


def test_probes_are_kept_apart_and_forgotten(hosted):
    for _ in range(150):
        hosted.probe(b"x").result(20)
    assert stored(hosted) == []
    # A log on disk frees what was noted with its next record.
    until(lambda: hosted.probe(b"x").result(20) or len(records(hosted._log, PROBES)) < 150)
    with pytest.raises(SpecError, match="at most 65536 bytes"):
        hosted.probe(bytes(65537))


# -- what is refused ---------------------------------------------------------------------------------------------


def test_what_is_refused_becomes_a_dead_letter_with_its_reason(hosted):
    bad = payload(0, reward=np.full((8, 1), np.nan, np.float32))
    for each in [bad, b"rubbish"]:
        with pytest.raises((SpecError, CorruptError)):
            hosted.append(each, "me")
    until(lambda: len(records(hosted._log, DEAD)) == 2)
    first, second = (decode_dead(record.payload) for record in records(hosted._log, DEAD))
    assert "column 'reward', element [0, 0]: expected a finite number, came nan" in first.reason
    assert (first.sender, first.size, first.payload) == ("me", len(bad), bad)
    assert "no farfield/v1 message" in second.reason
    assert stored(hosted) == []
    assert hosted.counters().total.refused == hosted.counters().clients["me"].refused == 2
    assert hosted.counters().dead_letters == 2


def test_a_dead_letter_holds_only_the_beginning_of_what_is_long(hosted):
    with pytest.raises(CorruptError):
        hosted.append(bytes(PAYLOAD + 5), "me")
    until(lambda: records(hosted._log, DEAD))
    letter = decode_dead(records(hosted._log, DEAD)[0].payload)
    assert (letter.size, len(letter.payload)) == (PAYLOAD + 5, PAYLOAD)


def test_payloads_over_the_limit_are_refused(tmp_path):
    hosted = Runs(tmp_path, limits=Limits(payload=500), spec=SPEC).open("game", None)
    with pytest.raises(CorruptError, match="over the limit of 500"):
        hosted.append(payload(0), "me")
    hosted.close()


def test_a_flood_of_rubbish_is_counted_and_not_written(tmp_path):
    now = [0.0]
    log = memory.make(memory.Config(wait=0.0))
    letters = Letters(log, DEAD, rate=2.0, burst=3.0, clock=lambda: now[0])
    for _ in range(10):
        letters.write("why", "me", b"x")
    assert (letters.written, letters.unwritten) == (3, 7)
    now[0] += 1.0
    for _ in range(10):
        letters.write("why", "me", b"x")
    assert (letters.written, letters.unwritten) == (5, 15)


def test_letters_are_not_written_where_there_is_no_room():
    letters = Letters(memory.make(memory.Config(room=200, wait=0.0)), DEAD)
    for _ in range(5):
        letters.write("why", "me", bytes(100))
    assert (letters.written, letters.unwritten) == (1, 4)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_only_the_newest_of_a_tail_are_kept(kind, tmp_path):
    log = memory.make(memory.Config()) if kind == "memory" else disk.make(disk.Config(str(tmp_path)))
    tail = Tail(log, "t", 3)
    tail.trim()
    for number in range(10):
        log.append("t", b"%d" % number, key="k").result(20)
    tail.trim()
    log.append("t", b"10", key="k").result(20)
    until(lambda: [bytes(record.payload) for record in records(log, "t")] == [b"7", b"8", b"9", b"10"])
    log.close()


# -- greeting ----------------------------------------------------------------------------------------------------


def test_the_first_spec_is_pinned_and_others_are_compared(tmp_path):
    runs = Runs(tmp_path)
    hosted = runs.open("game", None)
    with pytest.raises(SpecError, match="has no spec yet"):
        hosted.welcome(Hello("game"))
    welcome = hosted.welcome(Hello("game", spec=SPEC))
    assert (welcome.run, welcome.spec, welcome.version) == ("game", SPEC, -1)
    assert (welcome.seed, welcome.steps, welcome.window, welcome.credit_window) == (7, 8, 2, 0.0)
    assert (welcome.quota, welcome.limit) == (Limits().quota, Limits().payload)
    assert runs.pinned == {"game": SPEC}
    other = replace(SPEC, actions=(replace(SPEC.actions[0], sizes=(4,)),))
    with pytest.raises(SpecError, match="field 'action': sizes: expected"):
        hosted.welcome(Hello("game", spec=other))
    assert hosted.welcome(Hello("game")).spec == SPEC
    hosted.close()


def test_a_spec_that_cannot_be_pinned_is_not_taken(tmp_path):
    def refuse(spec):
        raise FullError("the disk is full")

    hosted = Hosted("game", log=Slow(), spec=None, pin=refuse, facts=FACTS, limits=Limits())
    with pytest.raises(FullError):
        hosted.welcome(Hello("game", spec=SPEC))
    assert hosted.spec is None
    hosted.close()


# -- versions ----------------------------------------------------------------------------------------------------


def test_a_follower_gets_just_the_tensors_that_it_lacks(hosted):
    assert hosted.announcement({}) is None
    announce(hosted._log, 1)
    until(lambda: hosted.release())
    first = decode_announcement(hosted.announcement({}))
    assert first.full
    assert sorted(first.weights) == ["logits/bias", "logits/kernel"]  # and never the critic's
    have = {name: first.version.tensors[name].sha256 for name in first.weights}
    announce(hosted._log, 2, names=["logits/kernel"], full=False)
    until(lambda: hosted.release().version.number == 2)
    second = decode_announcement(hosted.announcement(have))
    assert (second.version.number, second.full, sorted(second.weights)) == (2, False, ["logits/kernel"])
    assert decode_announcement(hosted.announcement({})).full
    assert decode_announcement(hosted.announcement(hosted.release().hashes)).weights == {}


def test_equal_needs_are_encoded_once(hosted):
    announce(hosted._log, 1)
    until(lambda: hosted.release())
    assert hosted.announcement({}) is hosted.announcement({"something": "else"})


def test_a_partial_announcement_without_its_base_waits_for_a_full_one(hosted):
    announce(hosted._log, 1, names=["logits/bias"], full=False)
    until(lambda: hosted.counters().broken_announcements)
    assert hosted.release() is None
    assert "'logits/kernel' is neither" in hosted.counters().trouble
    announce(hosted._log, 2)
    until(lambda: hosted.release())


def test_a_tensor_that_returns_to_the_last_full_announcement_is_known(hosted):
    announce(hosted._log, 1, scale=1.0)
    announce(hosted._log, 2, scale=2.0, names=["logits/kernel"], full=False)
    announce(hosted._log, 3, scale=1.0, names=[], full=False)
    until(lambda: hosted.release() and hosted.release().version.number == 3)
    np.testing.assert_array_equal(hosted.release().weights["logits/kernel"], np.ones((4, 3), np.float32))


def test_rubbish_among_announcements_is_counted(hosted):
    hosted._log.append(UPDATES, b"rubbish", key="k").result(20)
    announce(hosted._log, 1)
    until(lambda: hosted.release())
    assert hosted.counters().broken_announcements == 1


def test_a_restart_begins_with_the_log_and_else_with_the_registry(runs):
    first = runs.open("game", None)
    log = first._log
    announce(log, 3)
    until(lambda: first.release())
    first.close()
    second = runs.open("game", None)
    assert second.release().version.number == 3
    second.close()
    made, weights = version(9)
    head = weights | {"value/bias": np.zeros(1, np.float32)}
    other = Hosted(
        "other", log=runs.log("other"), spec=SPEC, pin=lambda _: None, facts=FACTS, limits=Limits(),
        newest=lambda: (made, head),
    )  # fmt: skip
    assert other.release().version.number == 9
    assert sorted(decode_announcement(other.announcement({})).weights) == ["logits/bias", "logits/kernel"]
    assert other.welcome(Hello("other")).version == 9
    other.close()


def test_listeners_hear_of_versions_and_of_settled_marks(hosted):
    heard = threading.Semaphore(0)
    stop = hosted.listen(heard.release)
    announce(hosted._log, 1)
    assert heard.acquire(timeout=20)
    announce(hosted._log, 1, settled={STREAM: 4})
    assert heard.acquire(timeout=20)
    assert hosted.settled == {STREAM: 4}
    stop()
    announce(hosted._log, 2)
    until(lambda: hosted.release().version.number == 2)
    assert not heard.acquire(blocking=False)


# -- counters ----------------------------------------------------------------------------------------------------


def test_everything_is_counted_by_client(hosted):
    sizes = [len(payload(seq)) for seq in range(3)]
    for seq in range(3):
        hosted.append(payload(seq), "one" if seq else "two").result(20)
    until(lambda: hosted.counters().total.fragments == 3)
    counters = hosted.counters()
    assert (counters.total.steps, counters.total.bytes) == (24, sum(sizes))
    assert counters.clients["one"].fragments == 2
    assert counters.clients["two"].steps == 8
    assert (counters.waiting, counters.streams, counters.version) == (0, 1, -1)
    assert counters.total.version == 1
    assert counters.total.last > 0


# -- marks -------------------------------------------------------------------------------------------------------


def test_marks_agree_with_a_set():
    generator = np.random.default_rng(0)
    marks, known = Marks(), set()
    for seq in generator.integers(0, 300, 1000).tolist():
        assert marks.known("s", seq) == (seq in known)
        marks.add("s", seq)
        known.add(seq)
        assert all(marks.known("s", other) == (other in known) for other in (seq - 1, seq, seq + 1))
    assert marks.below("s") == next(seq for seq in range(301) if seq not in known)
    assert not marks.known("t", 0)


def test_marks_are_bounded():
    marks = Marks(streams=3)
    for seq in range(0, 4 * RANGES, 2):
        marks.add("gaps", seq)
    assert not marks.known("gaps", 0)  # forgotten: stored again, learned once
    assert marks.known("gaps", 4 * RANGES - 2)
    for stream in ["a", "b", "gaps", "c"]:
        marks.add(stream, 9999)
    assert len(marks) == 3
    assert not marks.known("a", 9999)
    assert marks.known("gaps", 9999)


# -- many runs ---------------------------------------------------------------------------------------------------


def token(name, secret, scopes, runs=("*",)):
    return Token(name=name, sha256=digest(secret), scopes=scopes, runs=runs)


def test_a_run_is_opened_once_however_many_ask(tmp_path):
    runs = Runs(tmp_path, spec=SPEC)
    opened = []

    def open_run(run, config):
        opened.append(run)
        return runs.open(run, config)

    host = Host(open_run, Tokens())
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: host.greet(Hello("game"), "")[0], range(32)))
    assert opened == ["game"]
    assert len(set(map(id, found))) == 1
    assert host.find("game") is found[0]
    host.close()


def test_a_run_that_opens_slowly_does_not_hold_others(tmp_path):
    runs = Runs(tmp_path, spec=SPEC, create=("game", "slow"))
    go = threading.Event()

    def open_run(run, config):
        if run == "slow":
            assert go.wait(20)
        return runs.open(run, config)

    host = Host(open_run, Tokens())
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(host.greet, Hello("slow"), "")
        assert host.greet(Hello("game"), "")[1].run == "game"
        assert not waiting.done()
        go.set()
        assert waiting.result(20)[1].run == "slow"
    host.close()


def test_a_run_is_created_only_by_who_may(tmp_path):
    runs = Runs(tmp_path, create=())
    tokens = Tokens([token("plain", "p", ("ingest",)), token("maker", "m", ("ingest", "create"))])
    host = Host(runs.open, tokens)
    config = {"algorithm": {"kind": "ppo"}}
    with pytest.raises(MissingError):
        host.greet(Hello("game", spec=SPEC), "m")
    with pytest.raises(PermissionError, match="create"):
        host.greet(Hello("game", spec=SPEC, config=config), "p")
    assert host.greet(Hello("game", spec=SPEC, config=config), "m")[1].created
    assert not host.greet(Hello("game", spec=SPEC, config=config), "p")[1].created
    with pytest.raises(PermissionError):
        host.greet(Hello("game"), "nobody's")
    host.close()


def test_each_policy_of_a_run_is_a_run_of_its_own(tmp_path):
    runs = Runs(tmp_path, create=("game", "game.scout"), spec=SPEC)
    host = Host(runs.open, Tokens())
    scout, welcome = host.greet(Hello("game", policy="scout"), "")
    assert welcome.run == "game.scout"
    scout.append(encode_fragment(replace(fragment(0), policy="scout")), "me").result(20)
    assert host.find("game") is None
    host.close()


@pytest.mark.parametrize("run", ["", "../etc", ".hidden", "a/b", "a b", "a" * 101, "ü"])
def test_runs_have_names_that_are_safe_for_folders(run):
    with pytest.raises(ConfigError, match="run"):
        name_of(Hello(run))


@pytest.mark.parametrize("policy", ["../x", "a.b", "", "a" * 65])
def test_policies_have_names_without_dots(policy):
    with pytest.raises(ConfigError, match="policy"):
        name_of(Hello("game", policy=policy))


def test_another_protocol_is_said_to_be_older_or_newer():
    assert outdated(Hello("game")) == ""
    assert "the client is too old" in outdated(Hello("game", protocol=0))
    assert "this gateway is too old" in outdated(Hello("game", protocol=2))


def test_there_are_only_so_many_seats(tmp_path):
    host = Host(Runs(tmp_path).open, Tokens(), clients=1)
    with host.seat():
        with pytest.raises(FullError, match="its limit"), host.seat():
            pass
        assert host.clients == 1
    with host.seat():
        pass
    assert host.clients == 0


def test_a_host_that_was_closed_opens_nothing(tmp_path):
    host = Host(Runs(tmp_path, spec=SPEC).open, Tokens())
    host.greet(Hello("game"), "")
    host.drop("game")
    assert host.find("game") is None
    host.greet(Hello("game"), "")
    host.close()
    assert host.open_runs() == {}
    with pytest.raises(ConflictError, match="stopping"):
        host.greet(Hello("game"), "")
