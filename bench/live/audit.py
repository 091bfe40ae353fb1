"""The folder of a live run in; what its ledger says was learned from, and how old it was, out."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from farfield.codec import decode_fragment, kind_of
from farfield.learning import ledger
from farfield.telemetry import metrics
from farfield.transports import disk

Row = dict[str, Any]
STILL, STUCK = 2.0, 60.0  # seconds without an update after which the rest is called the rest; or the learner stuck


def audit(folder: Path, batch: int) -> Row:
    """Count, once the learner has used what it can, the steps of the fragments that the ledger names.

    A version's number is the number of updates that it had seen: this learner was never started again.
    """
    stored = _stored(folder / "log")
    entries = _finished(folder, {name: rows for name, (rows, _) in stored.items()}, batch)
    learned, ages, twice, seen = 0, [np.zeros(0)], 0, set[tuple[str, int]]()
    for entry in entries:
        for name in entry.fragments:
            twice += name in seen
            seen.add(name)
            rows, versions = stored[name]
            learned += rows
            ages.append(entry.update - 1 - versions)
    lags = np.concatenate(ages)
    last = metrics.read(folder)[-1] if entries else {}
    return {
        "stored": sum(rows for rows, _ in stored.values()), "learned": learned, "said": last.get("steps", 0),
        "twice": twice, "updates": len(entries), "dropped": last.get("dropped"),
        "lag": float(lags.mean()) if len(lags) else None, "lag_most": float(lags.max()) if len(lags) else None,
        "lag_p99": float(np.quantile(lags, 0.99)) if len(lags) else None,
        "learner_seconds": last.get("seconds"),
    }  # fmt: skip


def _finished(folder: Path, stored: dict[tuple[str, int], int], batch: int) -> list[ledger.Entry]:
    """Wait until what is left fills no batch, or is not touched for long; gives the ledger."""
    path, before, since = folder / ledger.FILE, -1, time.monotonic()
    while True:
        entries = ledger.read(path) if path.exists() else []
        if len(entries) != before:
            before, since = len(entries), time.monotonic()
        still = time.monotonic() - since
        left = sum(stored.values()) - sum(stored[name] for entry in entries for name in entry.fragments)
        if still > STUCK or (still > STILL and left < batch):
            return entries
        time.sleep(0.2)


def _stored(log: Path) -> dict[tuple[str, int], tuple[int, np.ndarray]]:
    """Give the steps of each fragment that became durable, and the version that decided each of them."""
    transport, found = disk.make(disk.Config(folder=str(log))), {}
    records, place = transport.read("experiences", after={}, limit=256, timeout=0.0)
    while records:
        for record in records:
            if kind_of(record.payload) == "Fragment":
                fragment = decode_fragment(record.payload)
                valid = fragment.columns["valid"]
                versions = fragment.columns.get("version", np.full(len(valid), fragment.version))
                each = np.broadcast_to(versions[:, None], valid.shape)[valid]
                found[fragment.stream, fragment.seq] = (len(each), each)
        records, place = transport.read("experiences", after=place, limit=256, timeout=0.0)
    transport.close()
    return found
