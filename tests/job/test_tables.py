"""The Delta tables: their contents, their queries, and that each thing is there once, also after
restarts of the queries (R1). (The sum of the journal equals `describe`: `tests/model/audit.py`.)"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import lakequeue
import pytest
from job.conftest import Job
from job.crafted import NoUtf8
from job.processes import until
from job.tables import await_history, rows_where
from kafka import KafkaProducer
from lake.agreement import lifecycle_adds_up, queued_agrees, rows
from lakequeue import LakequeueError
from lakequeue.lake import TABLES, create_views, open_lake, read_columns, trace
from lakequeue.lake.past import as_of
from lakequeue.lake.queries_at import admin_of
from lakequeue.lake.views import VIEWS
from lakequeue.protocol.errors import Timeout
from lakequeue.protocol.journal import NO_END, Journal, JournalSegment
from lakequeue.protocol.journal_encoding import encode
from lakequeue.protocol.messages import encode_run
from lakequeue.protocol.table_format import (
    COLUMNS,
    MESSAGES,
    NO_RUN,
    ROWS,
    SCHEMA,
    SCHEMA_VERSION,
)
from lakequeue.protocol.wire import STEP
from lakequeue.sinks.delta_tables import DAYS_BACK, append, create_tables
from lakequeue.sinks.table_writer import TableWriter
from lakequeue.sinks.upkeep import Rules, Upkeep
from lakequeue.sources.kafka_source import read_stream
from lakequeue.sources.live import kafka_client
from lakequeue.streaming.kafka.topics_admin import ensure_topics
from lakequeue.streaming.spark.queries import QUERY_SETTINGS
from pyspark.sql import SparkSession

pytestmark = pytest.mark.job

QUEUE = "tables"
_new = count(1)


def journal(job: Job) -> Counter[str]:
    """The number of rows of each event of our queue."""
    rows = rows_where(job.engine.tables / "journal", ["event"], queue=QUEUE)
    return Counter(r["event"] for r in rows)


PLACE = ("topic", "partition", "offset", "item")


def offsets(job: Job) -> Counter[tuple[str, int, int, int]]:
    """How often each record is in the table. A topic recreated by another test has records of two
    topics at one place."""
    rows = read_columns(job.engine.tables / "messages", [*PLACE, "topic_id"]).to_pylist()
    found: Counter[tuple[str, int, int, int]] = Counter()
    for (*place, _), times in Counter(tuple(row.values()) for row in rows).items():
        found[tuple(place)] = max(found[tuple(place)], times)  # type: ignore[index]
    return found


def test_S1_a_durable_receipt_comes_once_the_message_is_in_the_table(
    job: Job, connection: lakequeue.Connection
) -> None:
    """Also for messages sent in a run or with headers. (Others do not wait:
    `tests/rules/test_durable.py`, where time stands still.)"""
    with connection.producer(durability="delta") as producer:
        sent = [producer.send_async(QUEUE, f"durable {i}") for i in range(20)]
        sent.append(producer.send_async(QUEUE, "durable 20", headers={"a": "b"}))
        assert len(producer.unacknowledged()) == 21
        connection.producer().send(QUEUE, "another's")
        with connection.consumer(QUEUE, max_backlog=100) as consumer:
            until(lambda: (m := consumer.receive(1.0)) and m.payload == b"durable 20", 30, "all")
        sent[-1].result(60)
        payloads = read_columns(job.engine.tables / "messages", ["payload"])["payload"]
        assert {f"durable {i}".encode() for i in range(21)} <= set(payloads.to_pylist())
        producer.flush(60)
        assert producer.unacknowledged() == []
    connection.admin().purge(QUEUE)


def test_a_run_becomes_a_row_for_each_message(job: Job, connection: lakequeue.Connection) -> None:
    """Each with its own payload; a run that is malformed or has a key is one row."""
    plain = KafkaProducer(bootstrap_servers=job.kafka.bootstrap_servers)
    payloads = [b"", b"first", b"\x00\xff", b"last"]
    header = b'{"to": "%s", "producer": "runs", "seq": 5, "count": 4}' % QUEUE.encode()

    def send(value: bytes, key: bytes | None = None) -> int:
        future = plain.send("default.publish", value, key, [("lq", header)], partition=0)
        return future.get(30).offset

    good, keyed, bad = send(encode_run(payloads)), send(encode_run(payloads), b"k"), send(b"no run")
    plain.close()

    def find(offset: int) -> list[dict]:
        place = {"topic": "default.publish", "partition": 0, "offset": offset}
        found = rows_where(job.engine.tables / "messages", ["item", "payload", "key"], **place)
        return sorted(found, key=lambda r: r["item"])

    (row,) = until(lambda: find(bad), 60, "the malformed run")
    assert (row["item"], row["payload"]) == (NO_RUN, b"no run")
    rows = find(good)
    assert [(r["item"], r["payload"]) for r in rows] == list(enumerate(payloads))
    (row,) = find(keyed)
    assert (row["item"], row["key"], row["payload"]) == (0, b"k", encode_run(payloads))

    def events(offset: int) -> list[tuple[str, int]]:
        place = {"topic": "default.publish", "partition": 0, "offset": offset}
        found = rows_where(job.engine.tables / "journal", ["event", "item"], **place)
        return sorted((r["event"], r["item"]) for r in found)

    until(lambda: events(bad), 60, "the journal")
    assert events(good) == [("spooled", item) for item in range(4)], "the journal names each"
    assert events(keyed) == events(bad) == [("rejected", 0)]
    browsed = [m.payload for m in connection.admin().browse(QUEUE)]
    assert browsed == payloads
    connection.admin().purge(QUEUE)


def agree(job: Job, connection: lakequeue.Connection, least: int) -> str:
    """Whether the views of the tables, as they are now, agree with the engine: "" or the
    difference. At least so many messages must be there."""
    with open_lake(job.engine.tables.parent) as lake:
        try:
            assert queued_agrees(lake, connection.admin(), QUEUE) >= least
        except AssertionError as error:
            return str(error) or "too few"
    return ""


def test_R1_the_views_agree_with_browse(
    job: Job, connection: lakequeue.Connection, tmp_path: Path
) -> None:
    """Leased, delayed, ready, gone; Spark's own views are the same, row by row."""
    producer = connection.producer()
    for number in range(5):
        producer.send(QUEUE, f"{number}")
    producer.send(QUEUE, "later", delay="1h")
    with connection.consumer(QUEUE, ack_mode="individual", max_backlog=5, name="views") as consumer:
        held = [until(lambda: consumer.receive(1.0), 30, "a message") for _ in range(5)]
        held[0].ack()
        held[1].cancel(delay="1h")
        held[2].renew("30m")
        gone = held[0].id
        until(lambda: not agree(job, connection, 5), 60, "the views agree with the engine")
        both_agree(frozen(job.engine.tables, tmp_path))
        with open_lake(job.engine.tables.parent) as lake:
            lifecycle_adds_up(lake, told(job))
            (row,) = rows(
                lake, "SELECT * FROM lifecycle WHERE queue = ? AND message_id = ?", QUEUE, gone
            )
            life = trace(lake, gone)["queues"][0]["life"]
    assert row["published_at"] <= row["acknowledged_at"]
    assert (row["consumers"], row["deliveries"], row["ended"]) == (["views"], 1, "acknowledged")
    assert [event["event"] for event in life] == ["spooled", "delivered", "acknowledged"]
    connection.admin().purge(QUEUE)
    until(lambda: not agree(job, connection, 0), 60, "the views agree when all are gone")


