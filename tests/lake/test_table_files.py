"""R1: the files that the tables' worker writes: rows as the codecs define them, and true
statistics."""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lake.on_files import MESSAGES
from lakequeue.lake.opening import open_lake
from lakequeue.protocol import steplog
from lakequeue.protocol.journal import Journal, JournalSegment
from lakequeue.protocol.journal_encoding import encode
from lakequeue.protocol.messages import RUN_MAX, decode_run, encode_run
from lakequeue.protocol.table_format import NO_RUN, SCHEMA, SCHEMA_VERSION
from lakequeue.sinks.kafka_records import RECORDS, records_of, run_of
from lakequeue.sinks.table_batch import TableBatch, message_rows
from lakequeue.sinks.table_files import TableFiles
from loop.memory import Message

NOW = datetime(2026, 3, 5, 12, tzinfo=UTC)


def message(offset: int, value: bytes | None, run: int | None = None, **more: Any) -> dict:
    return {"topic": "default.publish", "partition": 3, "offset": offset, "time": NOW,
            "value": value, "run": run, **more}  # fmt: skip


def record(step: int, part: int = 0, ids: int = 2, topic: str = "default.journal") -> dict:
    said = [JournalSegment("spooled", "default", "orders", list(range(1, ids + 1)))]
    value = encode(Journal("b", step, round(NOW.timestamp() * 1000), said))
    return {"topic": topic, "partition": 0, "offset": step, "time": NOW, "key": b"b",
            "value": value, "step": f"{step}.{part}"}  # fmt: skip


def batch(*rows: dict) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), RECORDS)


def written(
    home: Path, *batches: pa.RecordBatch,
    last: dict | None = None, stored: dict | None = None,
) -> list[tuple[str, Any]]:  # fmt: skip
    """The worker's report about these batches."""
    work = TableBatch(str(home / "tables"), NOW.timestamp(), last=last or {}, stored=stored or {})
    return [(table, json.loads(said)) for table, said in work.write(batches)]


def test_the_statistics_of_a_file_are_true(tmp_path: Path) -> None:
    rows = batch(
        message(5, b"one"), message(9, encode_run([b"x", b"yy"]), 2, lq='{"count":2}'),
        message(7, None, time=NOW - timedelta(milliseconds=1500)),
    )  # fmt: skip
    (table, file), (_, (read, last)) = written(tmp_path, rows)
    assert (table, read, last) == ("messages", 3, [])
    assert file["partitionValues"] == {"date": "2026-03-05"}
    place = tmp_path / "tables" / "messages" / file["path"]
    assert place.stat().st_size == file["size"]
    found = stored(tmp_path, table, file)
    assert found.schema.remove_metadata() == MESSAGES
    assert found["offset"].to_pylist() == [5, 9, 9, 7]
    assert json.loads(file["stats"]) == {
        "numRecords": 4,
        "minValues": {"topic": "default.publish", "partition": 3, "offset": 5,
                      "time": "2026-03-05T11:59:58.500Z"},
        "maxValues": {"topic": "default.publish", "partition": 3, "offset": 9,
                      "time": "2026-03-05T12:00:00.000Z"},
        "nullCount": {"topic": 0, "partition": 0, "offset": 0, "time": 0},
    }  # fmt: skip


def stored(home: Path, table: str, file: dict) -> pa.Table:
    return pq.ParquetFile(home / "tables" / table / file["path"]).read()


def committed(home: Path, said: list[tuple[str, Any]]) -> None:
    """The files as tables, committed by another writer of Delta."""
    for table, file in said:
        place, rows = home / "tables" / table, stored(home, table, file)
        day = pa.repeat(pa.scalar(NOW.date()), len(rows))
        schema = rows.append_column("date", day).schema
        made = deltalake.DeltaTable.create(
            place, schema, partition_by="date", configuration={SCHEMA: str(SCHEMA_VERSION)},
            raise_if_key_not_exists=False,
        )  # fmt: skip
        action = deltalake.transaction.AddAction(
            file["path"], file["size"], file["partitionValues"], file["modificationTime"],
            file["dataChange"], file["stats"],
        )  # fmt: skip
        made.create_write_transaction([action], "append", schema, partition_by="date")


LONG = "a-queue-whose-name-has-more-than-32-characters-"


