"""The command `farfield`: words in, an exit code out; where an extra is not installed, the cure instead of a trace."""

import sys

from farfield.errors import lacking


def main() -> None:
    """Run one command; the base install has none of what commands need."""
    try:
        from farfield.cli import main as command

        command()
    except ModuleNotFoundError as error:
        sys.stderr.write(f"farfield: {lacking(error, 'this command')}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
