"""The native core decides, records and encodes what NumPy does: same spec, weights and calls, same fragments."""

import gc
import hashlib
import inspect
import os
import threading
import weakref
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import test_policies as suite
from conformance.test_networks import CASES, Case
from farfield import canonical, codec
from farfield.errors import ConfigError, CorruptError, MissingError, SpecError
from farfield.experience import noise, slots, tracks
from farfield.learning import networks
from farfield.serving import decisions, native, snapshots
from farfield.types import Field, Kind, Spec, Version, acting

if not native.available() and os.environ.get("CI") != "true":
    pytest.skip("farfield._native was not built here: no C++ compiler", allow_module_level=True)

from farfield import _native

GOLDEN = Path(__file__).parent / "golden"
STREAM = "00112233445566778899aabbccddeeff"
ALL = (("gumbel", 3), ("uniform", 1), ("logistic", 2), ("normal", 3))
SLOTS = Field("obs", Kind.BOX, "float32", (6, 4))
ALLOWED = Field("mask", Kind.MULTI_BINARY, "bool", (6,))
PICK = Field("action", Kind.DISCRETE, "int64", (), (6,), mask="mask")
LAMPS = Field("action", Kind.MULTI_BINARY, "int8", (3,))
PLAYED = (
    "mlp, separate", "linear", "normalised", "gaussian, free", "gaussian, by state", "lstm", "gru", "masked", "one-hot",
    "q", "q, dueling, gru", "many inputs and heads", "many, lstm", "flat picture",
)  # fmt: skip
MORE = {
    "slots": Case((SLOTS, ALLOWED), (PICK,), networks.Config(kind="farfield.learning.kernel:build")),
    "half": Case(
        (Field("obs", Kind.BOX, "float16", (4,)),), (Field("action", Kind.BOX, "float16", (2,)),), networks.Config()
    ),
    "lamps": Case((Field("obs", Kind.BOX, "float64", (4,)),), (LAMPS,), networks.Config()),
}


# ---- the pieces


def test_noise_is_the_same_word_for_word():
    for first in (0, 7, 12345, 1 << 40, (1 << 62) + 5):
        ours = _native.draw(ALL, 3, STREAM, first, 5, 3)
        np.testing.assert_allclose(
            ours, noise.draw(ALL, seed=3, stream=STREAM, first=first, steps=5, lanes=3), rtol=1e-6
        )
    for name in ("gumbel", "logistic", "uniform", "normal"):
        for width in (1, 2, 7, 8, 9, 129):
            ours = _native.draw([(name, width)], 1 << 63, STREAM, 1, 20, 1)
            theirs = noise.draw([(name, width)], seed=1 << 63, stream=STREAM, first=1, steps=20, lanes=1)
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7)
    with pytest.raises(ConfigError, match="32 lower-case hexadecimal"):
        _native.draw(ALL, 1, "main", 0, 1, 1)
    with pytest.raises(ConfigError, match="known: gumbel"):
        _native.draw([("cauchy", 1)], 1, STREAM, 0, 1, 1)


@pytest.mark.parametrize("size", [0, 1, 55, 56, 63, 64, 65, 1000])
def test_hashes_are_those_of_hashlib(size):
    data = bytes(i * 7 % 256 for i in range(size))
    assert _native.sha256(data) == hashlib.sha256(data).hexdigest()


NUMBERS = [1.0, 0.1, 1e-5, 1e-7, 2.5e-6, 1 / 3, 1e15, 1e16, 1.5e17, 5e-324, 1.7976931348623157e308, -0.0, 123456.789]


@pytest.mark.parametrize("value", [*NUMBERS, 0, -3, 2**63, 2**64 - 1, True, None, 'a"\\/\b\f\n\r\t\x01é☃😀'], ids=str)
def test_canonical_json_is_written_alike(value):
    text = canonical.to_json({"z": value, "a": [value, {}], "": {"b": [], "a": value}})
    assert _native.canonical(text) == text


def test_random_numbers_are_written_alike():
    rng = np.random.default_rng(1)
    for value in rng.integers(0, 1 << 63, 3000).view(np.float64):
        if np.isfinite(value):
            text = canonical.to_json(float(value))
            assert _native.canonical(text) == text


def test_a_spec_has_the_same_name():
    for case in CASES.values():
        spec = Spec(case.observations, case.actions)
        assert _native.spec_hash(canonical.to_json(spec)) == canonical.spec_hash(spec)
    bounded = Spec((Field("obs", Kind.BOX, "float32", (2,), low=(-np.inf, 1), high=(np.inf, 2.5)),), (PICK,))
    assert _native.spec_hash(canonical.to_json(bounded)) == canonical.spec_hash(bounded)


