"""The columns of the Delta tables, and their version in the properties of each table (R1).

Version 4 adds `topic_id` to `messages` and `commands`. The engine adds the columns that a table of
version 3 lacks. Older tables have no partitions, and are refused.
"""

from __future__ import annotations

from collections.abc import Mapping

SCHEMA = "lakequeue.schema"
SCHEMA_OLDEST, SCHEMA_VERSION = 3, 4
CRC_MODULUS = 1 << 62  # the sum of the pages' CRCs is taken modulo this

MESSAGES, JOURNAL = "messages", "journal"
COMMANDS, STEPS, SNAPSHOTS = "commands", "steps", "snapshots"

NO_RUN = -1  # the `item` of a record that claims to be a run but is malformed; stored unchanged
# References to contents that `messages` already has: `count` rows, from item `item` of record
# `first` up to record `last`, none newer than `time` (µs since 1970).
REFS = (
    "ARRAY<STRUCT<topic: STRING, `partition`: INT, `first`: LONG, item: INT, `last`: LONG, "
    "count: INT, time: LONG>>"
)
# The columns that writers fill, as Spark SQL types.
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
    """The reason why a table with these properties must not be used; empty if it may be read and
    written."""
    version = properties.get(SCHEMA, "1")
    if version.isdecimal() and SCHEMA_OLDEST <= int(version) <= SCHEMA_VERSION:
        return ""
    return (
        f"The Delta table {table} has schema version {version!r}; this version of lakequeue "
        f"supports {SCHEMA_OLDEST} to {SCHEMA_VERSION}: use the version that wrote it, or move the "
        "table away; the engine then creates a new one"
    )
