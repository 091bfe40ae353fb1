"""Options and arguments that several commands share, and what completes them in a shell."""

from typing import Annotated

import typer

Home = Annotated[
    str,
    typer.Option(
        "--home", metavar="DIR", help="Where runs live. Default: FARFIELD_HOME, or the platform's data folder."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON lines for programs.")]


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer the names of runs."""
    from farfield.wiring import run_names

    return [name for name in run_names(ctx.params.get("home") or "") if name.startswith(incomplete)]


def complete_algorithm(incomplete: str) -> list[str]:
    """Offer the names of algorithms."""
    from farfield.config import kinds

    return [name for name in kinds("learning.algorithms") if name.startswith(incomplete)]


def complete_env(incomplete: str) -> list[str]:
    """Offer the ids of environments."""
    from farfield.experience.catalog import names

    return [name for name in names() if name.startswith(incomplete)]


Run = Annotated[str, typer.Argument(metavar="RUN", help="Name of a run.", autocompletion=complete_run)]
Runs = Annotated[list[str], typer.Argument(metavar="RUN...", help="Names of runs.", autocompletion=complete_run)]
VersionNumber = Annotated[
    int | None, typer.Option("--version", metavar="N", help="Which version; default: the newest.")
]