def test_golden_payloads_are_read_and_written_alike():
    golden = (GOLDEN / "fragment.bin").read_bytes()
    fragment = codec.decode_fragment(golden)
    names = ("run", "stream", "seq", "version", "attempt", "spec", "decision", "policy", "actor", "source")
    head = {name: getattr(fragment, name) for name in names}
    assert _native.encode_fragment(**head, columns=fragment.columns) == golden
    same(_native.decode_fragment(golden), fragment.columns)
    credit = codec.decode_credit((GOLDEN / "credit.bin").read_bytes())
    fields = {"run": credit.run, "stream": credit.stream, "n": credit.n, "reward": credit.reward, "mode": credit.mode}
    assert _native.encode_credit(**fields, name=credit.id) == (GOLDEN / "credit.bin").read_bytes()
    announced = codec.decode_announcement((GOLDEN / "announcement.bin").read_bytes())
    manifest, tensors, full, settled = _native.decode_announcement((GOLDEN / "announcement.bin").read_bytes())
    assert canonical.from_json(manifest, Version) == announced.version
    same(tensors, announced.weights)
    assert (full, settled) == (announced.full, announced.settled)


def test_every_kind_of_array_is_encoded_alike():
    rng = np.random.default_rng(1)
    dtypes = ["bool", "int8", "int64", "uint16", "float16", "float32", "float64"]
    columns = {name: rng.integers(0, 2, (3, 2)).astype(name) for name in dtypes}
    columns |= {"": np.zeros((0, 4), np.int8), "one": np.float32(3).reshape(()), "long": np.zeros(200, np.uint8)}
    head = {"run": "ü", "stream": STREAM, "seq": 2**64 - 1, "version": 0, "attempt": 300, "spec": "5a" * 32}
    fragment = codec.Fragment(**head, columns=columns, decision=128, policy="", actor="a" * 300, source="host")
    ours = _native.encode_fragment(**head, columns=columns, decision=128, policy="", actor="a" * 300, source="host")
    assert ours == codec.encode_fragment(fragment)


def test_damaged_announcements_are_refused_and_never_crash():
    golden = (GOLDEN / "announcement.bin").read_bytes()
    for cut in range(len(golden)):
        with pytest.raises(CorruptError):
            _native.decode_announcement(golden[:cut])
    rng = np.random.default_rng(1)
    for _ in range(2000):
        broken = bytearray(golden)
        for _ in range(rng.integers(1, 4)):
            broken[rng.integers(len(broken))] = rng.integers(256)
        try:
            _native.decode_announcement(bytes(broken))
        except (CorruptError, SpecError, ConfigError):
            continue


@pytest.mark.parametrize("name", CASES)
def test_log_probabilities_are_those_of_numpy(name):
    spec, network, _ = prepared(CASES[name])
    rng = np.random.default_rng(3)
    fields = {field.name: field for field in spec.actions}
    logits, action = {}, {}
    for head in network.heads:
        field, lead = fields[head.action], (7, 3)
        wide = sum(field.sizes) or int(np.prod(field.shape, dtype=int))
        logits[head.inputs[0]] = rng.normal(0, 3, (*lead, wide)).astype(np.float32)
        if head.kind == "epsilon":
            logits[head.inputs[0]][rng.random((*lead, wide)) < 0.3] = -1e9
            logits[head.inputs[1]] = rng.random(lead).astype(np.float32)
        elif len(head.inputs) == 2:
            logits[head.inputs[1]] = rng.normal(-1, 1, (*lead, wide)).astype(np.float32)
        action[field.name] = drawn(field, rng, lead)
    ours = _native.log_prob(canonical.to_json(spec), canonical.to_json(network), logits, action)
    theirs = decisions.log_prob(spec, network, logits, action)
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-5)


# ---- the policy

PASSED = [
    name for name, test in inspect.getmembers(suite, inspect.isfunction)
    if name.startswith("test_") and not inspect.signature(test).parameters and test.__module__ == suite.__name__
    and name not in ("test_an_unknown_operator_is_named", "test_observations_and_noise_of_other_shapes_are_refused",
                     "test_a_missing_tensor_is_named_and_nothing_changes")
]  # fmt: skip


@pytest.mark.parametrize("name", PASSED)
def test_the_native_policy_passes_the_tests_of_the_numpy_one(name, monkeypatch):
    monkeypatch.setattr(suite, "policies", native)
    getattr(suite, name)()