def told(job: Job) -> list[dict[str, Any]]:
    """The rows of the journal in order, with times as the engine counts them."""
    names = ["queue", "event", "message_id", "subscription", "reason", "deliveries", "time",
             "until", "step", "part", "line"]  # fmt: skip
    found = read_columns(job.engine.tables / "journal", names).to_pylist()
    for row in found:
        row["time"] = round(row["time"].timestamp() * 1000)
    return sorted(found, key=lambda row: (row["step"], row["part"], row["line"]))


def frozen(tables: Path, home: Path) -> Path:
    """A home with the tables as they are now, whatever is written from here on."""
    for name in TABLES:
        log, there = tables / name / "_delta_log", home / "tables" / name
        (there / log.name).mkdir(parents=True)
        for commit in sorted(log.glob("[0-9]*.json")):  # Delta keeps them all for days
            shutil.copy(commit, there / log.name)
        for day in (tables / name).glob("date=*"):
            (there / day.name).symlink_to(day)
    return home


def both_agree(home: Path) -> None:
    """Spark and DuckDB give the same rows for each view."""
    session = SparkSession.builder.getOrCreate().newSession()
    for key, value in QUERY_SETTINGS.items():  # compiling a plan takes longer than these few rows
        session.conf.set(key, value)
    for name in TABLES:
        frame = session.read.format("delta").load(f"{home}/tables/{name}")
        frame.createOrReplaceTempView(name)
    create_views(session.sql, "spark")
    with open_lake(home) as lake:
        for name in VIEWS:
            ours = Counter(map(repr_of, rows(lake, f"FROM {name}")))
            theirs = Counter(map(repr_of, session.table(name).toArrow().to_pylist()))
            assert ours, name
            assert not ours - theirs, f"{name}: DuckDB alone"
            assert not theirs - ours, f"{name}: Spark alone"


