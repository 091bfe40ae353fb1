"""What the gateway lets in, and what it says of everything else."""

import numpy as np
import pytest
from msgspec.structs import replace

from farfield.canonical import spec_hash
from farfield.codec import decode_fragment, encode_fragment
from farfield.errors import SpecError
from farfield.serving.admission import Admission, check_credit
from farfield.serving.specs import compare, sound
from farfield.types import Credit, Field, Kind, Spec
from hosting import SPEC, STREAM, fragment

MIXED = Spec(
    (
        Field("obs/camera", Kind.BOX, "uint8", (2, 2, 3), low=(0.0,), high=(255.0,)),
        Field("obs/speed", Kind.BOX, "float64", (2,), low=(-1.0, float("-inf")), high=(1.0, 5.0)),
        Field("obs/gear", Kind.DISCRETE, "int8", (), (5,)),
        Field("mask/choose", Kind.MULTI_BINARY, "bool", (5,)),
    ),
    (
        Field("action/choose", Kind.MULTI_DISCRETE, "int64", (2,), (2, 3), mask="mask/choose"),
        Field("action/steer", Kind.BOX, "float32", (1,), low=(-1.0,), high=(1.0,)),
        Field("action/lamps", Kind.MULTI_BINARY, "int8", (3,)),
    ),
)


def admission(spec=SPEC, run="game", lanes=16):
    return Admission(spec, run=run, lanes=lanes)


def refusal(changed, **options):
    with pytest.raises(SpecError) as caught:
        admission(**options).check(changed, options.get("memory"))
    return str(caught.value)


def mixed(steps=3, lanes=2, **changes):
    rows = (steps, lanes)
    found = {
        "obs/camera": np.full((steps + 1, lanes, 2, 2, 3), 200, np.uint8),
        "obs/speed": np.zeros((steps + 1, lanes, 2)),
        "obs/gear": np.full((steps + 1, lanes), 4, np.int8),
        "mask/choose": np.ones((steps + 1, lanes, 5), bool),
        "action/choose": np.ones((*rows, 2), np.int64),
        "action/steer": np.full((*rows, 1), 3, np.float32),
        "action/lamps": np.ones((*rows, 3), np.int8),
        "reward": np.zeros(rows, np.float32),
        "log_prob": np.zeros(rows, np.float32),
        "terminated": np.zeros(rows, bool),
        "truncated": np.zeros(rows, bool),
        "valid": np.ones(rows, bool),
        "first": np.zeros(rows, bool),
    }
    return replace(fragment(), spec=spec_hash(MIXED), columns=found | changes)


@pytest.mark.parametrize("shape", [(1, 1), (8, 1), (5, 3)])
def test_good_fragments_are_counted_in_steps(shape):
    steps, lanes = shape
    good = fragment(steps=steps, lanes=lanes)
    assert admission().check(good) == steps * lanes
    assert admission().check(decode_fragment(encode_fragment(good))) == steps * lanes


def test_rows_that_are_no_steps_are_not_counted():
    valid = np.ones((8, 1), bool)
    valid[4] = False
    assert admission().check(fragment(valid=valid)) == 7


@pytest.mark.parametrize("name", ["obs", "action", "reward", "terminated", "truncated", "valid", "first", "log_prob"])
def test_a_missing_column_is_named(name):
    assert repr(name) in refusal(fragment(**{name: None}))


def test_an_unknown_column_is_named():
    assert "'rewards' is unknown; did you mean reward" in refusal(fragment(rewards=np.zeros(3)))