def test_a_broken_version_changes_nothing(monkeypatch):
    monkeypatch.setattr(suite, "policies", native)
    policy, weights = suite.loaded(suite.ONE)
    before = policy.act({"obs": suite.observed()}, noise=None, memory={}).action["action"]
    broken = {name: value + 1 for name, value in weights.items() if name != "policy/1/bias"}
    with pytest.raises(
        CorruptError, match=r"version 3 of 'r': tensor 'policy/1/bias': expected float32 \[64\], came no"
    ):
        policy.load(suite.version(policy.spec, policy.network), broken)
    assert (policy.act({"obs": suite.observed()}, noise=None, memory={}).action["action"] == before).all()
    with pytest.raises(SpecError, match=r"'obs': expected shape \[8, 4\], came \[8, 3\]"):
        policy.act({"obs": np.zeros((8, 3), np.float32)}, noise=None, memory={})
    with pytest.raises(ConfigError, match="unknown operator 'tahn'"):
        _native.Program(canonical.to_json(policy.network).replace(b'"tanh"', b'"tahn"'), weights, 1, ["policy/0/tanh"])


# ---- tracks


def drawn(field, rng, lead=()):
    """Draw a value of a field; masks always allow something."""
    shape = (*lead, *field.shape)
    if field.kind is Kind.BOX and field.dtype.startswith("float"):
        return rng.standard_normal(shape).astype(field.dtype)
    if field.name.startswith("mask"):
        return np.asarray(rng.random(shape) < 0.7).astype(field.dtype) | (np.arange(shape[-1]) % 3 == 0)
    most = {Kind.BOX: (256,), Kind.MULTI_BINARY: (2,)}.get(field.kind, field.sizes)
    return rng.integers(0, most[0] if len(most) == 1 else most, shape).astype(field.dtype)


def prepared(case, seed=0):
    """Build spec, network and weights that matter."""
    spec = Spec(case.observations, case.actions)
    network = networks.build(case.config, spec, style=case.style, log_std=case.log_std, dueling=case.dueling)
    rng = np.random.default_rng(seed)
    weights = networks.initialise(network, seed=seed)
    for name, tensor in weights.items():
        wide = 1 / max(4, np.prod(tensor.shape[:-1], dtype=float)) ** 0.5  # so that values keep their size
        low, high = (0.5, 2) if name.startswith("normalise") else (-wide, wide)
        weights[name] = np.asarray(tensor + rng.uniform(low, high, tensor.shape), np.float32)
    if "epsilon" in weights:
        weights["epsilon"] = np.float32(0.4).reshape(())
    return spec, network, weights


class Pair:
    """A native track and one of NumPy's, called alike; what they give must be equal."""

    def __init__(self, case, *, lanes=0, steps=7):
        self.spec, self.network, self.weights = prepared(case)
        self.lanes, self.number = lanes, 0
        self.emitted = ([], [])
        self.slots = (_native.Slot(), slots.Slot())
        text = canonical.to_json(self.spec)
        names = {
            "run": "r",
            "policy": "main",
            "actor": "a",
            "stream": STREAM,
            "seed": 5,
            "steps": steps,
            "lanes": lanes,
        }
        self.tracks = tuple(
            kind.Track(slot, text, emit=lambda payload, rows, into=into: into.append((payload, rows)), **names)
            for kind, slot, into in zip((_native, tracks), self.slots, self.emitted, strict=True)
        )

    def publish(self, weights=None):
        """Put a version into both slots."""
        self.number += 1
        version = Version("r", self.number, 2, None, 0, self.spec, self.network, {})
        given = {name: (weights or self.weights)[name] for name in acting(self.network)}
        for slot, kind in zip(self.slots, (_native, snapshots), strict=True):
            slot.put(kind.Snapshot(canonical.to_json(version), given))

    def change(self, rng):
        """Put a version with other weights."""
        self.publish({name: value * np.float32(rng.uniform(0.8, 1.2)) for name, value in self.weights.items()})

    def call(self, name, *args, **kwargs):
        """Call both; give what came."""
        ours, theirs = (getattr(track, name)(*args, **kwargs) for track in self.tracks)
        alike(ours, theirs, name)
        for prop in ("seq", "rows", "decision", "version"):
            assert getattr(self.tracks[0], prop) == getattr(self.tracks[1], prop), prop
        return ours

    def refused(self, name, *args, **kwargs):
        """Call both with something that must be refused with the same words."""
        said = []
        for track in self.tracks:
            with pytest.raises((SpecError, MissingError, ConfigError)) as caught:
                getattr(track, name)(*args, **kwargs)
            said.append((type(caught.value), str(caught.value)))
        assert said[0] == said[1]
        return said[0][1]

    def compare(self):
        """Compare all fragments; give them decoded."""
        ours, theirs = self.emitted
        assert [rows for _, rows in ours] == [rows for _, rows in theirs]
        found = []
        for (one, _), (other, _) in zip(ours, theirs, strict=True):
            a, b = codec.decode_fragment(one), codec.decode_fragment(other)
            assert list(a.columns) == list(b.columns)
            assert len(one) == len(other)
            for field in (
                "run",
                "stream",
                "seq",
                "version",
                "attempt",
                "spec",
                "decision",
                "policy",
                "actor",
                "source",
            ):
                assert getattr(a, field) == getattr(b, field), field
            for name, column in a.columns.items():
                alike(column, b.columns[name], name)
            found.append(a)
        return found


