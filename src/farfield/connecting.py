"""An address, or a TOML file, and options in; a `Session` out. Loads what a live program needs and nothing else."""

import os
import re
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any, cast

import msgspec
from msgspec import Struct

from farfield import __version__
from farfield.errors import ConfigError, MissingError, SpecError, nearest
from farfield.experience import specs
from farfield.experience.episode import Manner
from farfield.experience.guesses import WORDS
from farfield.experience.parts import Machine, Part, Settings
from farfield.experience.session import Session
from farfield.transports.link.gate import Gate, Tls, Told
from farfield.types import Hello, Spec

ADDRESS = r"unix:.+|[^/]+:\d{1,5}"
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
SMALLEST = 1 << 20  # bytes of memory


class Options(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `connect`, by keyword and in a TOML file; docs/live.md has a row for each."""

    address: str
    run: str
    spec: Any = None
    token: str = ""
    policy: str = "main"
    config: dict[str, Any] | None = None
    client: str = ""
    spool: str | None = None
    quota: int = 256 << 20
    memory: int = 32 << 20
    flush: float = 1.0
    wait: float = 10.0
    fallback: Any = "random"
    deadline: float | None = None
    remote: bool = False
    tls: Any = None
    pace: bool = False
    core: str = ""


def connect(address: str | os.PathLike[str], **options: Any) -> Session:
    """Connect a live program to a run: `connect("localhost:50051", run="lander", spec=…)`, or `connect("app.toml")`.

    Waits up to `wait` seconds to be let in; without an answer it goes on trying in the background, as long as it takes.
    Raises where the server refuses, or where nobody can say what the program observes and does. docs/live.md has all
    options.
    """
    return open_session(gather(address, options))


def gather(address: str | os.PathLike[str], options: Mapping[str, Any]) -> Options:
    """Lay options over those of a file, and check them."""
    found: dict[str, Any] = {"address": os.fspath(address)}
    where = "connect"
    if found["address"].endswith(".toml"):
        where = found.pop("address")
        found = _file(Path(where))
    found |= options
    for name in found:
        if name not in Options.__struct_fields__:
            raise ConfigError(f"{where}: unknown option {name!r}; {nearest(name, Options.__struct_fields__)}")
    lacking = [name for name in ("address", "run") if not found.get(name)]
    if lacking:
        raise ConfigError(
            f"{where}: {lacking[0]} is missing: say which {'gateway' if lacking[0] == 'address' else 'run'}"
        )
    if isinstance(found.get("spool"), os.PathLike):
        found["spool"] = os.fspath(found["spool"])
    try:
        checked = msgspec.convert(found, Options, from_attributes=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from error
    _check(where, checked)
    return checked


def open_session(options: Options) -> Session:
    """Open a session with checked options."""
    specs_by_policy = _specs(options)
    tls = _tls(options.tls)
    machine = choose(options.core)
    gate = Gate(options.address, token=options.token, tls=tls)
    client = options.client or f"{socket.gethostname()}:{os.getpid()}"
    settings = Settings(
        run=options.run, client=client, spool=_spool(options.spool), quota=options.quota, memory=options.memory,
        flush=0.0 if options.pace else options.flush,  # who waits for the learner must give it whole fragments
    )  # fmt: skip
    follow = not options.remote or options.fallback == "last"

    def make_part(policy: str) -> Part:
        spec = specs_by_policy.get(policy)
        part = Part(policy, spec, settings, machine)
        hello = Hello(options.run, policy, spec, client, f"farfield-python {__version__}", config=options.config)
        told = Told(welcomed=part.welcomed, settled=part.settled, arrived=part.arrived)
        part.start(gate.link(hello, told, follow=follow))
        try:
            _let_in(part, options, gate.address)
        except BaseException:
            part.end()
            part.link.close()
            part.outbox.close()
            raise
        return part

    manner = Manner(
        greedy=False, remote=options.remote, pace=options.pace, fallback=options.fallback,
        deadline=1.0 if options.deadline is None else options.deadline,
    )  # fmt: skip
    try:
        labels = {"run": options.run, "client": client}
        return Session(make_part, policy=options.policy, manner=manner, labels=labels, close_gate=gate.close)
    except BaseException:
        gate.close()
        raise


def choose(core: str) -> Machine:
    """Take the native core where it was built, unless another one is asked for."""
    from farfield.serving.advice import advise

    if core in ("", "native"):
        try:
            from farfield import _native as native  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
        except ImportError as error:
            if core:
                raise MissingError(
                    "the native core was not built: install farfield where there is a compiler"
                ) from error
        else:
            return Machine("native", native.Slot, native.Snapshot, native.Track, advise)
    from farfield.experience.slots import Slot
    from farfield.experience.tracks import Track
    from farfield.serving.snapshots import Snapshot

    return Machine("numpy", Slot, Snapshot, Track, advise)


def _let_in(part: Part, options: Options, address: str) -> None:
    """Wait for the welcome; raise where there will be none."""
    deadline = monotonic() + options.wait
    with part.changed:
        while part.welcome is None and (left := deadline - monotonic()) > 0:
            if part.link.refusal:
                raise part.link.refusal
            part.changed.wait(min(left, 0.05))
    if part.link.refusal:
        raise part.link.refusal
    if part.spec is None:
        raise MissingError(
            f"run {options.run!r}: {address} did not answer within {options.wait} s ({part.link.trouble}), and no spec "
            "was given: give connect a spec, or start the gateway first"
        )


def _file(path: Path) -> dict[str, Any]:
    try:
        found = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; give connect an address or an existing TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    if isinstance(found.get("spec"), dict):
        found["spec"] = specs.from_table(found["spec"])
    return found


def _check(where: str, options: Options) -> None:
    if not re.fullmatch(ADDRESS, options.address):
        raise ConfigError(
            f"{where}: address {options.address!r}: expected host:port or unix:/path, such as localhost:50051"
        )
    for name in ("run", "policy"):
        if not re.fullmatch(NAME, getattr(options, name)):
            raise ConfigError(f"{where}: {name} {getattr(options, name)!r}: expected letters, digits, '.', '_' and '-'")
    least = {"quota": 0, "memory": SMALLEST, "flush": 0.0, "wait": 0.0, "deadline": 0.0}
    for name, bound in least.items():
        value = getattr(options, name)
        if value is not None and not value >= bound:
            raise ConfigError(f"{where}: {name}: expected at least {bound}, came {value}")
    if isinstance(options.fallback, str) and options.fallback not in WORDS:
        raise ConfigError(f"{where}: fallback: expected one of {WORDS} or an action, came {options.fallback!r}")
    if options.core not in ("", "native", "numpy"):
        raise ConfigError(f"{where}: core: expected 'native' or 'numpy', came {options.core!r}")


def _specs(options: Options) -> dict[str, Spec]:
    """Give the spec of each policy for which there is one."""
    given = options.spec
    if given is None:
        return {}
    by_policy = cast("dict[str, Any]", given if isinstance(given, Mapping) else {options.policy: given})
    for policy, spec in by_policy.items():
        if not isinstance(spec, Spec):
            raise SpecError(f"spec of policy {policy!r}: expected what farfield.spec gives, came {type(spec).__name__}")
    return dict(by_policy)


def _tls(given: Any) -> Tls | None:
    if given is None or given is False:
        return None
    if given is True:
        return Tls()
    if isinstance(given, str):
        return Tls(ca=given)
    try:
        return msgspec.convert(given, Tls)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"tls: expected true, the file of an authority, or ca, cert, key and name: {error}"
        ) from error


def _spool(given: str | None) -> Path | None:
    """Find the folder of folders; C++ clients look in the same place."""
    if given == "":
        return None
    if given:
        return Path(given).expanduser().absolute()
    if found := os.environ.get("FARFIELD_SPOOL"):
        return Path(found).absolute()
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "farfield" / "spool"
