"""A TOML file, options and environment variables in, one frozen RunConfig out; and back into TOML."""

import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib import import_module, resources
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta, Struct

from farfield.errors import ConfigError, lacking, nearest
from farfield.experience.lanes import Config as LanesConfig
from farfield.learning import hyper
from farfield.learning.networks import Config as NetworkConfig
from farfield.weights.checkpoints import Config as CheckpointConfig
from farfield.weights.registry import Config as RegistryConfig

Section = dict[str, Any]
KEPT = ("run", "env", "seed", "algorithm.", "network.", "lanes.", "feed.", "registry.url")  # for the life of a run
FREE = {"lanes.backend", "lanes.threads", "feed.max_lag"}  # but not these
BARE = re.compile(r"[A-Za-z0-9_-]+")
PREFIX = "FARFIELD__"  # FARFIELD__ALGORITHM__CLIP=0.1 sets algorithm.clip


class MetricsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where numbers go besides metrics.jsonl."""

    writers: tuple[str, ...] = ("tensorboard",)
    options: dict[str, Section] = {}


class RunConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run. Sections with a `kind` are decoded by the file which that names."""

    run: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description="its name")]
    env: Annotated[str, Meta(description="a Gymnasium id, or package:Env-v0; empty: live apps")] = ""
    actors: Annotated[int, Meta(ge=0, le=64, description="processes that step; 0: this one, exactly repeatable")] = 1
    steps: Annotated[int, Meta(ge=0, description="environment steps to learn from; 0: no end")] = 1_000_000
    until: Annotated[float | None, Meta(description="stop when the last 100 episodes return this on average")] = None
    patience: Annotated[int, Meta(ge=0, description="stop after so many steps without a better return; 0: never")] = 0
    seed: Annotated[int, Meta(ge=0, description="of everything that is drawn")] = 1
    window: Annotated[int, Meta(ge=1, description="fragments that an actor may be ahead of its learner")] = 2
    stuck: Annotated[float, Meta(gt=0, description="seconds without a step until an actor is replaced")] = 60.0
    credit_window: Annotated[float, Meta(ge=0, description="seconds in which rewards may come late")] = 0.0
    devices: Annotated[int, Meta(ge=1, description="devices that share each minibatch")] = 1
    algorithm: Section = msgspec.field(default_factory=lambda: {"kind": "ppo"})
    network: NetworkConfig = NetworkConfig()
    lanes: LanesConfig = LanesConfig()
    feed: Section = {}
    transport: Section = msgspec.field(default_factory=lambda: {"kind": "memory"})
    registry: RegistryConfig = RegistryConfig()
    store: Section = {}
    checkpoint: CheckpointConfig = CheckpointConfig()
    metrics: MetricsConfig = MetricsConfig()


def resolve(env: str, *, run: str, file: Path | None, settings: Iterable[str], options: Section) -> RunConfig:
    """Merge, later over earlier: what suits the environment, the file, environment variables, settings, options."""
    written = read_toml(file) if file else {}
    name = env or written.get("env", "")
    if not name:
        raise ConfigError("no environment: name one (farfield train CartPole-v1) or write env = … into the file")
    layers = [written, from_environment(os.environ), *map(parse_setting, settings), options | {"env": name}]
    asked: Section = {}
    for layer in layers:
        asked = merge(asked, layer)
    kind = asked.get("algorithm", {}).get("kind")
    merged = merge(preset(name, kind), asked)
    if merged.get("steps") == 0:
        raise ConfigError("steps = 0: only live runs, which farfield serve keeps, have no end; give at least 1")
    return decode(merged if not run else merged | {"run": run})


def continued(kept: Section, layers: Iterable[Section]) -> RunConfig:
    """Lay changes over the config of a run that goes on; what a run keeps for life is refused."""
    wanted = kept
    for layer in layers:
        wanted = merge(wanted, layer)
    before, after = (msgspec.to_builtins(decode(section)) for section in (kept, wanted))
    module = plugin("learning.algorithms", before["algorithm"].get("kind", "ppo"))
    free = {f"algorithm.{name}" for name, change in hyper.changes(module.Config).items() if change != "fixed"}
    was, now = _flat(before), _flat(after)
    for path in [path for path in now if now[path] != was.get(path)]:
        switched = path == "actors" and 0 in (was[path], now[path])
        if switched or (path.startswith(KEPT) and path not in free | FREE):
            raise ConfigError(
                f"{path} was {was.get(path)!r} when run {before['run']!r} began and cannot become {now[path]!r}: "
                "a run keeps it for life; begin another one with it, under another --name"
            )
    return decode(wanted)


def preset(env: str, kind: str | None) -> Section:
    """Give settings that were seen to solve `env`, if they are for this kind of algorithm."""
    table = tomllib.loads(resources.files("farfield").joinpath("presets.toml").read_text())
    for section in (table.get(env, {}), table.get(f"{env}@{kind}", {})):
        if section and kind in (None, section["algorithm"]["kind"]):
            return section
    return {"algorithm": {"kind": kind or "ppo"}}