def alike(ours, theirs, what=""):
    """Bit for bit, but for numbers that were computed: those within 1e-5."""
    assert type(ours) is type(theirs), what
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), what
        for name, value in ours.items():
            alike(value, theirs[name], name)
    elif isinstance(ours, np.ndarray):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), what
        if ours.dtype.kind == "f" and what != "reward":
            near = 1e-3 if ours.dtype == np.float16 else 1e-5
            np.testing.assert_allclose(ours, theirs, rtol=near, atol=near, err_msg=what)
        else:
            np.testing.assert_array_equal(ours, theirs, err_msg=what)
    else:
        assert ours == theirs, what


def same(a, b):
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert (value.dtype, value.shape, value.tobytes()) == (b[name].dtype, b[name].shape, b[name].tobytes()), name


def seen(pair, rng):
    """Draw observations as a program hands them over: one alone as it is, several as a dict, masks beside them."""
    lead = (pair.lanes,) if pair.lanes else ()
    given = {field.name: drawn(field, rng, lead) for field in pair.spec.observations}
    masks = {name: given.pop(name) for name in list(given) if name.startswith("mask")}
    obs = next(iter(given.values())) if len(given) == 1 else {name.removeprefix("obs/"): v for name, v in given.items()}
    return obs, masks.get("mask") if set(masks) == {"mask"} else masks or None


def play(pair, rng, turns):
    """Make a random program run on both."""
    lead = (pair.lanes,) if pair.lanes else ()
    pair.publish()
    for _ in range(turns):
        obs, mask = seen(pair, rng)
        dice = rng.random()
        if dice < 0.06:
            chosen = {field.name: drawn(field, rng, lead) for field in pair.spec.actions}
            if mask is None:
                pair.call("record", obs, chosen, rng.normal(size=lead).astype(np.float32), source="person")
        elif dice < 0.1:
            pair.call("end", truncated=bool(rng.integers(2)), obs=obs if rng.integers(2) else None)
        elif dice < 0.18 and lead:
            pair.call("act", obs, mask)
            over = rng.random(pair.lanes) < 0.4
            pair.call("restart", over, truncated=over & (rng.random(pair.lanes) < 0.5), obs=obs, mask=mask)
        elif dice < 0.21:
            pair.call("cut")
        elif dice < 0.26:
            pair.change(rng)
        elif dice < 0.32 and pair.tracks[0].rows:
            n = pair.tracks[0].decision - int(rng.integers(0, 9))
            pair.call("credit", n, float(rng.normal()), str(rng.choice(["add", "set"])))
        else:
            pair.call("act", obs, mask, greedy=dice > 0.95)
            for _ in range(rng.integers(0, 3)):
                pair.call("reward", rng.normal(size=lead) if lead else float(rng.normal()))
    pair.call("end")
    pair.call("cut")


