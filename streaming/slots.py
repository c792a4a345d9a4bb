"""How many tasks Spark can run at once, and how many the engine needs.

A broker is one long task, so it holds a slot for good; the query of the Delta tables needs another,
or it would never have its turn.
"""

from __future__ import annotations

import os
import re

_LOCAL = re.compile(r"local(?:\[(?P<threads>\d+|\*)(?:,\s*\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[(\d+),\s*(\d+),\s*\d+\]")


def slots(master: str) -> int | None:
    """The tasks that run at once; None where only the cluster knows."""
    if found := _LOCAL.fullmatch(master):
        threads = found["threads"] or "1"
        return os.cpu_count() or 1 if threads == "*" else int(threads)
    if found := _LOCAL_CLUSTER.fullmatch(master):
        return int(found[1]) * int(found[2])
    return None


def slots_needed(brokers: int, tables: bool = True) -> int:
    """One for each broker, and one for the tables where there are any."""
    return brokers + tables
