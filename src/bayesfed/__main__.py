"""`python -m bayesfed` is the command `bayesfed`."""

from bayesfed.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
