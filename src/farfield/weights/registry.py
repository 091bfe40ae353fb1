"""Weights in, numbered immutable versions out, and back: what one run remembers, in one folder.

attempts/<k>.json               who claimed the run; the highest attempt fences the others
payloads/<sha256>.safetensors   tensors, each stored once
versions/<number>.json          commit records: a version exists from the moment when its record does
orphans/<k>-<after>-<to>.json   versions that were left behind when an older checkpoint was restored
"""

import re
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from farfield.canonical import from_json, to_json
from farfield.errors import ConfigError, ConflictError, CorruptError, MissingError, SpecError
from farfield.types import Network, Spec, TensorRef, Version, Weights, acting
from farfield.weights import folder as blobs
from farfield.weights import tensors

Place = tuple[str, str]  # a payload's file, and a tensor's name inside
SUFFIX = ".safetensors"
MARK = re.compile(r"\d+-(-?\d+)-(\d+)\.json")


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where versions live, how often one is committed, how many are kept."""

    url: Annotated[str, Meta(description="where versions live; empty: the run's own folder")] = ""
    interval: Annotated[float, Meta(ge=0, description="seconds between committed versions; 0: every one")] = 1.0
    keep: Annotated[int, Meta(ge=0, description="committed versions kept besides the newest and protected ones")] = 20


class Manifest(Struct, frozen=True):
    """What a commit record says: a version, and where each of its tensors is."""

    version: Version
    places: dict[str, Place]


class Sealed(Struct, frozen=True):
    """A manifest with the SHA-256 of its bytes."""

    sha256: str
    manifest: msgspec.Raw


class Registry:
    """Remembers the versions of one run; safe to use from several processes and threads at once."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.folder = config, folder
        self._attempts, self._versions = folder / "attempts", folder / "versions"
        self._payloads, self._orphans = folder / "payloads", folder / "orphans"
        self._own: int | None = None  # the attempt that this process claimed
        self._places: dict[TensorRef, Place] | None = None

    def claim(self, facts: Mapping[str, Any]) -> int:
        """Begin the next attempt, which fences older ones; facts say who it is: pid, host, time."""
        with self._lock():
            attempt = self._newest() + 1
            while not blobs.put_if_absent(self._attempts / f"{attempt}.json", to_json(dict(facts))):
                attempt += 1
        self._own = attempt
        return attempt

    def check(self, attempt: int) -> None:
        """Raise ConflictError when a newer attempt has claimed the run."""
        newest = self._newest()
        if attempt > newest:
            raise ConflictError(f"{self.folder}: attempt {attempt} was not claimed (newest: {newest}): claim it first")
        if attempt < newest:
            facts = from_json(blobs.read(self._attempts / f"{newest}.json"), dict[str, Any])
            if isinstance(facts.get("time"), float):
                facts["time"] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(facts["time"]))
            who = ", ".join(f"{key} {facts[key]}" for key in ("pid", "host", "time") if key in facts)
            cure = "only one learner may write to a run: stop that one and resume, or let it go on"
            raise ConflictError(f"{self.folder}: attempt {attempt} was fenced by attempt {newest} ({who}): {cure}")

    @staticmethod
    def describe(
        weights: Weights,
        *,
        run: str,
        number: int,
        attempt: int,
        parent: int | None,
        steps: int,
        spec: Spec,
        network: Network,
    ) -> Version:
        """Name a version's tensors by content, after comparing them with what its network expects."""
        refs = {name: tensors.reference(array) for name, array in weights.items()}
        expected = network.tensors
        if refs.keys() != expected.keys():
            missing, unknown = sorted(expected.keys() - refs), sorted(refs.keys() - expected)
            raise SpecError(f"version {number}: weights are not its network's: missing {missing}, unknown {unknown}")
        for name, ref in refs.items():
            wanted = expected[name]
            if ref.shape != wanted.shape or ref.dtype != wanted.dtype:
                shown = f"expected {wanted.dtype} {list(wanted.shape)}, got {ref.dtype} {list(ref.shape)}"
                raise SpecError(f"version {number}: tensor {name!r}: {shown}: give the weights of its network")
        return Version(run, number, attempt, parent, steps, spec, network, refs)

    @staticmethod
    def lacking(version: Version, have: Mapping[str, str]) -> list[str]:
        """Name the tensors that acting needs and that a follower with `have` (name -> SHA-256) must be sent."""
        return sorted(name for name in acting(version.network) if have.get(name) != version.tensors[name].sha256)

    def publish(self, version: Version, weights: Weights) -> None:
        """Commit a version: completely or, wherever this process dies, not at all. Repeating it does no harm."""
        record = self._record(version.number)
        with self._lock():
            self.check(version.attempt)
            if record.exists():
                self._compare(version)
            elif _orphaned(version.number, self._marks()):
                cure = f"continue above version {self.highest()}"
                raise ConflictError(f"{record}: this number belongs to a line that was left behind: {cure}")
            else:
                manifest = Manifest(version, self._store(version, weights))
                blobs.put_if_absent(record, _seal(manifest))

    def head(self) -> Version | None:
        """Give the newest version that is not orphaned."""
        for number in reversed(self.numbers()):
            with suppress(MissingError):  # collected meanwhile
                return self.version(number)
        return None

    def version(self, number: int) -> Version:
        """Give a version by its number, orphaned or not."""
        return self._manifest(number).version

    def numbers(self) -> list[int]:
        """List the committed versions that are not orphaned."""
        marks = self._marks()
        return [number for number in self._committed() if not _orphaned(number, marks)]

    def orphans(self) -> list[int]:
        """List the committed versions that were left behind by restoring an older checkpoint."""
        return sorted({*self._committed()}.difference(self.numbers()))

    def highest(self) -> int:
        """Give the highest number ever taken, orphaned ones included; -1 when there is none."""
        return max((*self._committed(), *(to for _, to in self._marks())), default=-1)

    def orphan(self, after: int, attempt: int) -> None:
        """Mark all versions above `after` as left behind: this attempt continues from `after` under new numbers."""
        with self._lock():
            self.check(attempt)
            highest = self.highest()
            if highest > after:
                mark = self._orphans / f"{attempt}-{after}-{highest}.json"
                blobs.put_if_absent(mark, to_json({"attempt": attempt, "after": after, "to": highest}))

    def fetch(self, version: Version, names: Iterable[str] | None = None) -> Weights:
        """Read a version's tensors (all of them, or those named), each compared with its hash."""
        manifest = self._manifest(version.number)
        if manifest.version.tensors != version.tensors:
            cure = "ask the registry for the version again"
            raise ConflictError(f"{self._record(version.number)} holds other tensors than the ones asked for: {cure}")
        wanted = list(version.tensors) if names is None else list(names)
        files = sorted({manifest.places[name][0] for name in wanted})
        opened = {file: self._payload(file, version.number) for file in files}
        weights: Weights = {}
        for name in wanted:
            file, inside = manifest.places[name]
            array = opened[file].get(inside)
            if array is None or tensors.reference(array) != version.tensors[name]:
                where = f"version {version.number}: tensor {name!r} in {self._payloads / file}"
                raise CorruptError(f"{where} is not what was published: {self._cure(version.number)}")
            weights[name] = array
        return weights

    def collect(self, protect: Collection[int] = ()) -> list[int]:
        """Delete old versions, then payloads that no version refers to; give the numbers that are gone."""
        with self._lock():
            if self._own is not None:
                self.check(self._own)  # a fenced learner does not know what the new one protects
            numbers = self.numbers()
            newest = max(numbers, default=-1)
            kept = {*protect, *numbers[-1 - self.config.keep :], *(n for n in self.orphans() if n > newest)}
            gone = [number for number in self._committed() if number not in kept]
            for number in gone:
                blobs.delete(self._record(number))
            if gone:
                blobs.sync(self._versions)  # else a power cut could bring back a record without its payload
            places = self._read_places(self._committed())
            used = {file for file, _ in places.values()}
            for file in blobs.names(self._payloads):
                if file not in used:
                    blobs.delete(self._payloads / file)
            for folder in (self._attempts, self._versions, self._payloads, self._orphans):
                blobs.tidy(folder)
            self._places = places
        return gone

    def _store(self, version: Version, weights: Weights) -> dict[str, Place]:
        """Write the tensors that are not stored yet as one payload; say where each is."""
        if self._places is None:
            self._places = self._read_places(self._committed())
        files = set(blobs.names(self._payloads))
        places = {ref: place for ref, place in self._places.items() if place[0] in files}
        fresh: Weights = {}
        inside: dict[TensorRef, str] = {}
        for name, ref in version.tensors.items():
            if ref in places or ref in inside:
                continue
            if name not in weights or tensors.reference(weights[name]) != ref:
                cure = "publish the weights that were described, unchanged"
                raise SpecError(f"version {version.number}: tensor {name!r} is not the one that it names: {cure}")
            fresh[name], inside[ref] = weights[name], name
        if fresh:
            file = blobs.put_blob(self._payloads, tensors.pack(fresh, {}), suffix=SUFFIX)
            places |= {ref: (file, name) for ref, name in inside.items()}
        self._places = places
        return {name: places[ref] for name, ref in version.tensors.items()}

    def _compare(self, version: Version) -> None:
        there = self.version(version.number)
        if there != from_json(to_json(version), Version):  # as it reads once written: tuples become lists
            shown = (
                f"attempt {there.attempt}, {there.steps} steps; came: attempt {version.attempt}, {version.steps} steps"
            )
            cure = f"continue above version {self.highest()}"
            raise ConflictError(f"{self._record(version.number)} exists with other content ({shown}): {cure}")

    def _manifest(self, number: int) -> Manifest:
        path = self._record(number)
        try:
            data = blobs.read(path)
        except MissingError as error:
            near = sorted(sorted(self._committed(), key=lambda other: abs(other - number))[:3])
            known = f"nearest: {', '.join(map(str, near))}" if near else "there is none yet"
            raise MissingError(f"version {number} is not in {self.folder}: {known}") from error
        try:
            sealed = from_json(data, Sealed)
            if sha256(sealed.manifest).hexdigest() != sealed.sha256:
                raise CorruptError("its SHA-256 differs")
            return from_json(bytes(sealed.manifest), Manifest)
        except CorruptError as error:
            raise CorruptError(f"{path} is damaged ({error}): {self._cure(number)}") from error

    def _payload(self, file: str, number: int) -> Weights:
        path = self._payloads / file
        try:
            return tensors.unpack(blobs.read(path))[0]
        except (MissingError, CorruptError) as error:
            self._manifest(number)  # says that the version itself is gone, if it was collected meanwhile
            raise CorruptError(f"version {number}: {path} cannot be read ({error}): {self._cure(number)}") from error

    def _cure(self, number: int) -> str:
        return f"delete {self._record(number)} to go back to the version before it"

    def _read_places(self, numbers: Iterable[int]) -> dict[TensorRef, Place]:
        places: dict[TensorRef, Place] = {}
        for number in numbers:
            manifest = self._manifest(number)
            places |= {ref: manifest.places[name] for name, ref in manifest.version.tensors.items()}
        return places

    def _committed(self) -> list[int]:
        return sorted(int(name.removesuffix(".json")) for name in blobs.names(self._versions))

    def _marks(self) -> list[tuple[int, int]]:
        found = (MARK.fullmatch(name) for name in blobs.names(self._orphans))
        return [(int(match[1]), int(match[2])) for match in found if match]

    def _newest(self) -> int:
        return max((int(name.removesuffix(".json")) for name in blobs.names(self._attempts)), default=0)

    def _record(self, number: int) -> Path:
        return self._versions / f"{number}.json"

    def _lock(self) -> AbstractContextManager[None]:
        return blobs.locked(self.folder / "registry.lock")


def make(config: Config, folder: Path) -> Registry:
    """Open the registry of one run; nothing is written before the first claim."""
    if config.url:
        scheme = config.url.split(":", 1)[0]
        cure = "leave registry.url empty to use the run's own folder"
        raise ConfigError(f"[registry] url = {config.url!r}: there is no registry for {scheme!r} yet: {cure}")
    return Registry(config, folder)


def _seal(manifest: Manifest) -> bytes:
    body = to_json(manifest)
    return b'{"sha256":"' + sha256(body).hexdigest().encode() + b'","manifest":' + body + b"}"


def _orphaned(number: int, marks: Iterable[tuple[int, int]]) -> bool:
    return any(after < number <= to for after, to in marks)
