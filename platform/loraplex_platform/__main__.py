"""`python -m loraplex_platform` is the command line."""

from loraplex_platform.cli import main

main()
