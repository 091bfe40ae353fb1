"""Config: a file, the environment and options become one RunConfig, and go back into TOML."""

from pathlib import Path

import msgspec
import pytest

from farfield import config as configs
from farfield.errors import ConfigError


def resolve(tmp_path: Path, text: str = "", env: str = "CartPole-v1", **options: object) -> configs.RunConfig:
    file = tmp_path / "run.toml"
    file.write_text(text)
    return configs.resolve(env, run="r", file=file, settings=options.pop("settings", ()), options=options)  # type: ignore[arg-type]


def test_options_go_over_settings_over_the_environment_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "steps = 1\nseed = 1\nactors = 1\n[lanes]\ncount = 3\nsteps = 7"
    monkeypatch.setenv("FARFIELD__STEPS", "2")
    monkeypatch.setenv("FARFIELD__LANES__COUNT", "4")
    config = resolve(tmp_path, text, settings=["steps=3", "lanes.steps=9"], seed=5)
    assert (config.steps, config.seed, config.actors) == (3, 5, 1)
    assert (config.lanes.count, config.lanes.steps) == (4, 9)


def test_what_suits_an_environment_is_below_all_else(tmp_path: Path) -> None:
    assert resolve(tmp_path).until == 475
    assert resolve(tmp_path, until=400.0).until == 400
    assert resolve(tmp_path, env="Nothing-v0").until is None


def test_a_preset_of_one_algorithm_is_not_used_for_another(tmp_path: Path) -> None:
    assert resolve(tmp_path, algorithm={"kind": "reinforce"}).algorithm["kind"] == "reinforce"
    assert "epochs" not in resolve(tmp_path, algorithm={"kind": "reinforce"}).algorithm


def test_every_preset_is_a_valid_config(tmp_path: Path) -> None:
    table = configs.tomllib.loads((Path(configs.__file__).parent / "presets.toml").read_text())
    for name in table:
        env, _, kind = name.partition("@")
        config = resolve(tmp_path, env=env, **({"algorithm": {"kind": kind}} if kind else {}))
        module = configs.plugin("learning.algorithms", config.algorithm["kind"])
        configs.section_of(config.algorithm, module, "algorithm")


def test_a_config_survives_toml(tmp_path: Path) -> None:
    options = 'lanes.options={gravity = 9.5, name = "a\\"b", "two words.dotted" = {x = [{y = inf}, {z = true}]}}'
    config = resolve(tmp_path, settings=["network.hidden=[3, 4]", options, "until=inf", "algorithm.clip=-inf"])
    again = configs.decode(configs.tomllib.loads(configs.to_toml(msgspec.to_builtins(config))))
    assert again == config


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["stepps=3"], "did you mean steps"),
        (["lanes.cuont=3"], "did you mean count"),
        (["lanes.count=many"], "count"),
        (["actors=-1"], "actors"),
        (["run=../escape"], "run"),
        (["no equals sign"], r"section\.key=value"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, settings: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        configs.resolve("CartPole-v1", run="", file=None, settings=["run=x", *settings], options={})


def test_an_unknown_plugin_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean ppo"):
        configs.plugin("learning.algorithms", "pppo")
    with pytest.raises(ConfigError, match="no Config and make"):
        configs.plugin("learning.algorithms", "json")
