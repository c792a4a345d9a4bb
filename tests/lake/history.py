"""A world of steps, as the Delta tables that an engine writes of it: real files."""

from __future__ import annotations

import json
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from lake.on_files import write_table
from lake.references_in_memory import places_of, references_to
from lakequeue.protocol import topics
from lakequeue.protocol.journal import Journal, JournalSegment
from lakequeue.protocol.journal_encoding import encode
from lakequeue.protocol.table_format import CRC_MODULUS
from lakequeue.protocol.wire import STEP, headers_list
from lakequeue.replica.driver import Snapshot
from lakequeue.sinks.block_references import REFERENCE
from lakequeue.sinks.kafka_records import records_of
from lakequeue.sinks.table_batch import STEP_ROWS, command_rows, journal_rows, step_row
from lakequeue.sinks.table_batch import message_rows as rows_of_messages
from lakequeue.sources.step_batch import goes_first
from lakequeue.state import FORMAT, DictStore
from loop.memory import HOME, Message, World

SNAPSHOTS = pa.schema(
    [
        ("broker", pa.string()), ("step", pa.int64()), ("now", pa.timestamp("us", "UTC")),
        ("batch", pa.int64()), ("whole", pa.bool_()), ("page", pa.string()),
        ("value", pa.binary()), ("crc", pa.int64()), ("refs", pa.list_(REFERENCE)),
    ]
)  # fmt: skip


ANY = JournalSegment("spooled", "default", "orders", [1])


def message_rows(m: Message) -> list[dict[str, Any]]:
    """A row for each message of a record, as the query of the tables writes them."""
    return rows_of_messages(records_of([m], {})).drop_columns(["topic_id"]).to_pylist()


def said_to_journal(world: World) -> pa.Table:
    """All journal rows of a broker's steps, each once."""
    records = {
        dict(headers_list(r.headers))[STEP]: r
        for _, said in world.said for r in said if r.topic == "default.journal"
    }  # fmt: skip
    found = [
        batch for step, r in records.items()
        for batch in journal_rows((r.key or b"").decode(), step.decode(), r.value or b"")
    ]  # fmt: skip
    schema = next(journal_rows("b", "0.0", encode(Journal("b", 0, 0, [ANY])))).schema
    return pa.Table.from_batches(found, schema)


def by_reference(
    rows: list[dict[str, Any]], saved: list[tuple[Snapshot, DictStore]], journal: pa.Table,
    messages: pa.Table,
) -> list[dict[str, Any]]:  # fmt: skip
    """The same snapshots, with references to blocks that `messages` has."""
    blocks: dict[int, dict[str, bytes]] = {own.step: {} for own, _ in saved}
    for row in rows:
        if row["page"].startswith("b/") and row["value"] is not None:
            blocks[row["step"]][row["page"]] = row["value"]
    places = places_of(messages)
    named = {step: references_to(theirs, journal, places) for step, theirs in blocks.items()}
    return [
        {**row, "value": None, "refs": refs}
        if (refs := named[row["step"]].get(row["page"])) and row["value"] is not None else row
        for row in rows
    ]  # fmt: skip


def snapshot_rows(saved: list[tuple[Snapshot, DictStore]], whole_each: int) -> list[dict[str, Any]]:
    """A chain of snapshots, each with its changes, as the snapshot writer writes them."""
    rows: list[dict[str, Any]] = []
    said: dict[str, int] = {}  # the previous snapshot, as the writer knows it
    before: dict[str, bytes] = {}
    for n, (own, store) in enumerate(saved):
        whole = n % whole_each == 0
        known = {} if whole else before
        changes: dict[str, bytes | None] = {
            page: value for page, value in store.pages.items() if known.get(page) != value
        }
        changes |= dict.fromkeys(known.keys() - store.pages.keys())
        crcs = {page: crc_of(page, value) for page, value in store.pages.items()}
        head = {
            "broker": HOME.name, "step": own.step, "now": own.now * 1000, "batch": n, "whole": whole
        }  # fmt: skip
        for page, value in changes.items():
            stored = whole and page.startswith("b/") and said.get(page) == crcs[page]
            kept = None if stored else value  # a block is written once
            rows.append({**head, "page": page, "value": kept, "crc": crcs.get(page)})
        said = crcs
        total = sum(crcs.values()) % CRC_MODULUS
        rows.append({**head, "page": "", "value": msgspec.msgpack.encode(own), "crc": total})
        before = dict(store.pages)
    return rows


def crc_of(page: str, value: bytes) -> int:
    return zlib.crc32(page.encode() + value)


def write_history(
    world: World, home: Path, saved: list[tuple[Snapshot, DictStore]] = (), whole_each: int = 3,
    *, refer: bool = True,
) -> Path:  # fmt: skip
    """Write the tables of a home; the journal stays empty. refer: snapshots name payloads that
    `messages` has."""
    home.mkdir(exist_ok=True)
    log = topics.topic(HOME.name, topics.STEPS)
    when = datetime(2026, 1, 1, tzinfo=UTC)
    steps = [step_row(log, at, when, value) for at, value in enumerate(world.log)]
    there = [m for messages in world.topics.values() for m in messages]
    first, others = (
        records_of([m for m in there if goes_first(m.topic_) is which], {})
        for which in (True, False)
    )
    messages, journal = rows_of_messages(others), said_to_journal(world)
    snapshots = snapshot_rows(list(saved), whole_each)
    if refer and snapshots:
        snapshots = by_reference(snapshots, list(saved), journal, messages)
    tables = {
        "messages": messages,
        "journal": journal.slice(0, 0),
        "commands": command_rows(first),
        "steps": pa.Table.from_pylist(steps, STEP_ROWS),
        "snapshots": pa.Table.from_pylist(snapshots, SNAPSHOTS),
    }
    for name, rows in tables.items():
        write_table(home, name, rows)
    (home / "lakequeue.json").write_text(json.dumps({"epoch": HOME.epoch, "format": FORMAT}))
    return home
