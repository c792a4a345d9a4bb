"""How long a rebuild takes, of a queue with so many messages of 1 KB (R3).

The engine's own driver takes them in, in memory, a thousand a step, and what it leaves is written
as the Delta tables that an engine writes: a message as a row, what was said of it in the journal as
another. A rebuild has two ways to a message, and each is measured alone: all of them stand in the
snapshot, or all of them came behind it and their steps are taken again.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from ..lake.rebuilding import rebuild
from ..protocol import topics
from ..protocol.errors import LakequeueError
from ..protocol.messages import HEADER, RUN_MAX, PublishHeader, encode_publish_header, encode_run
from ..protocol.table_format import CRC_MODULUS
from ..protocol.wire import STEP, WireRecord, headers_list
from ..replica.driver import Clocks, Driver, Snapshot
from ..sinks.block_references import PLACE, REFERENCE
from ..sinks.table_batch import STEP_ROWS, journal_rows, step_row
from ..sources.step_batch import PartitionId, Taken, to_batch
from ..state import FORMAT, DictStore, Home
from .harness import Say
from .references_in_memory import places_of, references_to

HOME = Home("broker-0", 0, 7)
PUBLISH, COMMANDS, JOURNAL = "default.publish", "default.commands", "default.journal"
SIZES = {PUBLISH: 1, COMMANDS: 1, JOURNAL: 1, "default.receipts": 1, "default.deliveries": 1,
         "default.directory": 1, "default.rejected": 1}  # fmt: skip
QUEUE = {"name": "orders", "message_type": "binary", "max_spool_usage": "50GB"}
PAYLOAD_BYTES = 1_000
A_STEP = 1_000  # messages
COMMIT = 50  # steps in a file of the tables
STEP_MS = 20
BEGIN_MS = 1_760_000_000_000
_PLACE: list[Any] = [
    ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()),
]  # fmt: skip
_TIME: Any = ("time", pa.timestamp("us", "UTC"))
_MESSAGES = pa.schema(
    [
        *_PLACE, ("item", pa.int32()), _TIME, ("key", pa.binary()), ("payload", pa.binary()),
        ("lq", pa.string()), ("headers", pa.string()),
    ]
)  # fmt: skip
_COMMANDS = pa.schema(
    [
        *_PLACE, _TIME, ("command", pa.string()), ("queue", pa.string()), ("key", pa.binary()),
        ("value", pa.binary()), ("headers", pa.string()),
    ]
)  # fmt: skip
_SNAPSHOTS = pa.schema(
    [
        ("broker", pa.string()), ("step", pa.int64()), ("now", _TIME[1]), ("batch", pa.int64()),
        ("whole", pa.bool_()), ("page", pa.string()), ("value", pa.binary()), ("crc", pa.int64()),
        ("refs", pa.list_(REFERENCE)),
    ]
)  # fmt: skip


def run(messages: int, say: Say) -> list[dict[str, Any]]:
    """A row for each way."""
    return [_measured(messages, way, say) for way in ("snapshot", "steps")]


def _measured(messages: int, way: str, say: Say) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="lakequeue-") as folder:
        old, new = Path(folder, "old"), Path(folder, "new")
        say(f"{messages:,} messages, all of them in the {way}")
        _RecordedLife(old).live(messages, saved=way == "snapshot")
        say("rebuilding")
        begin, cpu = time.perf_counter(), time.process_time()
        (done,) = rebuild(old, new)
        seconds, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
        if done.messages != messages:
            raise LakequeueError(f"{done.messages:,} of {messages:,} messages were rebuilt")
    return {
        "messages": messages, "all_in": way, "seconds": seconds, "cpu_s": cpu_s,
        "msgs_s": messages / seconds,
    }  # fmt: skip


class _RecordedLife:
    """A broker's life, and its tables. Is `driver.Inputs`, `Log` and `OutputWriter` at once."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._now = BEGIN_MS
        self._next: list[_InRecord] = []
        self._offsets: dict[PartitionId, int] = {}
        self._log: list[bytes] = []
        self._heard = 0
        self._rows: dict[str, list[pa.Table]] = {}
        self._journal: list[pa.Table] = []
        self._places: list[pa.Table] = []

    def live(self, messages: int, *, saved: bool) -> None:
        """Take so many in. saved: the snapshot is written at the end, else at the beginning."""
        store = DictStore()
        clocks = Clocks(lambda: self._now, time.monotonic, time.thread_time)
        driver = Driver(HOME, "bench", store, Snapshot(), self, self, clocks)
        driver.learn(SIZES)
        self._say(command="begin", epoch=HOME.epoch)
        self._say(command="define", definition=QUEUE)
        driver.one(self, 0.0)
        if not saved:
            self._save(driver, store)
        for at in range(0, messages, A_STEP):
            for first in range(at, min(at + A_STEP, messages), RUN_MAX):
                count = min(RUN_MAX, min(at + A_STEP, messages) - first)
                header = PublishHeader(to="orders", producer="bench", seq=first + 1, count=count)
                lq = encode_publish_header(header)
                payloads = [os.urandom(PAYLOAD_BYTES) for _ in range(count)]
                self._note_messages(lq, payloads)
                self._add(PUBLISH, encode_run(payloads), lq)
            driver.one(self, 0.0)
            self._now += STEP_MS
            if at // A_STEP % COMMIT == COMMIT - 1:
                self._flush()
        self._now += 2_000  # the journal's last part is due
        driver.one(self, 0.0)
        if saved:
            self._save(driver, store)
        self._flush()
        about = {"format": FORMAT, "trigger": "real-time", "epoch": HOME.epoch}
        (self._home / "lakequeue.json").write_text(json.dumps(about))

    # ------------------------------------------------------------ what the driver asks for

    def take(self, timeout_s: float) -> Taken | None:
        found: dict[PartitionId, list[Any]] = {}
        for record in self._next:
            found.setdefault(record.place, []).append(record)
        self._next = []
        return to_batch(found) if found else None

    def up_to(self) -> int | None:
        return None

    def current(self) -> bool:
        return True

    def append(self, value: bytes) -> None:
        row = step_row(f"{HOME.name}.{topics.STEPS}", len(self._log), _time(self._now), value)
        self._log.append(b"")
        self._write("steps", pa.Table.from_pylist([row or {}], STEP_ROWS))

    def written(self, timeout_s: float) -> list[int]:
        begin, self._heard = self._heard, len(self._log)
        return list(range(begin, self._heard))

    def send(self, step: int, records: Iterable[WireRecord]) -> None:
        for r in records:
            if r.topic == JOURNAL:
                said = dict(headers_list(r.headers))[STEP].decode()
                rows = journal_rows((r.key or b"").decode(), said, r.value or b"")
                table = pa.Table.from_batches(rows)
                self._write("journal", table)
                self._journal.append(table.select(["event", "message_id", *PLACE]))

    def acked(self) -> int | None:
        return None

    # ------------------------------------------------------------ the tables

    def _add(self, topic: str, value: bytes, lq: bytes | None) -> None:
        """A record that the next step takes."""
        place = topic, 0
        at = self._offsets.get(place, 0)
        self._offsets[place] = at + 1
        self._next.append(_InRecord(place, at, self._now, value, lq))

    def _say(self, **fields: Any) -> None:
        """A command, and its row."""
        value = json.dumps(fields).encode()
        row = {
            "topic": COMMANDS, "partition": 0, "offset": self._offsets.get((COMMANDS, 0), 0),
            "time": _time(self._now), "command": fields["command"], "value": value,
        }  # fmt: skip
        self._write("commands", pa.Table.from_pylist([row], _COMMANDS))
        self._add(COMMANDS, value, None)

    def _note_messages(self, lq: bytes, payloads: list[bytes]) -> None:
        """A run's rows in `messages`; before it is added."""
        n = len(payloads)
        at = self._offsets.get((PUBLISH, 0), 0)
        columns = [
            [PUBLISH] * n, [0] * n, [at] * n, range(n), [_time(self._now)] * n, [None] * n,
            payloads, [lq.decode()] * n, [None] * n,
        ]  # fmt: skip
        arrays = [pa.array(column, f.type) for column, f in zip(columns, _MESSAGES, strict=True)]
        table = pa.Table.from_arrays(arrays, schema=_MESSAGES)
        self._write("messages", table)
        self._places.append(places_of(table))

    def _save(self, driver: Driver, store: DictStore) -> None:
        """A whole snapshot, as `sinks.snapshots` writes it."""
        driver.flush()
        own = driver.snapshot(1)
        named = self._named(store)
        pages = [(page, None if page in named else value, zlib.crc32(page.encode() + value),
                  named.get(page)) for page, value in store.pages.items()]  # fmt: skip
        total = sum(crc for _, _, crc, _ in pages) % CRC_MODULUS
        pages.append(("", msgspec.msgpack.encode(own), total, None))
        for at in range(0, len(pages), COMMIT):
            some = pages[at : at + COMMIT]
            n = len(some)
            names, values, crcs, refs = zip(*some, strict=True)
            columns = [[HOME.name] * n, [own.step] * n, [_time(own.now)] * n, [1] * n, [True] * n,
                       names, values, crcs, refs]  # fmt: skip
            arrays = [
                pa.array(column, f.type) for column, f in zip(columns, _SNAPSHOTS, strict=True)
            ]
            self._write("snapshots", pa.Table.from_arrays(arrays, schema=_SNAPSHOTS))

    def _named(self, store: DictStore) -> dict[str, list[dict[str, Any]]]:
        """The blocks that `messages` has, with where they stand there."""
        if not self._places:
            return {}
        blocks = {page: value for page, value in store.pages.items() if page.startswith("b/")}
        journal, places = pa.concat_tables(self._journal), pa.concat_tables(self._places)
        return references_to(blocks, journal, places)

    def _write(self, table: str, rows: pa.Table) -> None:
        self._rows.setdefault(table, []).append(rows)

    def _flush(self) -> None:
        """What waits, as a commit of each table."""
        import deltalake

        for name, rows in self._rows.items():
            place = self._home / "tables" / name
            deltalake.write_deltalake(place, pa.concat_tables(rows), mode="append")
        self._rows.clear()


@dataclass(frozen=True, slots=True)
class _InRecord:
    """A record, with the face of the Kafka client's messages."""

    place: PartitionId
    at: int
    time: int
    content: bytes
    lq: bytes | None

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return 1, self.time

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return self.content

    def headers(self) -> list[tuple[str, bytes]] | None:
        return None if self.lq is None else [(HEADER, self.lq)]


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