@pytest.mark.parametrize("lanes", [0, 1, 3])
@pytest.mark.parametrize("name", [*PLAYED, *MORE])
def test_any_program_gives_equal_fragments(name, lanes):
    pair = Pair((CASES | MORE)[name], lanes=lanes)
    play(pair, np.random.default_rng(len(name) + lanes), 150)
    found = pair.compare()
    assert len(found) > 10
    assert any("version" in one.columns for one in found)
    assert any("log_prob" in one.columns for one in found)
    if lanes == 3:
        assert any("final/index" in one.columns for one in found)


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_wrong_values_are_refused_with_the_same_words_and_change_nothing():
    pair = Pair(CASES["mlp, separate"])
    obs = np.zeros(4, np.float32)
    assert "no version" in pair.refused("act", obs)
    pair.publish()
    assert "no decision" in pair.refused("reward", 1.0)
    pair.call("act", obs)
    for bad in (
        np.zeros(3, np.float32), np.zeros((1, 4), np.float32), np.zeros(4, np.complex64), "left", None,
        np.array([0, np.nan, 0, 0], np.float32), [0, 0, float("inf"), 0], np.full(4, 1e300), {"obz": obs}, {}, [[], 1],
    ):  # fmt: skip
        pair.refused("act", bad)
        pair.refused("record", bad, 0, 0.0)
    pair.refused("act", obs, mask=[True])
    for bad in ("much", float("nan"), float("inf"), 1e39, None, [1.0, 2.0]):
        pair.refused("reward", bad)
    for bad in (2, -1, 0.5, None, [0], "left", {"acion": 1}):
        pair.refused("record", obs, bad, 0.0)
    pair.refused("record", obs, 1, float("nan"))
    pair.refused("record", obs, 1, 0.0, source="")
    pair.refused("restart", [True])
    pair.refused("end", truncated=True, obs=np.zeros(5))
    pair.refused("credit", 0, float("inf"))
    assert pair.call("credit", -1, 1.0) is False
    assert pair.call("credit", 10**9, 1.0) is False
    pair.call("reward", np.float32(0.5))
    pair.call("end")
    pair.call("end")
    columns = pair.compare()[-1].columns if pair.emitted[0] else {}
    assert not columns
    pair.call("cut")
    assert pair.compare()[0].columns["reward"].tolist() == [[0.5]]


def test_a_forbidden_action_is_not_recorded():
    pair = Pair(CASES["masked"])
    pair.publish()
    obs, mask = np.zeros(4, np.float32), np.array([True, False, False, True, False, False])
    assert "expected one of [0, 3]" in pair.refused("record", obs, 1, 0.0, mask=mask)
    pair.call("record", obs, 3, 0.0, mask=mask)
    pair.call("record", obs, 1, 0.0, mask=np.zeros(6, bool))
    assert "'mask' is missing" in pair.refused("act", obs)
    for _ in range(30):
        assert pair.call("act", obs, mask) in (0, 3)


def test_values_of_other_types_are_converted_alike():
    pair = Pair(CASES["many, separate"])
    pair.publish()
    rng = np.random.default_rng(2)
    for _ in range(30):
        obs, mask = seen(pair, rng)
        obs = {
            key: value.astype(np.int16) if value.dtype.kind in "iu" else value.tolist() for key, value in obs.items()
        }
        obs["pose/0"] = np.asarray(obs["pose/0"], ">f8").T.copy().T
        mask = {key.removeprefix("mask/"): value.astype(np.int64) for key, value in mask.items()}
        pair.call("act", obs, mask)
        pair.call("reward", 1)
    assert "values from 0" in pair.refused("act", obs | {"gear": 5}, mask)
    assert "float" in pair.refused("act", obs | {"gear": 1.0}, mask)
    pair.refused("act", obs | {"ram": np.full(8, 256)}, mask)
    assert pair.compare()


@pytest.mark.parametrize("name", ["mlp, separate", "gru", "lstm"])
def test_decisions_of_a_server_are_recorded_alike(name):
    pair = Pair(CASES[name], lanes=2, steps=4)
    rng = np.random.default_rng(4)
    memory = {node: rng.random((2, *shape)).astype(np.float32) for node, shape in pair.network.memory.items()}
    for version in (3, 3, 4, 4, 4, 5):
        obs = rng.standard_normal((2, 4)).astype(np.float32)
        score = rng.random(2).astype(np.float32)
        pair.call("put", obs, np.array([0, 1]), score, memory=memory or None, version=version, attempt=1)
        pair.call("reward", np.ones(2))
    pair.publish()
    pair.call("act", obs)
    pair.call("put", obs, np.array([1, 1]), None if name == "none" else 0.5, version=9, attempt=1, source="fallback")
    pair.call("end", truncated=True)
    pair.call("cut")
    assert len(pair.compare()) >= 2


def test_another_network_in_the_middle_of_a_fragment_is_scored_with_its_own_outputs():
    pair = Pair(CASES["gru"], steps=20)
    pair.publish()
    rng = np.random.default_rng(4)
    for turn in range(12):
        if turn == 5:
            case = CASES["mlp, shared, relu"]
            _, pair.network, pair.weights = prepared(case)
            pair.publish()
        pair.call("act", seen(pair, rng)[0])
    pair.call("cut")
    assert pair.compare()


