"""`python -m limpet.cli`, the same as `limpet`."""

from limpet.cli.main import main

main()
