"""Tokens: who may do what, refused with a clear text that never tells a secret."""

import json
import tomllib
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from typer.testing import CliRunner

from farfield import cli
from farfield.errors import ConfigError
from farfield.serving.tokens import SCOPES, StrangerError, Token, Tokens, bearer, digest, draw, end_of

NOW = datetime(2026, 11, 20, tzinfo=UTC)


def drawn(scopes="ingest,act", runs="lander", expires=None, name="game"):
    return draw(name, scopes.split(","), runs.split(","), expires)


def tokens(*held, now=NOW):
    return Tokens(held, clock=now.timestamp)


def test_a_token_may_do_what_its_scopes_and_runs_say() -> None:
    secret, token = drawn()
    known = tokens(token)
    known.check(secret, "lander", "ingest")
    known.check(secret, "lander", "act")
    known.check(secret, "lander.scout", "act")
    assert known.holder(secret) is token
    assert known.known(secret)
    assert not known.known("ff_other")


@pytest.mark.parametrize(
    ("run", "scope"), [("lander", "read"), ("lander", "create"), ("other", "act"), ("land", "act")]
)
def test_another_scope_or_run_is_refused_by_name(run: str, scope: str) -> None:
    secret, token = drawn()
    with pytest.raises(PermissionError) as refused:
        tokens(token).check(secret, run, scope)
    assert not isinstance(refused.value, StrangerError)
    text = str(refused.value)
    assert "'game'" in text
    assert (f"this takes {scope}" in text) != (f"other runs than {run!r}" in text)
    assert secret not in text
    assert token.sha256 not in text


def test_each_kind_of_stranger_hears_what_is_wrong_and_no_secret() -> None:
    secret, token = drawn(expires=NOW)
    texts = []
    for known, came in ((tokens(token), secret), (tokens(token), "ff_wrong"), (tokens(token), "")):
        with pytest.raises(StrangerError) as refused:
            known.check(came, "lander", "act")
        texts.append(str(refused.value))
        assert secret not in texts[-1]
        assert "ff_wrong" not in texts[-1]
    assert "'game' expired at 2026-11-20T00:00:00Z" in texts[0]
    assert texts[1].startswith("unknown token")
    assert texts[2].startswith("no token came")


def test_a_token_holds_until_the_very_end() -> None:
    secret, token = drawn(expires=NOW)
    tokens(token, now=NOW - timedelta(seconds=1)).check(secret, "lander", "act")


def test_admin_may_do_everything_with_its_own_runs_alone() -> None:
    secret, token = drawn("admin", "l*")
    known = tokens(token)
    for scope in SCOPES:
        known.check(secret, "lander", scope)
    with pytest.raises(PermissionError):
        known.check(secret, "other", "read")


def test_without_tokens_everybody_may_do_everything() -> None:
    known = Tokens()
    assert known.open
    known.check("", "any", "admin")
    known.check("whatever", "any", "create")


def test_every_token_is_looked_at_whatever_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from farfield.serving import tokens as module

    looked = []

    def compare(a: str, b: str) -> bool:
        looked.append(a)
        return a == b

    monkeypatch.setattr(module.hmac, "compare_digest", compare)
    pairs = [drawn(name=f"t{n}") for n in range(4)]
    tokens(*(token for _, token in pairs)).holder(pairs[0][0])
    assert looked == [token.sha256 for _, token in pairs]


def test_two_tokens_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="'game' stands there twice"):
        Tokens([drawn()[1], drawn()[1]])


def test_only_the_hash_of_a_secret_is_kept() -> None:
    secret, token = drawn()
    assert len(secret) > 40
    assert token.sha256 == digest(secret)
    assert secret.encode() not in msgspec.json.encode(token)
    assert drawn()[0] != secret


@pytest.mark.parametrize("header", ["Bearer abc", "bearer  abc ", "BEARER abc"])
def test_a_secret_is_read_from_its_header(header: str) -> None:
    assert bearer(header) == "abc"
    assert bearer("") == ""


def test_another_way_to_say_who_one_is_is_refused() -> None:
    with pytest.raises(StrangerError, match="Bearer TOKEN"):
        bearer("Basic YTpi")


def test_odd_secrets_are_unknown_and_break_nothing() -> None:
    _, token = drawn()
    for secret in ("\udcff", "ü" * 5000, "\x00", "a b"):
        assert not tokens(token).known(secret)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("30d", NOW + timedelta(days=30)), ("12h", NOW + timedelta(hours=12)), ("90m", NOW + timedelta(minutes=90)),
        ("2w", NOW + timedelta(weeks=2)), ("2027-01-31", datetime(2027, 1, 31, tzinfo=UTC)),
        ("2027-01-31T12:00:00+02:00", datetime(2027, 1, 31, 10, tzinfo=UTC)), ("never", None),
    ],
)  # fmt: skip
def test_an_end_is_said_in_a_few_ways(text: str, end: datetime | None) -> None:
    assert end_of(text, NOW) == end


@pytest.mark.parametrize("text", ["", "30", "d", "99999d", "soon", "-3d"])
def test_any_other_end_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected 30d"):
        end_of(text, NOW)


@pytest.mark.parametrize(("scopes", "match"), [(["ingset"], "did you mean ingest"), ([], "choose from")])
def test_scopes_that_do_not_exist_are_refused_with_the_nearest(scopes: list[str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        draw("x", scopes, ["*"], None)


def test_the_command_prints_the_secret_once_and_the_settings_to_paste() -> None:
    words = ["token", "game", "--scopes", "act,ingest", "--runs", "lander,chess", "--expires", "30d"]
    done = CliRunner().invoke(cli.app, words)
    assert done.exit_code == 0, done.output
    secret = next(line for line in done.output.splitlines() if line.startswith("ff_"))
    assert done.output.count(secret) == 1
    section = tomllib.loads(done.output.partition("[[tokens]]")[2])
    token = msgspec.convert(section, Token)
    assert token.scopes == ("ingest", "act")
    assert token.runs == ("lander", "chess")
    assert token.expires is not None
    assert timedelta(days=29, hours=23) < token.expires - datetime.now(UTC) <= timedelta(days=30)
    Tokens([token]).check(secret, "chess", "act")


def test_the_command_speaks_json_too() -> None:
    done = CliRunner().invoke(cli.app, ["token", "game", "--json"])
    row = json.loads(done.output)
    secret = row.pop("secret")
    Tokens([msgspec.convert(row, Token)]).check(secret, "any", "act")
