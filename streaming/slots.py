"""How many tasks Spark can run at once, and how many the engine needs.

A broker is one long task, so it holds a slot for good; the query of the Delta tables needs another,
or it would never have its turn.
"""

from __future__ import annotations

import os
import re

from ..protocol import LakequeueError

SLOTS_MIN = 4
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


def default_master(brokers: int) -> str:
    """Of an engine that is told nothing else. More tasks than cores: most wait for each other. A
    task whose worker died is tried again three times, which is faster than to start its query
    again."""
    return f"local[{max(SLOTS_MIN, slots_needed(brokers))},4]"


def check_slots(master: str, brokers: int, tables: bool) -> None:
    """Raise LakequeueError where one of several brokers would never have its turn."""
    found, needed = slots(master), slots_needed(brokers, tables)
    if brokers > 1 and found is not None and found < needed:
        raise LakequeueError(
            f"Spark's master {master} runs {found} tasks at once, and {brokers} brokers"
            f"{' and the tables' if tables else ''} need {needed}: give it more, such as "
            f"local[{needed}]"
        )


def slots_needed(brokers: int, tables: bool = True) -> int:
    """One for each broker, and one for the tables where there are any."""
    return brokers + tables
