"""The locations of a home's tables and checkpoints.

The home is a folder on the driver's machine: locks, logs, rebuilt state, Kafka's files, and
`lakequeue.json`, which identifies it. Tables and checkpoints are large and must outlive that
machine, so they can be on any file system (`folders`). `lakequeue.json` then has their locations.
"""

from __future__ import annotations

import json
from pathlib import Path

from .folders import Folder, folder

ABOUT, PLACES = "lakequeue.json", "places"
TABLES, CHECKPOINTS = "tables", "checkpoints"
TABLES_LOCK = ".writer"  # next to the tables; their writer holds it
KAFKA = "kafka"  # the id of the cluster that the home is on
# Checkpoints of the queries that write tables. If one is missing, the query resumes after the last
# records in its tables.
OF_TABLES = ("tables-checkpoint", "history-checkpoint")


def places_of(home: Path) -> dict[str, str]:
    """The locations in `lakequeue.json`; empty if there are none or the file is unreadable, which
    other code reports."""
    try:
        stored = json.loads((home / ABOUT).read_text()).get(PLACES, {})
        return {name: str(stored[name]) for name in (TABLES, CHECKPOINTS) if name in stored}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def tables_place(home: Path, places: dict[str, str] | None = None) -> Folder:
    """The folder of the tables. places: the result of `places_of`, if the caller has it."""
    stored = places_of(home) if places is None else places
    return folder(stored[TABLES]) if TABLES in stored else home / TABLES


def has_table(place: Folder) -> bool:
    """Whether this folder is a Delta table with at least one version."""
    return any((place / "_delta_log").glob("*.json"))


def checkpoints_place(home: Path, places: dict[str, str] | None = None) -> Folder:
    """The folder with the checkpoints' folders."""
    stored = places_of(home) if places is None else places
    return folder(stored[CHECKPOINTS]) if CHECKPOINTS in stored else home
