"""The Delta tables' columns, and their version, as it stands in the properties of each table (R1).

1: tables without this property; they lack columns, which an engine adds. 2: the first that says so.
3: with `date`, by which a table is partitioned that was made with it, and `refs` in `snapshots`.
4: with `topic_id` in `messages` and `commands`.
"""

from __future__ import annotations

from collections.abc import Mapping

SCHEMA = "lakequeue.schema"
SCHEMA_VERSION = 4
CRC_MODULUS = 1 << 62  # of the sum over the pages of a snapshot

MESSAGES, JOURNAL = "messages", "journal"
COMMANDS, STEPS, SNAPSHOTS = "commands", "steps", "snapshots"

# What stands in `messages` already: `count` of its rows from record `first`, item `item` on, up to
# record `last`, none of them younger than `time`, µs since 1970.
REFS = (
    "ARRAY<STRUCT<topic: STRING, `partition`: INT, `first`: LONG, item: INT, `last`: LONG, "
    "count: INT, time: LONG>>"
)
NO_RUN = -1  # the `item` of a record that says that it is a run and is none: it stands as it came
# Columns of what the writers make, as Spark's SQL names them.
ROWS = {
    MESSAGES: (
        "topic STRING, `partition` INT, `offset` LONG, item INT, time TIMESTAMP, key BINARY, "
        "payload BINARY, lq STRING, headers STRING, topic_id STRING"
    ),
    JOURNAL: (
        "broker STRING, step LONG, part INT, vpn STRING, queue STRING, event STRING, "
        "message_id STRING, subscription STRING, reason STRING, deliveries INT, topic STRING, "
        "`partition` INT, `offset` LONG, item INT, time TIMESTAMP, line INT, until TIMESTAMP"
    ),
    COMMANDS: (
        "topic STRING, `partition` INT, `offset` LONG, time TIMESTAMP, command STRING, "
        "queue STRING, key BINARY, value BINARY, headers STRING, topic_id STRING"
    ),
    STEPS: (
        "broker STRING, step LONG, now TIMESTAMP, acked LONG, pages LONG, outputs LONG, "
        "code STRING, ranges ARRAY<STRUCT<topic: STRING, `partition`: INT, `first`: LONG, "
        "`last`: LONG, count: INT>>, sizes STRING, parts STRING, live STRING, opened STRING, "
        "`offset` LONG, time TIMESTAMP"
    ),
    SNAPSHOTS: (
        "broker STRING, step LONG, now TIMESTAMP, batch LONG, whole BOOLEAN, page STRING, "
        f"value BINARY, crc LONG, refs {REFS}"
    ),
}
DATE = "date"
COLUMNS = {name: f"{columns}, {DATE} DATE" for name, columns in ROWS.items()}


def refusal_of(table: str, properties: Mapping[str, str]) -> str:
    """Why a table with these properties is left alone; empty where it may be read and written."""
    said = properties.get(SCHEMA, "1")
    if said.isdecimal() and 1 <= int(said) <= SCHEMA_VERSION:
        return ""
    return (
        f"The Delta table {table} has version {said!r} of its columns; this version of lakequeue "
        f"knows 1 to {SCHEMA_VERSION}: use the version that wrote it, or another --home"
    )
