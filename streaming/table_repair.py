"""Mends the Delta tables of a home whose engine stands still (R1), see `sinks.table_damage`.

The checkpoints of the queries that write the tables go as well: what stands in the tables says
where these go on, and what is missing at their end is written again as far as Kafka still has it.
A history that begins anew writes a whole snapshot first (`sinks.snapshots`), so from then on any
moment can be made again, whatever is lost before it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from ..protocol.errors import LakequeueError
from ..protocol.folders import Folder
from ..protocol.home_places import TABLES, checkpoints_place, places_of, tables_place
from ..sinks.table_damage import look_at_tables, mend
from .home import HISTORY_CHECKPOINT, TABLES_CHECKPOINT
from .tables_lock import TablesLock, TablesTaken


def repair(home: Path) -> list[str]:
    """Mend what is damaged; what was done, a sentence each. Raises LakequeueError where an engine
    runs, OSError for what cannot be written."""
    places = places_of(home)
    tables, checkpoints = tables_place(home, places), checkpoints_place(home, places)
    lock = TablesLock(home / TABLES)
    try:
        lock.take()
    except TablesTaken as taken:
        raise LakequeueError(
            f"The engine of home {home} is running ({taken.owner}) and has its tables open: stop "
            "it, run this command again, and start it. The queues do not need the repair: they "
            "go on meanwhile"
        ) from taken
    try:
        if all(table.is_whole for table in look_at_tables(tables)):
            return []
        for name in (TABLES_CHECKPOINT, HISTORY_CHECKPOINT):
            _remove(checkpoints / name)  # first: who is interrupted repairs once more
        return list(mend(tables))
    finally:
        lock.release()


def _remove(place: Folder) -> None:
    if isinstance(place, Path):
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.remove()
