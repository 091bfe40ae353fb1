"""REST: everything that gRPC can do, for programs that have only HTTP; refused clearly, and never with a trace."""

import struct
from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest

from farfield.codec import decode_announcement, encode_credit
from farfield.errors import CorruptError, SpecError
from farfield.serving.desk import split
from farfield.serving.plain import array_of, lists_of
from farfield.types import Credit
from fragments import PLAIN_SPEC, ROWS, STREAM, TINY, payload, plain
from gateways import Served, eventually, gateway

RUN = "/api/v1/runs/lander"
THREE = {**PLAIN_SPEC, "actions": [{**PLAIN_SPEC["actions"][0], "sizes": [3]}]}
STREAMS = (f"{number:032x}" for number in count(16))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A gateway with one run, whose learner has published its first version."""
    with gateway(tmp_path_factory.mktemp("home")) as served:
        reply = served.ask(f"{RUN}/greet", {"spec": PLAIN_SPEC, "client": "test", "config": TINY})
        assert reply.status == 200, reply.body
        eventually(lambda: served.ask(f"{RUN}/versions/newest").status == 200, "the first version")
        yield served


def test_a_greeting_is_answered_with_all_that_a_client_needs(served: Served) -> None:
    welcome = served.ask(f"{RUN}/greet", {"spec": PLAIN_SPEC}).json
    assert welcome["run"] == "lander"
    assert (welcome["steps"], welcome["window"], welcome["created"]) == (4, 4, False)
    assert welcome["spec"]["observations"][0]["name"] == "obs"
    assert served.ask(f"{RUN}/greet", {}).json == welcome  # whatever the run has


@pytest.mark.parametrize(
    ("hello", "status", "text"),
    [
        ({"spec": THREE}, 422, "field 'action': sizes: expected [2]"),
        ({"protocol": 0}, 412, "protocol: expected 1, came 0"),
        ({"protocol": 9}, 412, "this gateway is too old"),
        ({"run": "other"}, 422, "leave it out"),
        ({"specs": {}}, 400, "specs"),
        ([], 400, "JSON"),
    ],
)  # fmt: skip
def test_a_greeting_that_does_not_fit_is_refused(served: Served, hello: object, status: int, text: str) -> None:
    reply = served.ask(f"{RUN}/greet", hello)
    assert (reply.status, reply.headers["content-type"]) == (status, "application/problem+json")
    assert reply.json["status"] == status
    assert text in reply.json["detail"]


def test_a_run_that_nobody_made_is_not_there_and_its_neighbours_are_named(served: Served) -> None:
    reply = served.ask("/api/v1/runs/landr/greet", {"spec": PLAIN_SPEC})
    assert reply.status == 404
    assert "did you mean lander?" in reply.json["detail"]
    assert served.ask("/api/v1/runs/landr").status == 404


@pytest.mark.parametrize("run", ["..", "%2e%2e", "a%2fb", "-x", "a" * 101, "a%00b", "ü"])
def test_a_name_that_is_a_path_is_no_run(served: Served, run: str) -> None:
    reply = served.ask(f"/api/v1/runs/{run.encode('ascii', 'ignore').decode() or 'x..%0a'}/greet", {"config": TINY})
    assert reply.status in (404, 405, 422)
    assert reply.headers["content-type"] == "application/problem+json"


def test_a_config_that_no_learner_can_use_creates_nothing(served: Served) -> None:
    reply = served.ask("/api/v1/runs/bad/greet", {"config": {"algorithm": {"gama": 0.9}}})
    assert reply.status == 422
    assert "unknown key algorithm.gama: did you mean gamma" in reply.json["detail"]
    assert served.ask("/api/v1/runs/bad").status == 404


def test_one_payload_many_payloads_and_json_are_stored_alike(served: Served) -> None:
    stream = next(STREAMS)
    before = served.run("lander")["counters"]["total"]
    assert served.ask(f"{RUN}/fragments", payload(0, stream=stream)).json == {"owned": 1, "refused": []}
    two = b"".join(
        struct.pack("<I", len(each)) + each for each in (payload(1, stream=stream), payload(2, stream=stream))
    )
    assert served.ask(f"{RUN}/fragments", two).json == {"owned": 2, "refused": []}
    assert served.ask(f"{RUN}/fragments", plain(3, stream=stream)).json == {"owned": 1, "refused": []}
    listed = [plain(4, stream=stream), plain(5, stream=stream)]
    assert served.ask(f"{RUN}/fragments", listed).json == {"owned": 2, "refused": []}
    after = served.run("lander")["counters"]["total"]
    assert after["fragments"] - before["fragments"] == 6
    assert after["steps"] - before["steps"] == 6 * ROWS


def test_what_was_stored_is_known_when_it_comes_again(served: Served) -> None:
    stream = next(STREAMS)
    for _ in range(3):
        assert served.ask(f"{RUN}/fragments", payload(0, stream=stream)).json["owned"] == 1
    assert served.run("lander")["counters"]["total"]["repeated"] >= 2


def test_experience_over_rest_is_learned_from(served: Served) -> None:
    stream, before = next(STREAMS), served.run("lander")["counters"]["version"]
    for seq in range(8):
        served.ask(f"{RUN}/fragments", payload(seq, stream=stream))
    eventually(lambda: served.run("lander")["counters"]["version"] > before, "a new version")
    assert served.run("lander")["metrics"]["steps"] > 0


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"obs": np.zeros((5, 1, 4), np.float32)}, "column 'obs'"),
        ({"obs": np.zeros((5, 1, 3), np.float64)}, "column 'obs': expected float32"),
        ({"reward": np.full((4, 1), np.nan, np.float32)}, "expected a finite number"),
        ({"action": np.full((4, 1), 2)}, "column 'action'"),
        ({"extra": np.zeros(3)}, "column 'extra' is unknown"),
        ({"run": "other"}, "run and policy"),
    ],
)  # fmt: skip
def test_a_fragment_that_does_not_fit_is_a_dead_letter(served: Served, changes: dict[str, object], text: str) -> None:
    before = served.run("lander")["counters"]
    reply = served.ask(f"{RUN}/fragments", payload(0, stream=next(STREAMS), **changes))
    assert reply.status == 422
    assert text in reply.json["detail"]
    assert reply.json["refused"][0]["kind"] == "SpecError"
    after = served.run("lander")["counters"]
    assert after["dead_letters"] == before["dead_letters"] + 1
    assert after["total"]["refused"] == before["total"]["refused"] + 1


def test_of_many_only_the_bad_ones_are_refused(served: Served) -> None:
    stream = next(STREAMS)
    bad = payload(1, stream=stream, action=np.full((4, 1), 7))
    many = [payload(0, stream=stream), bad, payload(1, stream=stream)]
    body = b"".join(struct.pack("<I", len(each)) + each for each in many)
    reply = served.ask(f"{RUN}/fragments", body)
    assert reply.status == 200
    assert reply.json["owned"] == 3
    assert [each["index"] for each in reply.json["refused"]] == [1]


@pytest.mark.parametrize(
    "body", [b"", b"rubbish", b"\x0d\xff\xff\xff\xff", payload(0)[:-1], payload(0) + b"x", bytes(9)]
)
def test_rubbish_is_refused_and_nothing_is_disturbed(served: Served, body: bytes) -> None:
    reply = served.ask(f"{RUN}/fragments", body)
    assert reply.status in (400, 422), reply.body
    assert b"Traceback" not in reply.body
    assert served.ask("/livez").status == 200


@pytest.mark.parametrize(
    ("changes", "status", "text"),
    [
        ({"stream": "x"}, 422, "stream"),
        ({"seq": -1}, 422, "seq"),
        ({"seq": 1 << 64}, 422, "out of range"),
        ({"columns": {"obs": [[1, 2], [3]]}}, 422, "lists are of different lengths"),
        ({"columns": {"obs": [["a"]]}}, 422, "column 'obs': expected float32"),
        ({"columns": {"action": [[0.5]]}}, 422, "whole numbers"),
        ({"columns": {"action": [[1 << 70]]}}, 422, "whole numbers"),
        ({"columns": {"obss": []}}, 422, "did you mean obs"),
        ({"columns": {"reward": [[1e300]]}}, 422, "column"),
        ({"colums": {}}, 422, "colums"),
    ],
)  # fmt: skip
def test_json_that_is_no_fragment_is_refused(
    served: Served, changes: dict[str, object], status: int, text: str
) -> None:
    reply = served.ask(f"{RUN}/fragments", plain(0) | changes)
    assert reply.status == status, reply.body
    assert text in reply.json["detail"]


def test_only_json_and_protobuf_are_taken(served: Served) -> None:
    for media in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        reply = served.ask(f"{RUN}/fragments", plain(0), content_type=media)
        assert reply.status == 415, reply.body
        assert "application/json" in reply.json["detail"]
    assert served.ask(f"{RUN}/act", b"{}").status == 415


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(tmp_path) -> None:
    server = tmp_path / "server.toml"
    server.write_text('grpc = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\nlimit = 4096\nquota = 4096\n')
    with gateway(tmp_path / "home", "--config", str(server)) as served:
        assert served.ask(f"{RUN}/greet", {"spec": PLAIN_SPEC, "config": TINY}).json["limit"] == 4096
        reply = served.ask(f"{RUN}/fragments", b"", content_length="1000000000000", method="POST")
        assert (reply.status, reply.json["title"]) == (413, "too large")
        assert served.ask(f"{RUN}/fragments", bytes(5000)).status == 413
        large = payload(0, obs=np.zeros((401, 1, 3), np.float32))
        assert served.ask(f"{RUN}/fragments", large).status == 413
        assert served.ask(f"{RUN}/fragments", payload(0)).status == 200


def test_late_rewards_are_stored(served: Served) -> None:
    before = served.run("lander")["counters"]["total"]["credits"]
    credit = {"stream": STREAM, "n": 3, "reward": 0.5, "id": "a"}
    assert served.ask(f"{RUN}/credits", credit).json == {"owned": 1, "refused": []}
    assert served.ask(f"{RUN}/credits", [credit, {**credit, "mode": "set", "id": "b"}]).json["owned"] == 2
    encoded = encode_credit(Credit("lander", STREAM, 4, 1.0, "add", "c"))
    assert served.ask(f"{RUN}/fragments", encoded).json["owned"] == 1  # the same topic takes both
    assert served.run("lander")["counters"]["total"]["credits"] > before


@pytest.mark.parametrize("changes", [{"mode": "multiply"}, {"id": ""}, {"n": -1}, {"reward": "1"}, {"reward": None}])
def test_a_late_reward_that_is_none_is_refused(served: Served, changes: dict[str, object]) -> None:
    credit = {"stream": STREAM, "n": 3, "reward": 0.5, "id": "a"} | changes
    assert served.ask(f"{RUN}/credits", credit).status == 422


def test_acting_gives_actions_with_their_probability_and_version(served: Served) -> None:
    lanes = [[0.0, 0.1, 0.2], [0.3, 0.4, 0.5], [-1, 0, 1]]
    greedy = served.ask(f"{RUN}/act", {"observations": lanes}).json
    assert len(greedy["actions"]["action"]) == 3
    assert "log_prob" not in greedy
    asked = {"observations": {"obs": lanes}, "stream": STREAM, "decision": 40}
    exploring = served.ask(f"{RUN}/act", asked).json
    assert len(exploring["log_prob"]) == 3
    assert all(value < 0 for value in exploring["log_prob"])
    assert exploring["version"] >= 0
    again = served.ask(f"{RUN}/act", asked).json
    assert again["actions"] == exploring["actions"] or again["version"] > exploring["version"]


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"observations": [[1, 2]]}, "obs"),
        ({"observations": {"other": [[1, 2, 3]]}}, "did you mean obs|known: obs"),
        ({"observations": []}, "lanes"),
        ({"observations": [["x", "y", "z"]]}, "obs"),
        ({"observations": None}, "obs"),
        ({}, "observations"),
        ({"observations": [[0, 0, 0]], "memory": {"core": [[0]]}}, "core"),
    ],
)
def test_observations_that_do_not_fit_are_refused(served: Served, asked: dict[str, object], text: str) -> None:
    reply = served.ask(f"{RUN}/act", asked)
    assert reply.status == 422, reply.body
    assert any(part in reply.json["detail"] for part in text.split("|"))


def test_the_newest_version_comes_whole_in_part_or_not_at_all(served: Served) -> None:
    def quiet() -> bool:
        return served.run("lander")["counters"]["version"] == served.run("lander")["metrics"]["version"]

    eventually(quiet, "the end of the updates")
    whole = served.ask(f"{RUN}/versions/newest")
    announcement = decode_announcement(whole.body)
    assert (announcement.full, announcement.version.run) == (True, "lander")
    manifest = served.ask(f"{RUN}/versions/newest", accept="application/json").json
    assert manifest["number"] == announcement.version.number
    hashes = {name: manifest["tensors"][name]["sha256"] for name in announcement.weights}
    name, held = next(iter(hashes.items()))
    part = decode_announcement(served.ask(f"{RUN}/versions/newest?have={held}").body)
    assert set(part.weights) == set(hashes) - {n for n, digest in hashes.items() if digest == held}
    assert name not in part.weights
    every = ",".join(hashes.values())
    assert decode_announcement(served.ask(f"{RUN}/versions/newest?have={every}").body).weights == {}
    known = served.ask(f"{RUN}/versions/newest", if_none_match=whole.headers["etag"])
    assert (known.status, known.body) == (304, b"")


def test_runs_and_their_counts_can_be_read(served: Served) -> None:
    (row,) = [row for row in served.ask("/api/v1/runs").json["runs"] if row["run"] == "lander"]
    assert row["state"] == "running"
    assert row["version"] >= 0
    whole = served.run("lander")
    assert whole["learner"]["pid"] > 0
    assert whole["spec"]["actions"][0]["name"] == "action"
    assert whole["counters"]["clients"]["rest 127.0.0.1"]["fragments"] > 0


def test_prometheus_finds_its_numbers(served: Served) -> None:
    served.ask(f"{RUN}/fragments", payload(0, stream=next(STREAMS)))
    reply = served.ask("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    lines = dict(line.rsplit(" ", 1) for line in reply.body.decode().splitlines() if not line.startswith("#"))
    assert float(lines['farfield_gateway_fragments_total{run="lander"}']) > 0
    assert lines['farfield_gateway_learner_up{run="lander"}'] == "1.0"
    assert float(lines["process_resident_memory_bytes"]) > 0


def test_health_is_told_without_a_token(served: Served) -> None:
    assert served.ask("/livez").body == b"ok\n"
    assert served.ask("/readyz").body == b"ok\n"


@pytest.mark.parametrize(
    ("path", "method", "status"), [("/nope", "GET", 404), (f"{RUN}/act", "GET", 405), ("/livez", "DELETE", 405)]
)
def test_what_is_not_there_is_a_problem_too(served: Served, path: str, method: str, status: int) -> None:
    reply = served.ask(path, method=method)
    assert (reply.status, reply.headers["content-type"]) == (status, "application/problem+json")


def test_a_page_of_somebody_else_cannot_use_a_browser_of_this_machine(served: Served) -> None:
    assert served.ask("/api/v1/runs", host="evil.example").status == 403
    assert served.ask("/api/v1/runs", host="localhost:8000").status == 200
    assert served.ask("/api/v1/runs", host="[::1]:8000").status == 200


def test_a_policy_of_a_run_is_a_run_beside_it(served: Served) -> None:
    welcome = served.ask(f"{RUN}/greet", {"policy": "scout", "spec": PLAIN_SPEC, "config": TINY}).json
    assert (welcome["run"], welcome["created"]) == ("lander.scout", True)
    assert served.ask("/api/v1/runs/lander.scout/fragments", plain(0, policy="main")).json["owned"] == 1


def test_nothing_unforeseen_happened_in_all_these_tests(served: Served) -> None:
    assert "Traceback" not in served.log
    assert " error " not in served.log


def test_a_body_is_one_payload_or_several_with_their_lengths() -> None:
    one = payload(0)
    assert split(one) == [one]
    assert split(struct.pack("<I", len(one)) + one) == [one]
    assert split((struct.pack("<I", 3) + b"abc") * 2) == [b"abc", b"abc"]
    for body in (b"", b"\x01", struct.pack("<I", 4) + b"abc", struct.pack("<I", 0)):
        with pytest.raises(CorruptError, match="body"):
            split(body)


def test_numbers_of_json_become_what_a_spec_says_or_nothing() -> None:
    assert array_of("x", [1, 2], "float32").dtype == np.float32
    assert array_of("x", [[True]], "bool").tolist() == [[True]]
    assert array_of("x", [], "int64").shape == (0,)
    for values, dtype in (
        ([1], "bool"),
        ([300], "uint8"),
        ([-1], "uint8"),
        ([True], "int64"),
        (["1"], "float32"),
        ([None], "float32"),
    ):
        with pytest.raises(SpecError, match="column 'x'"):
            array_of("x", values, dtype)
    assert lists_of({"x": np.array([1.5, np.inf])}) == {"x": [1.5, None]}
