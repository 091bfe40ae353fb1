"""An RL4Sys file in, JSON or YAML, Settings out: every key has a meaning here or is named as one that has none."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from farfield.errors import ConfigError, MissingError, nearest

NAME = re.compile(r"[^A-Za-z0-9._-]+")
LONGEST = 100
WITHOUT_EFFECT = {
    "enable_compression": "nothing is compressed: versions travel as the tensors that acting needs",
    "request_timeout_seconds": "nothing waits for a request",
}


class Settings(Struct, frozen=True, kw_only=True):
    """What a file says. The second half is ours, and may be added to a file."""

    client_id: str
    algorithm_name: str
    algorithm_parameters: dict[str, Any]
    type: str = ""
    train_server_address: str = "localhost:50051"
    send_frequency: int = 10
    max_traj_length: int = 1000
    act_limit: float | None = None
    connection_timeout_seconds: float = 10.0
    debug: bool = False
    log_level: str = ""
    token: str = ""
    policy: str = "main"
    remote: bool = False
    mask: bool = True  # whether masks may be given: without, deciding is a little faster
    buffer_size: int = 256 << 20  # bytes on the disk while the gateway is away
    credit_window: float = 0.0  # seconds in which rewards may follow what was sent
    options: dict[str, Any] = {}  # more options of farfield.connect
    farfield: dict[str, Any] = {}  # settings of the run, over what was made from algorithm_parameters

    @property
    def run(self) -> str:
        """Make a run's name of client_id: equal ids share a run."""
        return NAME.sub("-", self.client_id).strip("-._")[:LONGEST] or "rl4sys"


def read(path: str | Path) -> tuple[Settings, dict[str, str]]:
    """Read a file; gives what it says, and which of its keys have no effect, with reasons."""
    plain = _plain(Path(path))
    if not isinstance(plain, dict):
        raise ConfigError(f"{path}: expected an object with client_id, algorithm_name …, came {type(plain).__name__}")
    for key in ("client_id", "algorithm_name", "algorithm_parameters"):
        if not plain.get(key):
            raise ConfigError(f"{path}: {key} is missing; docs/rl4sys.md shows a whole file")
    known = Settings.__struct_fields__
    ignored = {key: WITHOUT_EFFECT.get(key, f"unknown, {nearest(key, known)}") for key in plain if key not in known}
    try:
        settings = msgspec.convert(
            {k: v for k, v in plain.items() if k in known and v is not None}, Settings, strict=False
        )
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from error
    for key, least in (("send_frequency", 1), ("max_traj_length", 1), ("buffer_size", 0), ("credit_window", 0)):
        if getattr(settings, key) < least:
            raise ConfigError(f"{path}: {key} = {getattr(settings, key)}: expected at least {least}")
    return settings, ignored


def _plain(path: Path) -> Any:
    """Read JSON, or YAML where the name or the content says so."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}; name the file of the application, seen from {Path.cwd()}"
        ) from error
    if path.suffix.lower() not in {".yaml", ".yml"}:
        try:
            return json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{path} is not JSON: {error}; a YAML file must be called .yaml") from error
    try:
        import yaml
    except ModuleNotFoundError as error:
        cure = "pip install 'farfield[rl4sys]', or write the file as JSON"
        raise MissingError(f"{path}: YAML needs the package PyYAML, which is not installed: {cure}") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
