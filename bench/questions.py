"""The time of queries of the tables, over a journal of this many messages (R1, R6).

The journal is generated with the engine's own codec: every message is spooled, every second one
delivered, every fourth acknowledged. A record has 10,000 rows, a Delta commit a hundred records.
Each query opens the tables anew. CPU time is shown too, since other work on the machine changes it
less.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from ..definitions import parse_definition
from ..lake import TABLES, open_lake, trace
from ..protocol.journal import Journal, JournalSegment
from ..protocol.journal_encoding import encode
from ..protocol.table_format import SCHEMA, SCHEMA_VERSION
from ..sinks.table_batch import journal_rows
from .subcommands import messages as messages_option

OPTIONS = (messages_option(1_000_000),)
TOGETHER, COMMIT = 10_000, 100
START_MS, STEP_MS = 1_760_000_000_000, 1_000
TOPIC = "default.publish"
WAITS = "2"  # this message waits during all later deliveries
QUESTIONS = {
    "queued": "SELECT count(entered_at), count(consumer), count(state) FROM queued",
    "queued by state": "SELECT queue, state, count(*) FROM queued GROUP BY ALL",
    "queues": "SELECT * FROM queues",
    "lifecycle": "SELECT count(published_at), sum(waiting_ms), count(consumers) FROM lifecycle",
    "one of lifecycle": "SELECT * FROM lifecycle WHERE message_id = '17'",
}


def run(messages: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for each query."""
    with tempfile.TemporaryDirectory(prefix="lakequeue-") as folder:
        home = Path(folder)
        rows = _write(home, messages)
        found = [_asked(name, home, partial(_sql, sql)) for name, sql in QUESTIONS.items()]
        found.append(_asked("trace", home, lambda lake: trace(lake, WAITS)))
    return [{**row, "messages": messages, "journal_rows": rows} for row in found]


def _asked(question: str, home: Path, ask: Callable[[Any], Any]) -> dict[str, Any]:
    start, cpu = time.perf_counter(), time.process_time()
    with open_lake(home) as lake:
        assert ask(lake)
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    return {"question": question, "seconds": seconds, "cpu_seconds": cpu_s}


def _sql(sql: str, lake: Any) -> Any:
    return lake.execute(sql).fetchall()


def _write(home: Path, messages: int) -> int:
    """Write the two tables; returns the number of rows of the journal."""
    import deltalake

    rows = 0
    waiting: list[pa.RecordBatch] = []
    records = list(range(0, messages, TOGETHER))
    for at in records:
        waiting += _journal(at, min(TOGETHER, messages - at))
        if len(waiting) >= COMMIT or at == records[-1]:
            table = pa.Table.from_batches(waiting)
            deltalake.write_deltalake(home / "tables" / "journal", table, mode="append")
            rows, waiting = rows + len(table), []
    deltalake.write_deltalake(home / "tables" / "messages", _messages(messages))
    for name in TABLES:
        alter = deltalake.DeltaTable(home / "tables" / name).alter
        alter.set_table_properties({SCHEMA: str(SCHEMA_VERSION)}, raise_if_not_exists=False)
    return rows


def _journal(first: int, n: int) -> Iterator[pa.RecordBatch]:
    """The events of ``n`` messages, from ``first`` on."""
    step = first // TOGETHER + 1
    ids = list(range(first + 1, first + n + 1))
    now = START_MS + step * STEP_MS
    segments = [
        JournalSegment(
            "spooled", "default", "orders", ids, topic=TOPIC, partitions=[0] * n,
            offsets=ids, items=[0] * n,
        ),
        JournalSegment(
            "delivered", "default", "orders", ids[::2], 1, "one", until=now + 30_000,
        ),
        JournalSegment("acknowledged", "default", "orders", ids[::4], 1, "one"),
    ]  # fmt: skip
    if not first:
        about = "subscription=one, backlog=1000, consumer=app-1"
        segments = [
            JournalSegment("defined", "default", "orders"),
            JournalSegment("definition", "default", "orders", reason=_definition()),
            JournalSegment("subscribed", "default", "orders", subscription="one", reason=about),
            *segments,
        ]
    yield from journal_rows("broker-0", f"{step}.0", encode(Journal("b", step, now, segments)))


def _definition() -> str:
    definition = parse_definition({"name": "orders", "message_type": "json"})
    return msgspec.json.encode(definition).decode()


def _messages(n: int) -> pa.Table:
    ids = pa.array(range(1, n + 1), pa.int64())
    times = pa.array([START_MS * 1000] * n, pa.timestamp("us", "UTC"))
    return pa.table(
        {
            "topic": pa.repeat(TOPIC, n), "partition": pa.repeat(pa.scalar(0, pa.int32()), n),
            "offset": ids, "item": pa.repeat(pa.scalar(0, pa.int32()), n), "time": times,
            "payload": pa.repeat(pa.scalar(b'{"price": 12}'), n),
        }
    )  # fmt: skip
