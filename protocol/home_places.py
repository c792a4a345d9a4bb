"""Where a home says that its tables and checkpoints are, when they are elsewhere than in it.

The home itself is a folder of the driver's machine: locks, logs, what was rebuilt, Kafka's files,
and `lakequeue.json`, which says who it is. What is large and must be there after that machine can
stand on any file system (`folders`); then `lakequeue.json` says where, so that whoever is given the
home finds it.
"""

from __future__ import annotations

import json
from pathlib import Path

from .folders import Folder, folder

ABOUT, PLACES = "lakequeue.json", "places"
TABLES, CHECKPOINTS = "tables", "checkpoints"
KAFKA = "kafka"  # the id of the cluster that the home is on
# Checkpoints of the queries that write tables; without one, the tables say where it goes on.
OF_TABLES = ("tables-checkpoint", "history-checkpoint")


def places_of(home: Path) -> dict[str, str]:
    """What the home says; empty where it says nothing, or cannot be read: others tell that."""
    try:
        said = json.loads((home / ABOUT).read_text()).get(PLACES, {})
        return {name: str(said[name]) for name in (TABLES, CHECKPOINTS) if name in said}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def tables_place(home: Path, places: dict[str, str] | None = None) -> Folder:
    """The folder of the tables. places: what the home says, if that was asked already."""
    said = places_of(home) if places is None else places
    return folder(said[TABLES]) if TABLES in said else home / TABLES


def checkpoints_place(home: Path, places: dict[str, str] | None = None) -> Folder:
    """The folder in which the folders of all checkpoints are."""
    said = places_of(home) if places is None else places
    return folder(said[CHECKPOINTS]) if CHECKPOINTS in said else home
