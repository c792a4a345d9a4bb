"""Benchmarks that anyone can run: `lakequeue bench depth|churn|latency|throughput|core`.

Each starts what it needs in a temporary folder, measures in one run, and prints a table for people
or, with `--json`, one JSON object.
"""

from .subcommands import command

__all__ = ["command"]
