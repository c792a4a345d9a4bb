"""One writer for a home's Delta tables, and their repair while no engine runs (R1).

`TablesLock`: an engine checks only at its start which rows the tables lack. Two engines would write
every row twice, so the second is refused. The operating system holds the lock, on a file beside the
tables, so it is released however a process ends.

`repair`: repairs damaged tables (`sinks.table_damage`) and removes the checkpoints of the queries
that write them. The tables record where to continue, and the engine writes the rows missing at
their end again if Kafka still has the records. A history that starts over writes a whole snapshot
first (`sinks.snapshots`), so every moment from then on can be rebuilt.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from ...protocol.errors import LakequeueError
from ...protocol.folders import remove
from ...protocol.home_places import TABLES, TABLES_LOCK, checkpoints_place, places_of, tables_place
from ...sinks.table_damage import look_at_tables, mend
from ..file_lock import OwnedLock
from ..home.home_folder import HISTORY_CHECKPOINT, TABLES_CHECKPOINT


class TablesTaken(LakequeueError):
    """Another process has the tables. owner: which one, as it wrote into the lock's file."""

    def __init__(self, tables: Path, owner: str) -> None:
        super().__init__(
            f"The tables {tables} are written by another engine ({owner}): stop that one, or use "
            "another --home"
        )
        self.owner = owner


class TablesLock(OwnedLock):
    """An engine's lock. tables: the folder of the tables. `take` raises TablesTaken if another
    engine has it."""

    def __init__(self, tables: Path) -> None:
        owner = f"process {os.getpid()} on {socket.gethostname()}"
        super().__init__(tables / TABLES_LOCK, owner, lambda other: TablesTaken(tables, other))


def repair(home: Path) -> list[str]:
    """Repair damaged tables. Returns one sentence per repair. Raises LakequeueError while an engine
    runs, OSError if a file cannot be written."""
    places = places_of(home)
    tables, checkpoints = tables_place(home, places), checkpoints_place(home, places)
    lock = TablesLock(home / TABLES)
    try:
        lock.take()
    except TablesTaken as taken:
        raise LakequeueError(
            f"The engine of home {home} is running ({taken.owner}) and has its tables open: stop "
            "it, run this command again, and start it. The queues do not need the repair and "
            "continue without it"
        ) from taken
    try:
        if all(table.is_whole for table in look_at_tables(tables)):
            return []
        for name in (TABLES_CHECKPOINT, HISTORY_CHECKPOINT):
            remove(checkpoints / name)  # first, so that an interrupted repair can be repeated
        return list(mend(tables))
    finally:
        lock.release()
