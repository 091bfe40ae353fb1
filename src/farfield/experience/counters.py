"""Counts of a session in; one frozen set of numbers, and the same as text for Prometheus, out."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, structs


class Counters(Struct, frozen=True, kw_only=True):
    """What a session has done; docs/live.md explains each."""

    acted: int = 0
    fallbacks: int = 0
    late: int = 0
    episodes: int = 0
    fragments: int = 0
    steps: int = 0
    credits: int = 0
    sent: int = 0
    owned: int = 0
    refused: int = 0
    adopted: int = 0
    dropped_fragments: int = 0
    dropped_steps: int = 0
    damaged_bytes: int = 0
    waiting: int = 0
    waiting_bytes: int = 0
    memory_bytes: int = 0
    spooled_bytes: int = 0
    ahead: int = 0
    versions: int = 0
    version: int = -1
    newest: int = -1
    lag: int = 0
    reconnects: int = 0
    rubbish: int = 0
    connected: bool = False


GAUGES = frozenset(
    ("waiting", "waiting_bytes", "memory_bytes", "spooled_bytes", "ahead", "version", "newest", "lag", "connected")
)


def total(parts: list[Counters]) -> Counters:
    """Add up several policies; versions are the least that any acts with, lags the most."""
    if len(parts) == 1:
        return parts[0]
    sums: Any = {name: sum(getattr(part, name) for part in parts) for name in Counters.__struct_fields__}
    sums |= {name: min(getattr(part, name) for part in parts) for name in ("version", "newest", "connected")}
    sums["lag"] = max(part.lag for part in parts)
    return Counters(**sums)


def prometheus(parts: Mapping[str, Counters], labels: Mapping[str, str]) -> str:
    """Write the text format: one line for each counter and policy."""
    lines: list[str] = []
    for name in Counters.__struct_fields__:
        full = f"farfield_session_{name}" + ("" if name in GAUGES else "_total")
        lines.append(f"# TYPE {full} {'gauge' if name in GAUGES else 'counter'}")
        for policy, counters in parts.items():
            named = ",".join(f'{key}="{_quoted(value)}"' for key, value in {**labels, "policy": policy}.items())
            lines.append(f"{full}{{{named}}} {int(structs.asdict(counters)[name])}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
