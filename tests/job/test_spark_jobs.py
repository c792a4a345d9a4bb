"""Queues as Spark data: a job takes a queue into a Delta table, each message once, whatever dies;
rows become messages, each once, also when they are written twice (L1, L8, P1).

Rows are written, and available messages read, in a session of the engine's Spark. Deaths of a job
at each point, in memory: `tests/dataframes/test_walk.py`; LAKEQUEUE_JOB_DEATHS times with a Spark
of its own, at random moments, in `make soak`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import lakequeue
import psutil
import pytest
from dataframes.test_reading import SCHEMA
from job.conftest import Job
from job.processes import until
from job.tables import newest
from lakequeue.dataframes import LakequeueDataSource

pytestmark = pytest.mark.job

TO_TABLE, FROM_ROWS = "to-table", "from-rows"
SEED = 29
ROWS, STREAMED = 600, 100
DEATHS = int(os.environ.get("LAKEQUEUE_JOB_DEATHS", "0"))


class Sender:
    """Publishes until it is told to stop; knows its messages' ids."""

    def __init__(self, connection: lakequeue.Connection) -> None:
        self._producer = connection.producer(window=1_000)
        self._sent: list[Any] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        while not self._ended.wait(0.1):
            for _ in range(5):
                self._sent.append(self._producer.send_async(TO_TABLE, f"{len(self._sent)}"))

    def end(self) -> dict[str, str]:
        """Payloads by message id."""
        self._ended.set()
        self._thread.join()
        self._producer.flush(60)
        return {one.result().message_id: str(n) for n, one in enumerate(self._sent)}


def options(job: Job, queue: str) -> dict[str, str]:
    return {"connection": job.url, "queue": queue}


def _activate(session: Any) -> None:
    """Make the session this thread's. To write, Spark looks a Python data source up only in the
    active session of the thread, and py4j may give a Python thread another Java thread at any time,
    one without an active session."""
    session._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)


@pytest.fixture
def spark(job: Job) -> Iterator[Any]:
    session = job.engine.application.spark
    session.dataSource.register(LakequeueDataSource)
    _activate(session)
    others = {query.id for query in session.streams.active}
    yield session
    for query in session.streams.active:
        if query.id not in others:
            query.stop()


def in_table(folder: Path) -> Counter[str]:
    """How often each message is in the table."""
    if (table := newest(folder / "table")) is None:
        return Counter()
    rows = table.to_pyarrow_table(columns=["message_id"])
    return Counter(rows.column("message_id").to_pylist())


def agrees(job: Job, folder: Path, sent: dict[str, str]) -> None:
    """Table and queue agree: each message is once in the table, and none is in the queue."""
    with job.connect("looks") as connection:
        until(lambda: set(in_table(folder)) >= set(sent), 150, "every message is in the table")
        until(lambda: connection.admin().describe(TO_TABLE)["depth"] == 0, 30, "the queue is empty")
    counted = in_table(folder)
    assert set(counted) == set(sent)
    assert set(counted.values()) == {1}, "a message is twice in the table"


DRIVER = """
import json, sys
from lakequeue.dataframes import LakequeueDataSource
from lakequeue.streaming.jars import ensure_jars
from lakequeue.streaming.spark.spark_session import spark_session

options, folder = json.loads(sys.argv[1]), sys.argv[2]
spark = spark_session("job", master="local[2]", jars=ensure_jars().spark)
spark.dataSource.register(LakequeueDataSource)
rows = spark.readStream.format("lakequeue").options(**options).load()
stream = rows.writeStream.format("delta").option("checkpointLocation", folder + "/point")
stream.start(folder + "/table").awaitTermination()
"""


