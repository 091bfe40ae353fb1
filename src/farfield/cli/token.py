"""`farfield token`: a name in, a new secret out, with what the server's file has to know of it."""

import sys
from datetime import UTC, datetime
from typing import Annotated

import typer

from farfield.cli.options import Json
from farfield.cli.screen import emit


def token(
    name: Annotated[str, typer.Argument(help="Who will hold it, for people and logs.")],
    *,
    scopes: Annotated[
        str, typer.Option(help="What it may do: ingest, act, read, operate, create, or admin for everything.")
    ] = "ingest,act",
    runs: Annotated[str, typer.Option(help="For which runs; * and ? stand for anything.")] = "*",
    expires: Annotated[str, typer.Option(help="When it ends: 30d, 12h, 8w, a date, or never.")] = "never",
    json: Json = False,
) -> None:
    """Draw a token. The secret is shown once and kept nowhere; the rest belongs into the server's file.

    Example: farfield token lander-game --scopes ingest,act --runs lander --expires 30d
    """
    from farfield.serving import tokens

    end = tokens.end_of(expires, datetime.now(UTC))
    secret, drawn = tokens.draw(name, _words(scopes), _words(runs), end)
    if json:
        import msgspec

        emit({"secret": secret} | msgspec.to_builtins(drawn))
        return
    sys.stdout.write(f"# The secret, for {name} alone; it is shown only now:\n{secret}\n\n")
    sys.stdout.write(f"# For server.toml:\n{_toml(drawn)}")


def _toml(drawn: object) -> str:
    import msgspec

    from farfield.config import to_toml
    from farfield.serving.tokens import RFC3339, Token

    assert isinstance(drawn, Token)
    plain = msgspec.to_builtins(drawn)
    plain.pop("expires")
    end = f"expires = {drawn.expires:{RFC3339}}\n" if drawn.expires else ""
    return f"[[tokens]]\n{to_toml(plain)}{end}"


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
