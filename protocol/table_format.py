"""The version of the Delta tables' columns, as it stands in the properties of each table (R1).

1: tables without this property; they lack columns, which an engine adds. 2: the first that says so.
3: with `date`, by which a table is partitioned that was made with it, and `refs` in `snapshots`.
"""

from __future__ import annotations

from collections.abc import Mapping

SCHEMA = "lakequeue.schema"
SCHEMA_VERSION = 3
CRC_MODULUS = 1 << 62  # of the sum over the pages of a snapshot


def refusal_of(table: str, properties: Mapping[str, str]) -> str:
    """Why a table with these properties is left alone; empty where it may be read and written."""
    said = properties.get(SCHEMA, "1")
    if said.isdecimal() and 1 <= int(said) <= SCHEMA_VERSION:
        return ""
    return (
        f"The Delta table {table} has version {said!r} of its columns; this version of lakequeue "
        f"knows 1 to {SCHEMA_VERSION}: use the version that wrote it, or another --home"
    )
