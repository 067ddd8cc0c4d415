"""`python -m oneshot` is the command `oneshot`."""

from oneshot.cli import main

main()
