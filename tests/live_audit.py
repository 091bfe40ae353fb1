"""A run's folder in, what its log and its ledger hold out, to be compared with what programs say that they did."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from farfield.codec import decode_announcement, decode_fragment, kind_of
from farfield.learning import ledger
from farfield.transports import disk
from farfield.types import Fragment
from gateways import PATIENCE, eventually
from live_client import BATCH, Did, read


@dataclass
class Stored:
    """One fragment of the log, without its columns."""

    stream: str
    seq: int
    decision: int
    rows: int  # those that are no steps too
    source: str
    steps: list[tuple[int, int, int]] = field(default_factory=list)  # (program, step, action)


class Audit:
    """Reads all that a log ever held: as long as it was begun before the learner, nothing is freed."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.stored: list[Stored] = []
        self._log = disk.make(disk.Config(str(run / "log")))
        self._log.note("experiences", "audit", {})
        self._place: dict[int, int] = {}

    def look(self) -> int:
        """Read on; gives the number of fragments so far."""
        while True:
            records, self._place = self._log.read("experiences", after=self._place, limit=256, timeout=0.0)
            if not records:
                return len(self.stored)
            for record in records:
                if kind_of(record.payload) == "Fragment":
                    self.stored.append(_stored(decode_fragment(record.payload)))

    def close(self) -> None:
        """Close the log."""
        self._log.close()

    def names(self) -> list[tuple[str, int]]:
        """Name all fragments."""
        self.look()
        return [(one.stream, one.seq) for one in self.stored]

    def check_streams(self) -> None:
        """See that each fragment is there once, and none is missing between two of its stream."""
        doubled = [name for name, count in Counter(self.names()).items() if count > 1]
        assert not doubled, f"stored twice: {doubled}"
        streams: dict[str, list[Stored]] = defaultdict(list)
        for one in self.stored:
            streams[one.stream].append(one)
        for stream, ones in streams.items():
            ones.sort(key=lambda one: one.seq)
            assert [one.seq for one in ones] == list(range(len(ones))), f"a gap in {stream}"
            for before, after in pairwise(ones):
                assert after.decision == before.decision + before.rows, f"{stream} {after.seq}: rows are missing"

    def check(self, *programs: Did, alone: bool = True) -> None:
        """See that what programs did is in the log: every step once, with the action that they were given."""
        self.check_streams()
        steps: dict[int, dict[int, int]] = defaultdict(dict)
        for one in self.stored:
            for program, step, action in one.steps:
                assert step not in steps[program], f"step {step} of {program} is there twice"
                steps[program][step] = action
        assert not alone or set(steps) <= {did.number for did in programs}
        for did in programs:
            assert did.remaining == [0, 0, 0], did
            found = steps[did.number]
            missing = sorted(set(range(len(did.actions))) - set(found))
            assert not missing, f"program {did.number}: {len(missing)} steps are missing: {missing[:20]} {did.counters}"
            assert "".join(str(found[step]) for step in range(len(found))) == did.actions, f"actions of {did.number}"
            assert did.counters["steps"] == len(found)
            assert (did.counters["dropped_steps"], did.counters["refused"]) == (0, 0), did.counters

    def settled(self) -> dict[str, int]:
        """Say how many of each stream's first fragments the learner has used or counted as not used."""
        place: dict[int, int] = {}
        found: dict[str, int] = {}
        while True:
            records, place = self._log.read("model_updates", after=place, limit=256, timeout=0.0)
            if not records:
                return found
            for record in records:
                found = dict(decode_announcement(record.payload).settled) or found

    def used(self) -> set[tuple[str, int]]:
        """Name what the ledger says was learned from, which is said of each at most once."""
        path = self.run / "ledger.jsonl"
        entries = ledger.read(path) if path.exists() else []
        names = Counter(name for entry in entries for name in entry.fragments)
        doubled = [name for name, count in names.items() if count > 1]
        assert not doubled, f"learned from twice: {doubled}"
        return set(names)

    def waiting(self) -> int:
        """Count the rows of what the policy did that was not learned from yet."""
        self.look()
        used = self.used()
        return sum(one.rows for one in self.stored if not one.source and (one.stream, one.seq) not in used)

    def check_learned(self, patience: float = 2 * PATIENCE) -> int:
        """See that all was learned from but what waits for a full batch, and nothing that others decided.

        Gives how many fragments that were.
        """
        eventually(lambda: self.waiting() < 2 * BATCH, "the learner's judgement on all", patience)
        used, settled = self.used(), self.settled()
        assert settled
        by_policy = {(one.stream, one.seq): not one.source for one in self.stored}
        for (stream, seq), policys in by_policy.items():
            if seq < settled.get(stream, 0):
                assert policys == ((stream, seq) in used), f"{stream} {seq} is settled"
        assert all(by_policy.get(name) for name in used), "what the policy did not do was learned from"
        return len(used)


def _stored(fragment: Fragment) -> Stored:
    columns: dict[str, Any] = fragment.columns
    obs, action, valid = columns["obs"], columns["action"], columns["valid"]
    steps = [(*read(seen), int(act)) for seen, act in zip(obs[:-1][valid], action[valid], strict=True)]
    assert [step % 7 for _, step, _ in steps] == columns["reward"][valid].tolist()
    return Stored(fragment.stream, fragment.seq, fragment.decision, valid.size, fragment.source, steps)