@pytest.mark.parametrize("lacks", ["nothing", "ends", "statistics"])
def test_R1_rows_with_long_texts_are_found(tmp_path: Path, lacks: str) -> None:
    """A reader skips a file if its statistics exclude a match. Earlier versions wrote no minimum
    and maximum of a long text; others may write no statistics."""
    rows = batch(*(message(n, b"one", topic=f"{LONG}{n}") for n in range(3)), record(1))
    said = written(tmp_path, rows)[:-1]
    for table, file in said:
        figures = json.loads(file["stats"])
        if lacks != "nothing":
            for ends in ("minValues", "maxValues"):
                figures[ends].pop("topic", None)
        file["stats"] = json.dumps({} if (lacks, table) == ("statistics", "messages") else figures)
    committed(tmp_path, said)
    found = {
        f"messages WHERE topic = '{LONG}1'": 1, f"messages WHERE topic > '{LONG}1'": 1,
        f"messages WHERE topic < '{LONG}1'": 1, "messages WHERE topic <> ''": 3,
        "messages WHERE time = TIMESTAMPTZ '2026-03-05 12:00:00Z'": 3,
        "messages WHERE date > '2026-03-05'": 0,
        "journal WHERE event = 'spooled' AND message_id = '2'": 1,
    }  # fmt: skip
    with open_lake(tmp_path) as lake:
        for asked, count in found.items():
            assert lake.sql(f"SELECT count(*) FROM {asked}").fetchall() == [(count,)], asked


def test_the_statistics_of_a_long_text_are_short_and_true(tmp_path: Path) -> None:
    last = chr(sys.maxunicode)
    for text in ("x" * 33, "x" * 32, "é" * 40, last * 40, "x" * 32 + last + "y"):
        (_, file), _ = written(tmp_path, batch(message(5, b"one", topic=text)))
        figures = json.loads(file["stats"])
        assert figures["minValues"]["topic"] <= text <= figures["maxValues"]["topic"]
        assert len(figures["minValues"]["topic"]) <= 32


def test_a_time_without_a_text_form_is_left_out_of_the_statistics(tmp_path: Path) -> None:
    files = TableFiles(tmp_path, NOW.timestamp())
    times = pa.array([(1 << 63) - 1, -(1 << 62), None], pa.int64()).cast(
        MESSAGES.field("time").type
    )
    empty = pa.table({f.name: pa.nulls(3, f.type) for f in MESSAGES})
    files.add("messages", empty.set_column(4, "time", times))
    found = {
        file["partitionValues"]["date"]: json.loads(file["stats"]) for _, file in files.close()
    }
    assert set(found) == {"2026-02-26", "2026-03-06"}
    assert found["2026-03-06"]["minValues"] == {}
    assert found["2026-03-06"]["nullCount"] == dict.fromkeys(
        ("topic", "partition", "offset"), 2) | {"time": 1}  # fmt: skip


def test_R1_an_existing_step_is_not_written_again(tmp_path: Path) -> None:
    """Neither a row of the table, nor a repeated record. Records of strangers are skipped."""
    stranger = {**record(9), "value": b"nonsense"}
    said = written(
        tmp_path, batch(record(4), record(5), record(5, part=1)),
        batch(record(5, part=1), record(6), {**record(7), "step": "x"}, stranger),
        batch(record(1, topic="other.journal")), last={("b", "default"): (4, 0)},
    )  # fmt: skip
    (table, file), (_, (read, last)) = said
    assert read == 8
    rows = stored(tmp_path, table, file).to_pylist()
    assert [(r["step"], r["part"]) for r in rows] == [
        (5, 0), (5, 0), (5, 1), (5, 1), (6, 0), (6, 0), (1, 0), (1, 0),
    ]  # fmt: skip
    assert sorted(last) == [["b", "default", 9, 0], ["b", "other", 1, 0]]


def test_R1_an_existing_message_is_not_written_again(tmp_path: Path) -> None:
    """A recreated topic has younger records at the same offsets."""
    later = NOW + timedelta(milliseconds=1)
    rows = batch(
        message(4, b"there"), message(5, b"anew", time=later), message(6, b"more"),
        {**message(4, b"other"), "partition": 2},
    )  # fmt: skip
    last = {("default.publish", 3): (5, round(NOW.timestamp() * 1_000_000))}
    (_, file), _ = written(tmp_path, rows, stored=last)
    found = stored(tmp_path, "messages", file)
    assert found["payload"].to_pylist() == [b"anew", b"more", b"other"]