def decode(section: Section) -> RunConfig:
    """Turn plain data into a RunConfig; unknown keys are refused with the nearest names."""
    _check_keys(section, RunConfig, "")
    if section.get("store"):
        raise ConfigError("[store]: there is no store yet that keeps experience; leave the section out")
    try:
        return msgspec.convert(section, RunConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"config: {error}; see `farfield show RUN` for a whole one") from error


def section_of(section: Section, module: ModuleType, where: str) -> Any:
    """Decode the options of a `kind` by its module's Config."""
    options = {name: value for name, value in section.items() if name != "kind"}
    _check_keys(options, module.Config, f"{where}.")
    try:
        return msgspec.convert(options, module.Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"[{where}] {error}") from error


def plugin(group: str, kind: str) -> ModuleType:
    """Open what `kind` names: a module of ours in `group`, or any module that Python finds."""
    known = kinds(group)
    path = f"farfield.{group}.{kind}" if kind in known else kind
    try:
        module = import_module(path)
    except ModuleNotFoundError as error:
        if error.name and not path.startswith(error.name):
            raise lacking(error, f"{group} {kind!r}") from error
        raise ConfigError(f"unknown kind {kind!r} in {group}: {nearest(kind, known)}") from error
    if not (hasattr(module, "Config") and hasattr(module, "make")):
        raise ConfigError(f"{path} has no Config and make, so it is no plugin for {group}; known: {', '.join(known)}")
    return module


def kinds(group: str) -> list[str]:
    """List what we ship in a folder of plugins."""
    folder = resources.files(import_module(f"farfield.{group}"))
    return sorted(f.name.removesuffix(".py") for f in folder.iterdir() if f.name.endswith(".py") and f.name[0] != "_")


def read_toml(path: Path) -> Section:
    """Read a run's file."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give --config an existing TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def from_environment(variables: Mapping[str, str]) -> Section:
    """Read settings such as FARFIELD__ALGORITHM__CLIP=0.1."""
    found: Section = {}
    for name, value in variables.items():
        if name.startswith(PREFIX):
            path = name.removeprefix(PREFIX).lower().replace("__", ".")
            found = merge(found, parse_setting(f"{path}={value}"))
    return found


def parse_setting(text: str) -> Section:
    """Read `section.key=value`; the value is TOML, or a string without quotes."""
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise ConfigError(f"--set {text!r}: expected section.key=value, such as algorithm.clip=0.1")
    try:
        leaf: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        leaf = value
    *above, last = path.strip().split(".")
    section: Section = {last: leaf}
    for name in reversed(above):
        section = {name: section}
    return section


def merge(below: Section, above: Section) -> Section:
    """Lay one section over another, deeply."""
    both = dict(below)
    for name, value in above.items():
        under = both.get(name)
        both[name] = merge(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return both


def _flat(section: Section, path: str = "") -> Section:
    """Give every value by its dotted path."""
    found: Section = {}
    for name, value in section.items():
        found |= _flat(value, f"{path}{name}.") if isinstance(value, dict) and value else {f"{path}{name}": value}
    return found


def to_toml(section: Section) -> str:
    """Write plain data as TOML: values first, then tables."""
    lines: list[str] = []
    _write(section, "", lines)
    return "\n".join(lines).strip() + "\n"


def _write(section: Section, path: str, lines: list[str]) -> None:
    tables = {name: value for name, value in section.items() if isinstance(value, dict)}
    values = {name: value for name, value in section.items() if name not in tables and value is not None}
    if path and (values or not tables):
        lines += ["", f"[{path}]"]
    lines += [f"{_key(name)} = {_toml(value)}" for name, value in values.items()]
    for name, table in tables.items():
        _write(table, f"{path}.{_key(name)}" if path else _key(name), lines)


def _key(name: str) -> str:
    return name if BARE.fullmatch(name) else msgspec.json.encode(name).decode()


def _toml(value: Any) -> str:
    """Write one value; JSON and TOML differ in tables and in numbers that are not finite."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case list() | tuple():
            return f"[{', '.join(_toml(item) for item in cast('list[Any]', value))}]"
        case dict():
            pairs = (f"{_key(name)} = {_toml(item)}" for name, item in cast("Section", value).items())
            return f"{{{', '.join(pairs)}}}"
        case _:
            return msgspec.json.encode(value).decode()


def _check_keys(section: Section, kind: Any, path: str) -> None:
    """Refuse unknown keys by name, deeply, before decoding does it less helpfully."""
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for name, value in section.items():
        if name not in fields:
            raise ConfigError(f"unknown key {path}{name}: {nearest(name, fields)}")
        if isinstance(value, dict) and isinstance(fields[name], type) and issubclass(fields[name], Struct):
            _check_keys(value, fields[name], f"{path}{name}.")
