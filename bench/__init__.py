"""The benchmarks of `lakequeue bench`.

Each starts its own Kafka and engine in a temporary folder, measures, and prints a table or, with
`--json`, JSON. `subcommands` has the command line.
"""

from .subcommands import command

__all__ = ["command"]