class Heard(Message):
    """A message of Kafka's client."""

    def __init__(
        self, value: bytes | None, headers: Any, key: bytes | None = None, offset: int = 7
    ) -> None:
        now = round(NOW.timestamp() * 1000)
        super().__init__("default.publish", 3, offset, now, key, value, headers)

    def headers(self) -> Any:
        if self.headers_ == "broken":
            raise SystemError("returned a result with an exception set")
        return self.headers_


def test_a_kafka_record_becomes_a_row() -> None:
    """Headers as in the loop; names that are no text are refused as there."""
    run = encode_run([b"a", b"bb"])
    count = ("lq", b'{"count": 2}')
    found = records_of([
        Heard(run, [count]), Heard(run, [count], key=b"k"), Heard(run, [count, ("a", b"1")]),
        Heard(None, None), Heard(b"x", [("lq", b"\xff")]), Heard(b"1", [("lq-step", b"4.0")]),
        Heard(b"x", "broken"), Heard(b"x", [("\ufffd", None)]), Heard(b"x", [("lq", None)]),
    ], {"default.publish": "A"}).to_pylist()  # fmt: skip
    assert {r["topic_id"] for r in found} == {"A"}
    unknown = records_of([Heard(b"x", None)], {"default.publish": ""})
    assert unknown["topic_id"].to_pylist() == [None]
    assert [r["run"] for r in found] == [2] + [None] * 8
    assert [r["lq"] for r in found] == [
        '{"count": 2}', '{"count": 2}', '{"count": 2}', None, None, None,
        "headers: a name is not UTF-8", "headers: a name is not UTF-8", None,
    ]  # fmt: skip
    assert [r["headers"] for r in found] == [
        None, None, '[{"key":"a","value":"MQ=="}]', None, '[{"key":"lq","value":"/w=="}]',
        '[{"key":"lq-step","value":"NC4w"}]', None, None, None,
    ]  # fmt: skip
    assert [r["step"] for r in found] == [None] * 5 + ["4.0"] + [None] * 3
    assert {(r["topic"], r["partition"], r["offset"], r["time"]) for r in found} == {
        ("default.publish", 3, 7, NOW)
    }


def test_runs_are_split_as_in_the_engine() -> None:
    """Runs, almost runs, and single messages, with headers that are true, wrong or broken."""
    dice = random.Random(20261123)
    records, wanted, first = [], {}, dict.fromkeys(range(600), 0)
    for offset in range(600):
        payloads = [dice.randbytes(dice.choice([0, 1, 3, 300])) for _ in range(dice.randint(1, 9))]
        value: bytes | None = encode_run(payloads)
        said: Any = len(payloads) if dice.random() < 0.8 else dice.randint(-1, 9)
        match dice.randrange(8):
            case 0:
                at = dice.randrange(4 * len(payloads))
                value = value[:at] + dice.randbytes(1) + value[at + 1 :]
            case 1:
                value = dice.choice([value[:-1], value + b"x", b"", b"abc", None])
            case 2:
                said = dice.choice([2**31 - 1, -(2**31), 2**40, '"x"', "null", 1.5])
        key = b"k" if dice.random() < 0.1 else None
        lq = dice.choice(['{"count": %s}', '{"to": "q", "count": %s}']) % said
        headers = [("lq", lq.encode()), *([("a", b"1")] if dice.random() < 0.1 else [])]
        records.append(Heard(value, headers, key, offset))
        wanted[offset] = [value]
        if key is None and len(headers) == 1 and isinstance(said, int) and said:
            first[offset] = NO_RUN
            if 1 <= said <= RUN_MAX:
                with contextlib.suppress(ValueError):
                    wanted[offset], first[offset] = decode_run(value, said), 0
    found: dict[int, list[bytes | None]] = {}
    for row in message_rows(records_of(records, {})).to_pylist():
        found.setdefault(row["offset"], []).append(row["payload"])
        assert row["item"] == first[row["offset"]] + len(found[row["offset"]]) - 1
    assert found == wanted
    assert 150 < sum(len(payloads) > 1 for payloads in wanted.values()) < 450


@pytest.mark.parametrize("lq", [
    "{", '{"count":"2"}', '{"count":2.5}', '{"count":0}', '"count"',
    '{"count":2,"x":%s}' % ("[" * 2_000 + "]" * 2_000),
])  # fmt: skip
def test_a_record_without_a_valid_count_is_no_run(lq: str) -> None:
    assert run_of(lq.encode(), encode_run([b"a", b"b"])) is None


