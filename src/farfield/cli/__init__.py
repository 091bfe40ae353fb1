"""Words of a command line go in; a command runs, and its exit code says how it went."""

import errno
import os
import sys

import typer

from farfield.cli import catalogue, doctor, export, ping, play, runs, serve, token, train
from farfield.errors import FarfieldError

REFUSED, INTERRUPTED = 2, 130

app = typer.Typer(
    name="farfield",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Reinforcement learning for software in the field.\n\nBegin with: farfield train CartPole-v1",
)

for command in (
    train.train,
    play.play,
    runs.runs,
    runs.show,
    runs.plot,
    export.export,
    catalogue.envs,
    catalogue.algorithms,
    doctor.doctor,
    serve.serve,
    token.token,
    ping.ping,
):
    app.command()(command)


@app.callback(invoke_without_command=True)
def about(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    """Say which Farfield this is."""
    if version:
        from importlib.metadata import version as installed

        sys.stdout.write(f"farfield {installed('farfield')}\n")
        raise typer.Exit


def main(words: list[str] | None = None) -> None:
    """Run one command, from the process's own words where none are given.

    Modules in the working directory are found, behind everything that is installed. What we raise on purpose becomes
    one line on stderr and exit code 2; Ctrl-C gives 130.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        app(args=words, prog_name="farfield")
    except FarfieldError as error:
        sys.exit(_refuse(str(error)))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        if error.filename is None and error.errno != errno.ENOSPC:
            raise
        where = error.filename or "what was being written"
        sys.exit(_refuse(f"{where}: {error.strerror}; check the path, its permissions and the room on its disk"))


def _refuse(message: str) -> int:
    """Say in one line why nothing was done."""
    line = " ".join(message.split())
    sys.stderr.write(f"farfield: {line}\n")
    return REFUSED
