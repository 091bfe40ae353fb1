"""`python -m farfield` is `farfield`."""

from farfield.cli import main

if __name__ == "__main__":
    main()