def repr_of(row: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """A row as a hashable value; times in UTC."""
    return tuple(
        (name, value.astimezone(UTC).isoformat() if isinstance(value, datetime) else repr(value))
        for name, value in row.items()
    )


def shown(admin: Any) -> list[tuple[Any, ...]]:
    """The messages of our queue, with all that an administrator sees of them."""
    return [
        (m.id, m.state, m.payload, m.delivery_count, m.holder, m.lease_expires_at, m.entered)
        for m in admin.browse(QUEUE, limit=1000)
    ]


def test_R1_a_past_moment_is_reconstructed(job: Job, connection: lakequeue.Connection) -> None:
    """Seen now, and reconstructed from the tables later; each step and command is there once, and
    waiting payloads are only in `messages`."""
    admin = connection.admin()
    producer = connection.producer()
    for number in range(20):
        producer.send(QUEUE, f"{number}", headers={"n": f"{number}"} if number % 3 else None)
    with connection.consumer(QUEUE, ack_mode="individual", max_backlog=5, name="past") as consumer:
        held = [until(lambda: consumer.receive(1.0), 30, "a message") for _ in range(5)]
        held[0].ack()
        until(lambda: admin.describe(QUEUE)["acknowledged"], 30, "the ack")
        seen, when = shown(admin), connection.now()
    admin.purge(QUEUE)
    home, tables = job.engine.tables.parent, job.engine.tables
    sent, long = [], b"stays" * 1_000

    def named() -> Any:
        time.sleep(2.0)  # each message costs a step
        sent.append(producer.send(QUEUE, long, headers={"n": "1"}))
        return rows_where(tables / "snapshots", ["step"], refs=..., value=None)

    def all_there() -> bool:
        return len(rows_where(tables / "messages", ["offset"], payload=long)) == len(sent)

    until(named, 120, "a snapshot names payloads of messages")
    await_history(tables, connection, QUEUE)
    until(all_there, 60, "the tables reach beyond that moment")
    with open_lake(home) as lake:
        then = as_of(lake, home, "broker-0", at=when)
        assert shown(admin_of(then)) == seen
        newest = as_of(lake, home, "broker-0")
        assert newest.snapshot > 0
        assert newest.notes == []
        from_nothing = newest.step, Counter(newest.store.pages)
        steps = "SELECT count(*), count(DISTINCT step), max(step) - min(step) + 1 FROM steps"
        assert len(set(lake.execute(steps).fetchall()[0])) == 1
        places = 'SELECT count(*), count(DISTINCT (topic, "partition", "offset")) FROM commands'
        assert len(set(lake.execute(places).fetchall()[0])) == 1
        there = deltalake.DeltaTable(tables / "snapshots").to_pyarrow_table()
        lake.register("snapshots", there.slice(0, 0))
        again = as_of(lake, home, "broker-0", step=from_nothing[0])
        assert (again.snapshot, Counter(again.store.pages)) == (0, from_nothing[1])
    admin.purge(QUEUE)


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 2], ids=["later", "not by date"])
def test_R1_a_table_of_another_version_is_refused(job: Job, tmp_path: Path, version: int) -> None:
    session = SparkSession.builder.getOrCreate()
    session.sql(f"CREATE TABLE delta.`{tmp_path}/steps` ({ROWS['steps']}) USING delta "
                f"TBLPROPERTIES ('{SCHEMA}' = '{version}')")  # fmt: skip
    known = rf"steps has schema version .{version}.; .* supports 3 to {SCHEMA_VERSION}"
    with pytest.raises(LakequeueError, match=known):
        create_tables(session, tmp_path, ["steps"])