def test_a_version_of_another_spec_is_refused():
    pair, other = Pair(CASES["mlp, separate"]), Pair(CASES["gaussian, free"])
    version = Version("r", 1, 0, None, 0, other.spec, other.network, {})
    pair.slots[0].put(_native.Snapshot(canonical.to_json(version), other.weights))
    with pytest.raises(SpecError, match="was made for the spec"):
        pair.tracks[0].act(np.zeros(4, np.float32))


def test_a_broken_snapshot_is_refused_with_its_tensor():
    spec, network, weights = prepared(CASES["mlp, separate"])
    text = canonical.to_json(Version("r", 3, 1, None, 0, spec, network, {}))
    name = "policy/0/kernel"
    for broken in (
        {key: value for key, value in weights.items() if key != name},
        weights | {name: np.zeros((5, 64), np.float32)},
        weights | {name: np.zeros((4, 64))},
        weights | {name: np.full((4, 64), np.inf, np.float32)},
    ):
        for kind in (_native, snapshots):
            with pytest.raises(CorruptError, match=f"{name}"):
                kind.Snapshot(text, broken)
    with pytest.raises(CorruptError):
        _native.Snapshot(text[:-20], weights)


def test_advice_scores_every_choice_and_changes_nothing():
    pair = Pair(CASES["mlp, separate"])
    pair.publish()
    obs = np.ones(4, np.float32)
    before = pair.tracks[0].decision
    scores = pair.tracks[0].scores(obs)
    assert np.exp(scores).sum() == pytest.approx(1, abs=1e-6)
    assert pair.tracks[0].decision == before
    assert pair.call("act", obs, greedy=True) == scores.argmax()


def test_many_threads_may_use_one_track():
    pair = Pair(CASES["mlp, separate"], steps=16)
    pair.publish()
    track, obs = pair.tracks[0], np.ones(4, np.float32)

    def work():
        for i in range(500):
            track.act(obs)
            if i % 7 == 0:
                track.cut()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        pair.publish()
    for thread in threads:
        thread.join()
    track.cut()
    found = [codec.decode_fragment(payload) for payload, _ in pair.emitted[0]]
    found.sort(key=lambda one: one.seq)
    assert [one.seq for one in found] == list(range(len(found)))
    assert sum(len(one.columns["reward"]) for one in found) + track.rows == 2000
    for one, following in pairwise(found):
        assert following.decision == one.decision + len(one.columns["reward"])


def test_a_track_that_only_its_own_callback_holds_goes_away():
    class Holder:
        def take(self, payload, rows):
            raise AssertionError("nothing is finished here")

    holder = Holder()
    names = {"run": "r", "policy": "main", "actor": "", "stream": STREAM, "seed": 1, "steps": 4, "lanes": 0}
    spec = canonical.to_json(prepared(CASES["mlp, separate"])[0])
    holder.track = _native.Track(_native.Slot(), spec, emit=holder.take, **names)
    watch = weakref.ref(holder)
    del holder
    gc.collect()
    assert watch() is None


def test_what_the_callback_raises_reaches_the_caller():
    def emit(payload, rows):
        raise OSError("no room")

    names = {"run": "r", "policy": "main", "actor": "", "stream": STREAM, "seed": 1, "steps": 1, "lanes": 0}
    pair = Pair(CASES["mlp, separate"])
    pair.publish()
    track = _native.Track(pair.slots[0], canonical.to_json(pair.spec), emit=emit, **names)
    track.act(np.zeros(4, np.float32))
    with pytest.raises(OSError, match="no room"):
        track.act(np.zeros(4, np.float32))
    assert track.decision == 1
    with pytest.raises(TypeError):
        _native.Track.__new__(_native.Track).act(np.zeros(4, np.float32))


def test_an_observation_whose_conversion_uses_the_track_does_no_harm():
    pair = Pair(CASES["many, separate"])
    pair.publish()
    rng = np.random.default_rng(3)
    obs, mask = seen(pair, rng)
    track = pair.tracks[0]

    class Odd:
        def __array__(self, dtype=None, copy=None):
            track.act(obs, mask)
            gc.collect()
            return obs["camera"].copy()

    for _ in range(20):
        track.act({key: Odd() if key == "camera" else value for key, value in obs.items()}, mask)
    track.cut()
    assert sum(rows for _, rows in pair.emitted[0]) + track.rows == 40