@pytest.mark.parametrize(
    ("name", "column", "words"),
    [
        ("obs", np.zeros((9, 1, 5), np.float32), "expected float32 [9, 1, 4], came float32 [9, 1, 5]"),
        ("obs", np.zeros((8, 1, 4), np.float32), "expected float32 [9, 1, 4], came float32 [8, 1, 4]"),
        ("obs", np.zeros((9, 1, 4)), "expected float32 [9, 1, 4], came float64"),
        ("action", np.zeros((8, 1), np.int32), "expected int64 [8, 1], came int32 [8, 1]"),
        ("action", np.zeros((8, 2), np.int64), "expected int64 [8, 1], came int64 [8, 2]"),
        ("action", np.full((8, 1), 3), "expected 0 to 2, came 3"),
        ("action", np.full((8, 1), -1), "expected 0 to 2, came -1"),
        ("reward", np.zeros((8, 1)), "[8, 1]"),
        ("reward", np.zeros(8, np.float32), "expected shape [T, N]"),
        ("reward", np.zeros((0, 1), np.float32), "expected shape [T, N]"),
        ("reward", np.zeros((8, 17), np.float32), "N from 1 to 16"),
        ("terminated", np.zeros((8, 1), np.uint8), "expected bool [8, 1], came uint8 [8, 1]"),
        ("valid", np.ones((7, 1), bool), "expected bool [8, 1], came bool [7, 1]"),
        ("log_prob", np.zeros((8, 2), np.float32), "expected float32 [8, 1], came float32 [8, 2]"),
        ("version", np.ones(7, np.int64), "expected int64 [8], came int64 [7]"),
        ("version", np.full(8, 2), "1 first"),
        ("version", np.array([1, 2, 3, 4, -5, 6, 7, 8]), "expected numbers from 0"),
        ("episode/return", np.zeros(99, np.float32), "at most 8 numbers"),
        ("episode/length", np.zeros(3, np.int32), "expected int32 [0], came int32 [3]"),
        ("episode/length", None, "expected both or none"),
        ("final/index", np.zeros((1, 2), np.int32), "'final/obs' is missing"),
        ("final/obs", np.zeros((1, 4), np.float32), "'final/obs' is unknown"),
        ("memory/gru", np.zeros((2, 4), np.float32), "expected float32 [1, 4], came float32 [2, 4]"),
    ],
)
def test_what_does_not_fit_is_named_with_what_was_expected_and_came(name, column, words):
    text = refusal(fragment(**{name: column}))
    assert repr(name) in text
    assert words in text