def test_an_interrupted_creation_of_a_table_is_completed(job: Job, tmp_path: Path) -> None:
    """R1: the process died between creating a table's folders and its first commit."""
    session = SparkSession.builder.getOrCreate()
    (tmp_path / "steps" / "_delta_log" / "_staged_commits").mkdir(parents=True)
    create_tables(session, tmp_path, ["steps"])
    assert session.read.format("delta").load(f"{tmp_path}/steps").count() == 0
    data = tmp_path / "journal" / "part-0.parquet"
    (data.parent / "_delta_log").mkdir(parents=True)
    data.write_bytes(b"somebody's")
    with pytest.raises(Exception, match="not a Delta table"):
        create_tables(session, tmp_path, ["journal"])
    assert data.read_bytes() == b"somebody's", "a table that is not ours is left alone"


def put(session: SparkSession, folder: Path, offset: int, *days_ago: int) -> None:
    """Put messages of so many days ago into the table, with one append."""
    now = datetime.now(UTC)
    rows = [("t", 0, offset + n, 0, now - timedelta(days=d), None, b"", None, None, None)
            for n, d in enumerate(days_ago)]  # fmt: skip
    append(str(folder), MESSAGES, session.createDataFrame(rows, ROWS[MESSAGES]))


def data_files(table: Path) -> list[Path]:
    """The files of a table's newest version."""
    return [Path(unquote(uri)) for uri in deltalake.DeltaTable(table).file_uris()]


def files_by_day(folder: Path) -> dict[int, set[str]]:
    """The files of each day of `messages`, in days before today."""
    today = datetime.now(UTC).date()
    found: dict[int, set[str]] = {}
    for path in data_files(folder / MESSAGES):
        name, _, day = path.parent.name.partition("=")
        assert name == "date"
        found.setdefault((today - date.fromisoformat(day)).days, set()).add(path.name)
    return found


def test_R1_tables_are_partitioned_by_date(job: Job, tmp_path: Path) -> None:
    """A file for each day of a batch; a wrong clock makes no day of its own; upkeep joins the files
    of a day and leaves past days alone."""
    session = SparkSession.builder.getOrCreate()
    create_tables(session, tmp_path, COLUMNS)
    for name in COLUMNS:
        about = deltalake.DeltaTable(tmp_path / name).metadata()
        assert (name, about.partition_columns) == (name, ["date"])
    put(session, tmp_path, 0, 1, 0, 1, 0, 20_000, 0, -20_000)
    whole = files_by_day(tmp_path)
    assert {day: len(files) for day, files in whole.items()} == {-1: 1, 0: 1, 1: 1, DAYS_BACK: 1}
    put(session, tmp_path, 10, 0, 0)
    upkeep = Upkeep(session, tmp_path, Rules(retention_s=0.0))
    upkeep._tidy(MESSAGES)
    tidied = files_by_day(tmp_path)
    assert {day: len(files) for day, files in tidied.items()} == {-1: 1, 0: 1, 1: 1, DAYS_BACK: 1}
    assert {day for day in tidied if tidied[day] != whole[day]} == {0}


