"""`python -m lakequeue.cli` is `lakequeue`."""

from . import main

main(prog_name="lakequeue")