@pytest.mark.parametrize("name", ["obs", "reward", "log_prob"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_found(name, value):
    good = fragment()
    column = good.columns[name].copy()
    column[5, 0, ...] = value
    text = refusal(fragment(**{name: column}))
    assert f"column {name!r}, element [5, 0" in text
    assert "expected a finite number" in text


def test_huge_rewards_are_numbers():
    assert admission().check(fragment(reward=np.full((8, 1), 3e38, np.float32))) == 8


def test_observations_may_overstep_their_bounds_by_the_width_of_the_range():
    seen = np.zeros((9, 1, 4), np.float32)
    seen[2, 0, 1] = 29.0
    assert admission().check(fragment(obs=seen)) == 8
    seen[2, 0, 1] = -31.0
    assert "element [2, 0, 1]: expected at least -30.0" in refusal(fragment(obs=seen))


def test_fields_of_every_kind_are_checked():
    gate = admission(MIXED)
    assert gate.check(mixed()) == 6
    for name, place, value in [
        ("obs/gear", (0, 1), 5),
        ("obs/gear", (0, 1), -1),
        ("obs/speed", (1, 1, 0), 3.5),
        ("obs/speed", (1, 1, 1), 11.0),
        ("obs/speed", (1, 1, 1), np.nan),
        ("action/choose", (0, 0, 0), 2),
        ("action/choose", (0, 0, 1), 3),
        ("action/steer", (0, 0, 0), np.inf),
        ("action/lamps", (2, 1, 2), 2),
    ]:
        column = mixed().columns[name].copy()
        column[place] = value
        assert f"{name!r}, element {list(place)}" in refusal(mixed(**{name: column}), spec=MIXED)


def test_an_action_that_its_mask_forbids_is_refused():
    mask = np.ones((4, 2, 5), bool)
    mask[1, 1, 3] = False  # the second choice's number 1
    text = refusal(mixed(**{"mask/choose": mask}), spec=MIXED)
    assert "'action/choose', row 1, lane 1: expected one of [0, 2], which 'mask/choose' allows, came 1" in text
    mask[1, 1] = False  # nothing is allowed: nothing is forbidden
    assert admission(MIXED).check(mixed(**{"mask/choose": mask})) == 6


def test_masks_do_not_bind_rows_that_are_no_steps():
    mask, valid = np.ones((4, 2, 5), bool), np.ones((3, 2), bool)
    mask[1, 1, 3] = valid[1, 1] = False
    assert admission(MIXED).check(mixed(**{"mask/choose": mask, "valid": valid})) == 5


def test_only_the_policy_has_log_probabilities():
    assert admission().check(fragment(source="person")) == 8
    scored = fragment(source="person", log_prob=np.zeros((8, 1), np.float32))
    assert "expected none, since 'person' decided, came one" in refusal(scored)
    assert "expected one, since the policy itself decided, came none" in refusal(fragment(log_prob=None))


def test_episodes_end_in_real_steps():
    ends = np.zeros((8, 1), bool)
    ends[3] = True
    assert admission().check(fragment(terminated=ends)) == 8
    assert "expected true where an episode ends" in refusal(fragment(terminated=ends, valid=~ends))


def test_last_observations_stand_where_lanes_were_reset_at_once():
    ends = np.zeros((8, 2), bool)
    ends[3, 1] = True
    final = {"final__index": np.array([[3, 1]], np.int32), "final__obs": np.zeros((1, 4), np.float32)}
    assert admission().check(fragment(lanes=2, truncated=ends, **final)) == 16
    assert "within [8, 2]" in refusal(fragment(lanes=2, **final | {"final__index": np.array([[8, 0]], np.int32)}))
    assert "'final/obs'" in refusal(fragment(lanes=2, **final | {"final__obs": np.full((1, 4), np.nan, np.float32)}))


def test_memory_is_what_the_network_remembers():
    known, state = {"gru": (4,)}, np.zeros((1, 4), np.float32)
    gate = admission()
    assert gate.check(fragment(memory__gru=state), known) == 8
    assert gate.check(fragment(memory__gru=state)) == 8  # before there is a version
    assert gate.check(fragment(source="person"), known) == 8
    for changed, words in [
        (fragment(), "'memory/gru' is missing"),
        (fragment(memory__lstm=state), "remembers nothing of that name"),
        (fragment(memory__gru=np.zeros((1, 5), np.float32)), "expected float32 [1, 4]"),
        (fragment(memory__gru=np.full((1, 4), np.inf, np.float32)), "finite"),
    ]:
        with pytest.raises(SpecError, match="memory") as caught:
            gate.check(changed, known)
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": "other"}, "expected 'game', came 'other'"),
        ({"policy": "scout"}, "with policy 'scout'"),
        ({"spec": "ab" * 32}, "spec: expected"),
        ({"seq": 1 << 63}, "seq: expected at most"),
        ({"version": 1 << 63}, "version: expected at most"),
        ({"decision": (1 << 63) - 2}, "decision: expected at most"),
        ({"actor": "a" * 300}, "actor: expected at most 256"),
        ({"source": "a\nb"}, "source: expected at most 256 printable"),
    ],
)
def test_what_the_fragment_says_of_itself_is_checked(changes, words):
    assert words in refusal(replace(fragment(), **changes))


def test_the_run_of_a_policy_goes_by_either_name():
    for run, policy in [("game.scout", "main"), ("game", "scout"), ("game.scout", "scout")]:
        assert admission(run="game.scout").check(replace(fragment(), run=run, policy=policy)) == 8
    assert "expected 'game.scout'" in refusal(fragment(), run="game.scout")


