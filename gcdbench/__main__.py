"""``python -m gcdbench``, and what the command `gcdbench` calls."""

import sys


def start() -> None:
    """Import the command line and run it; Ctrl-C during the import is no reason for a traceback either."""
    try:
        from gcdbench.cli.main import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()


if __name__ == "__main__":
    start()
