"""Values go in, JSON lines or tables for people come out."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any


def emit(value: Any) -> None:
    """Write one JSON line."""
    import msgspec

    sys.stdout.write(msgspec.json.encode(value, enc_hook=lambda other: other.tolist()).decode() + "\n")
    sys.stdout.flush()


def write(text: str) -> None:
    """Write text as it is."""
    sys.stdout.write(text + "\n")


def console() -> Any:
    """Open the terminal; where there is none, lines are as long as they must be."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Iterable[str] = (), title: str = "") -> Any:
    """Make a table; columns named in `right` are aligned there; strings are taken as they are, brackets and all."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold", pad_edge=False)
    for head in heads:
        made.add_column(head, justify="right" if head in right else "left", header_style="dim", overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return made


def pairs(facts: Mapping[str, str]) -> Any:
    """Make a list of names and values."""
    from rich.table import Table
    from rich.text import Text

    made = Table.grid(padding=(0, 2))
    made.add_column(style="dim")
    made.add_column()
    for name, value in facts.items():
        made.add_row(name, Text(value))
    return made


def number(value: Any) -> str:
    """Write a number for people, or a dash where there is none."""
    return f"{value:,.4g}" if isinstance(value, int | float) else "–"


def when(seconds: float) -> str:
    """Write a moment in local time."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
