"""`farfield serve`: options and files in, the gateway for live programs out, until it is told to stop."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from farfield.cli.options import Home, Json
from farfield.cli.screen import emit


def serve(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN.toml]...", help="Runs to begin or to go on with; their configs."),
    ] = None,
    *,
    home: Home = "",
    grpc: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where gRPC listens; '' for nowhere.")] = None,
    http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where REST listens; '' for nowhere.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="The server's file: addresses, tokens, TLS, limits, defaults.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine without tokens: anybody may do everything.")
    ] = False,
    log_level: Annotated[str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = None,
    json: Json = False,
) -> None:
    """Take experience of live programs in, learn from it, and give them better versions; Ctrl-C stops it.

    Example: farfield serve --grpc 127.0.0.1:50051 lander.toml
    """
    # One thread of arithmetic, as everywhere; NumPy looks at these when it is imported.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    from farfield.gateway import process, settings

    given = {"home": home or None, "grpc": grpc, "http": http, "insecure": insecure or None, "log_level": log_level}
    options: dict[str, Any] = {key: value for key, value in given.items() if value is not None}

    def say(door: str, address: str) -> None:
        if json:
            emit({"door": door, "address": address})
        else:
            sys.stdout.write(f"{door} {address}\n")
        sys.stdout.flush()

    code = process.serve(settings.resolve(config, options), runs or [], say, json=json)
    if code:
        raise typer.Exit(code)
