"""The Delta tables against Kafka and the clients' records: each thing once (R1)."""

from __future__ import annotations

import contextlib
import operator
from collections import Counter
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import Any

import deltalake
import lakequeue
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import TableNotFoundError
from job.processes import until
from kafka import KafkaConsumer, TopicPartition
from lakequeue.lake import read_columns


def rows_where(table: Path, columns: list[str], **values: Any) -> list[dict[str, Any]]:
    """The rows with these values. Rows of other tests, and their megabytes, are not read: such a
    query costs a tenth of one over whole tables."""
    if (there := newest(table)) is None:
        return []
    wanted = reduce(operator.and_, (_has(name, value) for name, value in values.items()))
    return there.to_pyarrow_dataset().to_table(columns, filter=wanted).to_pylist()


def newest(table: Path) -> deltalake.DeltaTable | None:
    """The newest version of a table; None if there is none yet, or it is being created."""
    with contextlib.suppress(TableNotFoundError):
        return deltalake.DeltaTable(table)
    return None


def _has(name: str, value: Any) -> pc.Expression:
    """Whether a column has this value; None: none, ...: any."""
    column = pc.field(name)
    if value is None or value is ...:
        return column.is_null() if value is None else column.is_valid()
    return column == value


def history_ends(tables: Path) -> datetime | None:
    """The time of the last step in the tables, from Delta's log, without reading rows."""
    if (steps := newest(tables / "steps")) is None:
        return None
    files = pa.table(steps.get_add_actions(flatten=True))
    return pc.max(files["max.now"]).as_py() if "max.now" in files.column_names else None


def await_history(tables: Path, connection: lakequeue.Connection, queue: str) -> None:
    """Wait until the tables have a step taken from here on."""
    last = connection.now()

    def reached() -> bool:
        connection.admin().describe(queue)  # one more step: otherwise there may be none to write
        ends = history_ends(tables)
        return ends is not None and ends > last

    until(reached, 120, "the history continues")


def in_kafka(bootstrap: str, topic: str) -> dict[tuple[str, int], int]:
    """The number of records in each partition."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    try:
        numbers = consumer.partitions_for_topic(topic) or set()
        ends = consumer.end_offsets([TopicPartition(topic, n) for n in numbers])
        return {(p.topic, p.partition): offset for p, offset in ends.items()}
    finally:
        consumer.close()


def check_tables(
    tables: Path, bootstrap: str, ids: set[str], vpns: tuple[str, ...] = ("default",)
) -> None:
    """Each message is once in `messages`, spooled once and acknowledged once in `journal`."""

    def journal(event: str) -> Counter[str]:
        rows = read_columns(tables / "journal", ["event", "queue", "message_id"]).to_pylist()
        found = [r for r in rows if r["event"] == event and r["queue"] == "orders"]
        return Counter(r["message_id"] for r in found)

    def offsets() -> set[tuple[str, int, int]]:
        """Records of the table."""
        names = ["topic", "partition", "offset", "item"]
        rows = read_columns(tables / "messages", names).to_pylist()
        whole = Counter(tuple(r[name] for name in names) for r in rows)
        assert set(whole.values()) <= {1}, "a message is twice in `messages`"
        return {where[:3] for where in whole}

    ends = {w: end for vpn in vpns for w, end in in_kafka(bootstrap, f"{vpn}.publish").items()}
    wanted = {(*where, i) for where, end in ends.items() for i in range(end)}
    until(lambda: ids <= set(journal("acknowledged")), 60, "the journal's acknowledgments")
    until(lambda: wanted <= offsets(), 60, "the table `messages`")
    for event in ("spooled", "acknowledged"):
        counted = journal(event)
        missing, more = len(ids - set(counted)), len(set(counted) - ids)
        assert not missing + more, f"{event}: {missing} are missing, {more} too many"
        assert set(counted.values()) == {1}, f"{event} more than once"
    assert offsets() == wanted