def test_R1_a_table_of_version_3_gets_its_missing_columns(job: Job, tmp_path: Path) -> None:
    """Its rows have no value there."""
    session = SparkSession.builder.getOrCreate()
    place = f"delta.`{tmp_path}/messages`"
    older = COLUMNS[MESSAGES].replace(", topic_id STRING", "")
    session.sql(f"CREATE TABLE {place} ({older}) USING delta PARTITIONED BY (date) "
                f"TBLPROPERTIES ('{SCHEMA}' = '3')")  # fmt: skip
    session.sql(f"INSERT INTO {place} (topic, `offset`, date) VALUES ('old', 1, DATE'2026-01-01')")
    create_tables(session, tmp_path, [MESSAGES])
    put(session, tmp_path, 2, 0)
    rows = session.sql(f"SELECT `offset`, topic_id FROM {place} ORDER BY `offset`").collect()
    assert [tuple(row) for row in rows] == [(1, None), (2, None)]
    said = {r.key: r.value for r in session.sql(f"SHOW TBLPROPERTIES {place}").collect()}
    assert said[SCHEMA] == str(SCHEMA_VERSION)


def put_records(producer: KafkaProducer, vpn: str, step: int) -> None:
    """A run, a message with headers, one of another day, one without a value, one whose `lq` is no
    text, one with an invalid header name, and two journal records, the second twice."""
    now = round(time.time()) * 1000
    messages: list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes]]]] = [
        (None, encode_run([b"a", b"", b"ccc"]), now, [("lq", b'{"to": "q", "count": 3}')]),
        (b"k", b"keyed", now, [("lq", b'{"to": "q"}'), ("a", b"b")]),
        (None, b"old", now - 2 * 86_400_000, []),
        (b"x", None, now, []),
        (None, b"no header", now, [("lq", b"\x9d\xff")]),
        (None, b"no name", now, [(NoUtf8(), b"1")]),
    ]
    for key, value, when, headers in messages:
        producer.send(f"{vpn}.publish", value, key, headers, 0, when).get(30)
    for at in (step, step + 1, step + 1):
        said = [JournalSegment("spooled", vpn, "q", [at, at + 1], topic=f"{vpn}.publish",
                        partitions=[0, 0], offsets=[0, 0], items=[0, 1],
                        until=[5, NO_END])]  # fmt: skip
        value = encode(Journal("b", at, now, said))
        producer.send(f"{vpn}.journal", value, b"b", [(STEP, b"%d.0" % at)], 0, now).get(30)


class Written:
    """A query that writes tables, as the engine's does, from the topics of a VPN."""

    def __init__(self, job: Job, tables: Path, vpn: str, name: str) -> None:
        session, bootstrap = SparkSession.builder.getOrCreate(), job.kafka.bootstrap_servers
        create_tables(session, tables)
        writer = TableWriter(session, tables, name, kafka_client(bootstrap, name), pytest.fail)
        names = [f"{vpn}.publish", f"{vpn}.journal"]
        self.query = (
            read_stream(session, bootstrap, names).writeStream.foreachBatch(writer).queryName(name)
            .option("checkpointLocation", f"{tables}/{name}").trigger(processingTime="0 seconds")
            .start()
        )  # fmt: skip

    def rows(self) -> list[int]:
        """Spark's counts of each batch's rows."""
        self.query.processAllAvailable()
        return [p.numInputRows for p in self.query.recentProgress if p.numInputRows]


