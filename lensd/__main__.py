"""`python -m lensd` is the `lensd` command."""

from lensd.cli.main import main

main()