@contextlib.contextmanager
def running(job: Job, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A job as a process; in the end it is killed, with its children."""
    given = json.dumps(options(job, TO_TABLE) | {"maxMessagesPerBatch": "40"})
    with (folder / "job.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, given, str(folder)], stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        for one in [*psutil.Process(process.pid).children(recursive=True), process]:
            with contextlib.suppress(psutil.Error):
                one.kill()
        process.wait(30)


@pytest.mark.skipif(not DEATHS, reason="each death is a start of Spark: see make soak")
def test_each_message_is_once_in_the_table_when_the_job_is_killed(
    job: Job, tmp_path: Path, connection: lakequeue.Connection
) -> None:
    chance = random.Random(SEED)
    sender = Sender(connection)
    for _ in range(DEATHS):
        before = sum(in_table(tmp_path).values())
        with running(job, tmp_path) as process:
            until(lambda at=before: sum(in_table(tmp_path).values()) > at, 120, "rows come")
            time.sleep(chance.random())
            assert process.poll() is None, (tmp_path / "job.log").read_text()
    sent = sender.end()
    with running(job, tmp_path):
        agrees(job, tmp_path, sent)
    rows = deltalake.DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist()
    assert {r["message_id"]: r["payload"].decode() for r in rows} == sent


def test_rows_written_twice_are_published_once(
    job: Job, spark: Any, tmp_path: Path, connection: lakequeue.Connection
) -> None:
    """P1: under one writeId the same rows are the same messages, whatever their order."""
    wanted = sorted(f"row {n}" for n in range(ROWS))
    rows = spark.range(ROWS).selectExpr(
        "concat('row ', id) AS payload", "map('n', cast(id AS STRING)) AS headers",
        "cast(id % 10 AS INT) AS priority",
    )  # fmt: skip
    for order in ("payload", "priority"):
        again = rows.coalesce(1).sortWithinPartitions(order)
        written = again.write.format("lakequeue").options(**options(job, FROM_ROWS))
        written.option("writeId", "once").mode("append").save()
    got = []
    with connection.consumer(FROM_ROWS, max_backlog=400) as consumer:
        while message := consumer.receive(60.0 if len(got) < len(wanted) else 1.0):
            got.append((message.payload.decode(), message.headers["n"], message.priority))
            message.ack()
    assert sorted(text for text, _, _ in got) == wanted
    assert {(text, priority) for text, _, priority in got} == {
        (f"row {n}", n % 10) for n in range(ROWS)
    }
    assert all(text == f"row {n}" for text, n, _ in got)


def forget_last(point: Path) -> None:
    """Leave the checkpoint as if the query had been killed before it logged the end of its last
    batch."""
    last = max((point / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def test_a_stream_publishes_each_row_once_and_available_now_ends(
    job: Job, spark: Any, tmp_path: Path, connection: lakequeue.Connection
) -> None:
    """From a table into a queue, then from the queue into another table, with the trigger that ends
    by itself. A batch of each runs again."""
    source, out, back = (str(tmp_path / name) for name in ("source", "out", "back"))
    frame = spark.range(STREAMED).selectExpr("concat('streamed ', id) AS payload")
    for part in range(2):
        frame.where(f"length(payload) % 2 = {part}").coalesce(1).write.format("delta").mode(
            "append"
        ).save(source)

    def goes(rows: Any, to: str, point: str, **given: str) -> None:
        stream = rows.writeStream.format(to).options(**given).trigger(availableNow=True)
        assert stream.option("checkpointLocation", point).start().awaitTermination(300)

    for _ in range(2):
        rows = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(source)
        goes(rows, "lakequeue", out, **options(job, FROM_ROWS))
        forget_last(Path(out))
    for _ in range(2):
        rows = spark.readStream.format("lakequeue").options(**options(job, FROM_ROWS)).load()
        goes(rows, "delta", back, path=str(tmp_path / "table"))
        forget_last(Path(back))
    table = deltalake.DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist()
    assert sorted(r["payload"].decode() for r in table) == sorted(
        f"streamed {n}" for n in range(STREAMED)
    )
    admin = connection.admin()
    until(lambda: admin.describe(FROM_ROWS)["depth"] == 0, 30, "the last batch is acknowledged")


def test_invalid_options_and_columns_are_reported(job: Job, spark: Any) -> None:
    reader = spark.readStream.format("lakequeue").options(**options(job, TO_TABLE))
    assert reader.load().schema == SCHEMA
    reader = reader.option("conection", "kafka://x")
    with pytest.raises(Exception, match="no such option here; allowed are connection, vpn, queue"):
        reader.load().writeStream.format("noop").start()
    row = spark.sql("SELECT 1 AS price")
    writer = row.write.format("lakequeue").options(**options(job, FROM_ROWS)).mode("append")
    with pytest.raises(
        Exception, match=r"allowed are payload, queue, key(.|\n)*payload.*is required"
    ):
        writer.save()