def test_R1_an_altered_table_is_written_by_spark(job: Job, tmp_path: Path) -> None:
    """Delta then checks each row. The rows are the same as those of files that we commit, and
    Spark's progress has the same number of records."""
    session, vpn = SparkSession.builder.getOrCreate(), f"altered-{next(_new)}"
    ensure_topics(job.kafka.bootstrap_servers, [], [f"{vpn}.publish", f"{vpn}.journal"])
    producer = KafkaProducer(bootstrap_servers=job.kafka.bootstrap_servers)
    ways = ("as files", "as [rows]")  # brackets are no pattern
    put_records(producer, vpn, 1)
    queries = [Written(job, tmp_path / way, vpn, way) for way in ways]
    try:
        assert [sum(one.rows()) for one in queries] == [9, 9]
        session.sql(f"ALTER TABLE delta.`{tmp_path}/as [rows]/messages` "
                    "ADD CONSTRAINT few CHECK (`offset` < 12)")  # fmt: skip
        put_records(producer, vpn, 2)
        assert [sum(one.rows()) for one in queries] == [18, 18]
        known = set(data_files(tmp_path / "as [rows]" / MESSAGES))
        there = set((tmp_path / "as [rows]" / MESSAGES).rglob("*.parquet"))
        assert {file for file in there if "_delta_log" not in str(file)} == known
        queries.append(Written(job, tmp_path / "as files", vpn, "without its checkpoint"))
        assert sum(queries[2].rows()) == 18
        for name in TABLES:
            found = [
                sorted(map(repr, session.read.format("delta").load(f"{tmp_path}/{way}/{name}")
                           .collect()))
                for way in ways
            ]  # fmt: skip
            assert found[0] == found[1], name
            assert len(found[0]) == {"messages": 16, "journal": 6}[name]
        times = [
            deltalake.DeltaTable(f"{tmp_path}/{way}/messages").to_pyarrow_table()["time"]
            .to_pylist() for way in ways
        ]  # fmt: skip
        assert sorted(times[0]) == sorted(times[1])
        put_records(producer, vpn, 5)
        with pytest.raises(Exception, match="few"):
            queries[1].query.processAllAvailable()
    finally:
        producer.close()
        for one in queries:
            one.query.stop()


@pytest.mark.usefixtures("micro_batches")
def test_new_queries_repeat_nothing(job: Job, connection: lakequeue.Connection) -> None:
    """A queue that captures a new topic makes the engine restart its queries. (A loop finds the
    topic itself, and the queries of its tables restart: `test_foreign_in_tables.py`.)"""
    tables = job.engine.application.table_queries
    before = (job.query, until(lambda: tables.get("lakequeue-tables"), 60, "they are written"))
    counted = journal(job), offsets(job)
    topic = f"new-topic-{next(_new)}"
    ensure_topics(job.kafka.bootstrap_servers, [], [topic])

    def defined() -> bool:
        with contextlib.suppress(Timeout):  # Spark gives a Python worker ten seconds to start
            connection.admin().define({"name": topic, "message_type": "text"})
            return True
        return False

    until(defined, 60, "the queue is defined")
    until(
        lambda: job.query is not before[0]
        and tables.get("lakequeue-tables") not in (None, before[1]),
        60, "the queries are started again",
    )  # fmt: skip
    connection.producer().send(QUEUE, "after the restart")
    plain = KafkaProducer(bootstrap_servers=job.kafka.bootstrap_servers)
    place = plain.send(topic, b"into the new queue").get(30)
    plain.close()
    with connection.consumer(topic, ack_mode="auto") as consumer:
        message = until(lambda: consumer.receive(1.0), 60, "the new topic is read")
    assert message.payload == b"into the new queue"
    until(lambda: offsets(job)[topic, place.partition, place.offset, 0], 60, "it is in `messages`")
    records = offsets(job)
    assert set(records.values()) == {1}
    assert counted[1].keys() <= records.keys()
    until(lambda: journal(job)["spooled"] == counted[0]["spooled"] + 1, 60, "one more spooled")
    connection.admin().purge(QUEUE)
    connection.admin().delete(topic)
