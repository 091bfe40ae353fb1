"""`farfield ping`: an address and a run in; whether a live program would be let in and served, and how fast, out."""

from collections.abc import Callable
from time import perf_counter
from typing import Annotated, Any, TypeVar

import typer

from farfield.cli.options import Json
from farfield.cli.screen import console, emit, table
from farfield.errors import MissingError

PROBE = 1024  # bytes that nobody reads
PROBES = 3

T = TypeVar("T")


def ping(
    address: Annotated[str, typer.Argument(help="Of the gateway: host:port, or unix:/path.")],
    *,
    run: Annotated[str, typer.Option("--run", help="Which run to knock at.")],
    token: Annotated[str, typer.Option("--token", envvar="FARFIELD_TOKEN", help="What lets us in.")] = "",
    policy: Annotated[str, typer.Option("--policy", help="Which of a run's policies.")] = "main",
    ca: Annotated[str, typer.Option("--ca", help="TLS: the file of the authority to trust; system: gRPC's own.")] = "",
    cert: Annotated[str, typer.Option("--cert", help="TLS: the file of our certificate, with --key.")] = "",
    key: Annotated[str, typer.Option("--key", help="TLS: the file of its key.")] = "",
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds for each step.")] = 10.0,
    json: Json = False,
) -> None:
    """Try what a live program needs: to be let in, to have bytes made durable, to get versions; time each.

    Example: farfield ping localhost:50051 --run lander
    """
    from farfield import __version__
    from farfield.transports.link.gate import Gate, Tls
    from farfield.types import Hello

    tls = Tls(ca="" if ca == "system" else ca, cert=cert, key=key) if ca or cert else None
    gate = Gate(address, token=token, tls=tls)
    hello = Hello(run, policy, client="farfield ping", library=f"farfield-python {__version__}")
    try:
        found = _steps(gate, hello, timeout)
    except ConnectionError as error:
        raise MissingError(f"{error}: see that farfield serve runs there, and that nothing is in the way") from error
    finally:
        gate.close()
    if json:
        for step, seconds, said in found:
            emit({"step": step, "seconds": seconds, "found": said})
        return
    rows = [(step, f"{1000 * seconds:.2f} ms", said) for step, seconds, said in found]
    console().print(table(("what", "took", "found"), rows, right=("took",)))


def _steps(gate: Any, hello: Any, timeout: float) -> list[tuple[str, float, str]]:
    """Take each step: its name, how long it took, what came."""
    seconds, welcome = _timed(lambda: gate.greet(hello, timeout))
    about = f"{welcome.library or 'unknown'}; fragments of {welcome.steps} steps, {welcome.window} ahead at most"
    found = [("handshake", seconds, about)]
    answers = gate.probe(hello, PROBE, timeout)
    try:
        seconds, _ = _timed(lambda: next(answers))
        found.append(("open append", seconds, "let in"))
        for number in range(1, PROBES + 1):
            seconds, _ = _timed(lambda: next(answers))
            found.append((f"durable append {number}", seconds, f"{PROBE} bytes are owned"))
    finally:
        answers.close()
    seconds, version = _timed(lambda: gate.newest(hello, timeout))
    said = "none within the time" if version is None else f"version {version.number} of attempt {version.attempt}"
    return [*found, ("versions", seconds, said)]


def _timed(step: Callable[[], T]) -> tuple[float, T]:
    begun = perf_counter()
    try:
        value = step()
    except StopIteration:
        raise ConnectionError("the gateway ended the call before it answered") from None
    return perf_counter() - begun, value