def test_credits_are_checked():
    good = Credit("game", STREAM, 3, 1.0, "add", "one")
    check_credit(good, "game")
    check_credit(good, "game.scout")
    for changes, words in [
        ({"run": "other"}, "run: expected 'game', came 'other'"),
        ({"reward": float("nan")}, "finite"),
        ({"reward": 1e300}, "finite"),
        ({"n": 1 << 63}, "n: expected at most"),
        ({"id": ""}, "a name of its own"),
        ({"id": "i" * 300}, "at most 256"),
    ]:
        with pytest.raises(SpecError, match=words):
            check_credit(replace(good, **changes), "game")


@pytest.mark.parametrize(
    ("where", "changes", "words"),
    [
        ("observations", {"name": ""}, "a printable name"),
        ("observations", {"name": "reward"}, "a printable name"),
        ("observations", {"name": "memory/x"}, "a printable name"),
        ("observations", {"name": "action"}, "a name of its own"),
        ("observations", {"dtype": "object"}, "one of the dtypes"),
        ("observations", {"shape": (0,)}, "none of them empty"),
        ("observations", {"shape": (1 << 20, 1 << 20)}, "16777216 elements"),
        ("observations", {"sizes": (2,)}, "no sizes"),
        ("observations", {"low": (0.0, 1.0)}, "as bounds nothing, one number"),
        ("observations", {"low": (float("nan"),)}, "as bounds nothing, one number"),
        ("observations", {"low": (11.0,)}, "low bounds below high ones"),
        ("observations", {"mask": "obs"}, "a mask only of choices"),
        ("actions", {"sizes": ()}, "one size"),
        ("actions", {"sizes": (0,)}, "sizes from 1"),
        ("actions", {"dtype": "float32"}, "an integer dtype"),
        ("actions", {"shape": (1,)}, "no shape"),
        ("actions", {"kind": Kind.MULTI_DISCRETE}, "a size for each element"),
        ("actions", {"kind": Kind.MULTI_BINARY}, "no sizes"),
        ("actions", {"mask": "lost"}, "its mask 'lost' should be an observation of shape [3]"),
        ("actions", {"mask": "obs"}, "its mask 'obs' should be an observation of shape [3]"),
    ],
)
def test_a_spec_that_nothing_can_be_made_for_is_refused(where, changes, words):
    sound(SPEC)
    sound(MIXED)
    with pytest.raises(SpecError) as caught:
        sound(replace(SPEC, **{where: (replace(getattr(SPEC, where)[0], **changes),)}))
    assert words in str(caught.value)
    with pytest.raises(SpecError, match="expected at least one field"):
        sound(replace(SPEC, **{where: ()}))


def test_equal_specs_are_equal_however_their_numbers_are_written():
    field = replace(SPEC.observations[0], low=(-10,), high=(10,))
    compare("game", SPEC, replace(SPEC, observations=(field,)))


@pytest.mark.parametrize(
    ("field", "changes", "words"),
    [
        ("observations", {"shape": (5,)}, "field 'obs': shape: expected [4], came [5]"),
        ("observations", {"dtype": "float64"}, "field 'obs': dtype: expected 'float32', came 'float64'"),
        ("observations", {"high": (11.0,)}, "field 'obs': high: expected [10.0], came [11.0]"),
        ("observations", {"name": "seen"}, "observations: expected ['obs'] in this order, came ['seen']"),
        ("actions", {"sizes": (4,)}, "field 'action': sizes: expected [3], came [4]"),
    ],
)
def test_another_spec_is_refused_by_the_first_thing_that_differs(field, changes, words):
    came = replace(SPEC, **{field: (replace(getattr(SPEC, field)[0], **changes),)})
    with pytest.raises(SpecError) as caught:
        compare("game", SPEC, came)
    assert words in str(caught.value)