def test_each_row_is_in_the_file_of_its_day(tmp_path: Path) -> None:
    """Days out of range are in the nearest allowed day."""
    rows = batch(*(message(n, b"%d" % n, time=NOW + timedelta(days=n)) for n in range(-2, 4)))
    by_day = {file["partitionValues"]["date"]: file for _, file in written(tmp_path, rows)[:-1]}
    assert sorted(by_day) == ["2026-03-03", "2026-03-04", "2026-03-05", "2026-03-06"]
    assert json.loads(by_day["2026-03-06"]["stats"])["numRecords"] == 3


def test_a_batch_that_fails_leaves_no_files(tmp_path: Path) -> None:
    def broken() -> Any:
        yield batch(message(1, b"one"), record(1))
        raise OSError("Kafka is away")

    work = TableBatch(str(tmp_path / "tables"), NOW.timestamp())
    with pytest.raises(OSError, match="Kafka is away"):
        work.write(broken())
    assert [p for p in (tmp_path / "tables").rglob("*") if p.is_file()] == []


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[pa.RecordBatch]:
    """So much that it is written in parts."""
    monkeypatch.setattr("lakequeue.sinks.table_files.GROUP_BYTES", 10_000)
    return [batch(*(message(100 * k + n, bytes(500)) for n in range(20))) for k in range(5)]


def test_a_committed_file_is_complete_on_disk(
    parts: list[pa.RecordBatch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it: the file has its full size when it is synced for the last time."""
    synced: dict[Path, int] = {}

    def fsync(file: int) -> None:
        synced[Path(f"/proc/self/fd/{file}").readlink()] = os.fstat(file).st_size

    monkeypatch.setattr("lakequeue.sinks.table_files.os.fsync", fsync)
    said = written(tmp_path, *parts, batch(record(1)))[:-1]
    assert sorted(table for table, _ in said) == ["journal", "messages"]
    tables = tmp_path / "tables"
    assert synced == {tables / table / file["path"]: file["size"] for table, file in said}


def test_large_batches_are_written_in_parts(parts: list[pa.RecordBatch], tmp_path: Path) -> None:
    (_, file), _ = written(tmp_path, *parts)
    found = pq.ParquetFile(tmp_path / "tables" / "messages" / file["path"])
    assert found.metadata.num_row_groups > 1
    assert found.read()["offset"].to_pylist() == [100 * k + n for k in range(5) for n in range(20)]
    stats = json.loads(file["stats"])
    ends = [stats[end]["offset"] for end in ("minValues", "maxValues")]
    assert (stats["numRecords"], ends) == (100, [0, 419])


def test_commands_and_steps_are_rows_of_their_own_tables(tmp_path: Path) -> None:
    """A stranger's record on the log of steps becomes no row, nor does a step that the table
    has."""
    now = round(NOW.timestamp() * 1000)
    step = steplog.encode(steplog.StepRecord(steplog.FORMAT, 7, now, 1, 0, 0, "code"))
    common = {"partition": 0, "time": NOW}
    queue = "q" * 100
    rows = batch(
        {**common, "topic": "default.commands", "offset": 1, "value": b"there"},
        {**common, "topic": "default.commands", "offset": 2,
         "value": b'{"command": "ack", "queue": "%s"}' % queue.encode()},
        {**common, "topic": "default.commands", "offset": 3, "value": b"nonsense"},
        {**common, "topic": "b.steps", "offset": 1, "value": step},
        {**common, "topic": "b.steps", "offset": 2, "value": b"nonsense"},
    )  # fmt: skip
    stored = {("default.commands", 0): (1, 1 << 62)}
    work = TableBatch(str(tmp_path), NOW.timestamp(), history=True, stored=stored)
    files = dict(work.write([rows]))
    read, _ = json.loads(files.pop(""))
    assert (read, sorted(files)) == (5, ["commands", "steps"])
    found = {
        table: pq.ParquetFile(tmp_path / table / json.loads(file)["path"]).read().to_pylist()
        for table, file in files.items()
    }
    assert [(r["offset"], r["command"], r["queue"]) for r in found["commands"]] == [
        (2, "ack", queue), (3, None, None),
    ]  # fmt: skip
    assert [(r["broker"], r["step"], r["now"], r["acked"]) for r in found["steps"]] == [
        ("b", 7, NOW, 1)
    ]
    least = json.loads(json.loads(files["commands"])["stats"])["minValues"]
    assert (least["offset"], least["queue"]) == (2, queue[:32])
