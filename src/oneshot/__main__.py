"""`python -m oneshot` is the command `oneshot`."""

import sys


def run() -> None:
    """Run the command line; Ctrl-C ends it without a traceback, also while modules are read."""
    try:
        from oneshot.cli import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    run()
