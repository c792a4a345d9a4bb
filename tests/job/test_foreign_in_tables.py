"""Records of other programs on our topics, and the tables: nothing ends a query, no step is lost
(R1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lakequeue
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from job.conftest import Job
from job.processes import until, write_at
from job.tables import await_history, rows_where
from lakequeue.lake import open_lake
from lakequeue.lake.past import as_of

pytestmark = pytest.mark.job

QUEUE, ANEW = "tables", ("longer", "shorter")
LIKE_TEXT = {"message_type": "text", "max_per_subscription_backlog": 100}
NS = 1_700_000_000_000_000_000  # as a time in ms: the year 53,872,790


def payloads(job: Job) -> list[bytes]:
    """The payloads of our topic, in `messages`."""
    rows = rows_where(job.engine.tables / "messages", ["payload"], topic=QUEUE)
    return sorted(row["payload"] for row in rows)


def put(producer: Producer, name: bytes, end: Any = None) -> None:
    """Write one transaction."""
    producer.begin_transaction()
    producer.produce(QUEUE, name, partition=0)
    producer.flush(90)
    if end is not None:
        end(30)


def test_R1_aborted_records_are_in_no_table(job: Job, connection: lakequeue.Connection) -> None:
    """Steps take committed records only, and so do the tables. An open transaction holds back the
    records behind it, and nothing else."""
    bootstrap, home = job.kafka.bootstrap_servers, job.engine.tables.parent
    await_snapshot(home)
    before = payloads(job)
    foreign = Producer(
        {
            "bootstrap.servers": bootstrap, "transactional.id": "foreign",
            "transaction.timeout.ms": 600_000,  # it stays open for longer than Kafka's minute
        }
    )  # fmt: skip
    foreign.init_transactions(30)
    for number, end in enumerate(
        (foreign.commit_transaction, foreign.abort_transaction, foreign.commit_transaction)
    ):
        put(foreign, b"tx %d" % number, end)
    put(foreign, b"open")
    sent = connection.producer().send(QUEUE, "beside it").message_id
    until(lambda: payloads(job) == sorted([*before, b"tx 0", b"tx 2"]), 60, "they are there")

    def is_there() -> Any:
        about = {"event": "spooled", "message_id": sent}
        return rows_where(job.engine.tables / "journal", ["event"], **about)

    until(is_there, 30, "the journal continues")
    foreign.abort_transaction(30)
    put(foreign, b"tx 4", foreign.commit_transaction)
    wanted = sorted([*before, b"tx 0", b"tx 2", b"tx 4"])
    until(lambda: payloads(job) == wanted, 60, "the records after it")
    connection.admin().purge(QUEUE)
    await_history(job.engine.tables, connection, QUEUE)
    check_steps_are_made_again(home, QUEUE)


def check_steps_are_made_again(home: Path, topic: str) -> None:
    """Replay the first two and the last two steps that read records of the topic. Each takes a
    second."""
    with open_lake(home) as lake:
        (first,) = lake.execute("SELECT min(step) FROM snapshots WHERE page = ''").fetchall()[0]
        steps = lake.execute(
            "SELECT DISTINCT step FROM (SELECT step, unnest(ranges) AS r FROM steps) "
            "WHERE r.topic = $1 AND step > $2 ORDER BY step", [topic, first]
        ).fetchall()  # fmt: skip
        assert steps
        for (step,) in {*steps[:2], *steps[-2:]}:
            assert as_of(lake, home, "broker-0", step=step).step == step


def test_R1_a_recreated_topic_starts_anew_in_the_tables(
    job: Job, connection: lakequeue.Connection
) -> None:
    """A topic is more than its name: both a longer and a shorter new one. (Other causes of gaps:
    `tests/loop/test_gaps.py`.)"""
    bootstrap, home, admin = (
        job.kafka.bootstrap_servers,
        job.engine.tables.parent,
        connection.admin(),
    )
    kafka = AdminClient({"bootstrap.servers": bootstrap})
    await_snapshot(home)
    every: set[str] = set()

    def made(name: str) -> bool:
        error = kafka.create_topics([NewTopic(name, 1, 1)])[name].exception(30)
        return error is None  # an error: Kafka is still deleting the old one

    def all_there() -> bool:
        return {value for _, value, _ in in_tables()} == every

    def take(name: str, values: set[str]) -> None:
        got: set[str] = set()
        with connection.consumer(name, ack_mode="individual", max_backlog=100) as consumer:
            while not values <= got:
                message = until(lambda: consumer.receive(1.0), 60, "a record")
                message.ack()
                got.add(message.payload.decode())
        assert got <= every

    def in_tables() -> list[tuple[str, str, str]]:
        columns = ["topic", "payload", "topic_id"]
        found = [
            r for t in ANEW for r in rows_where(job.engine.tables / "messages", columns, topic=t)
        ]
        return [(r["topic"], r["payload"].decode(), r["topic_id"]) for r in found]

    for word, counts in (("first", (5, 5)), ("second", (20, 3))):
        producer = Producer({"bootstrap.servers": bootstrap})
        sent: dict[str, set[str]] = {}
        for name, count in zip(ANEW, counts, strict=True):
            until(lambda name=name: made(name), 30, "the topic is made")
            admin.define({**LIKE_TEXT, "name": name})
            sent[name] = {f"{name} {word} {n}" for n in range(count)}
            for value in sent[name]:
                producer.produce(name, value)
        producer.flush(90)
        every |= sent[ANEW[0]] | sent[ANEW[1]]
        for name in ANEW:
            take(name, sent[name])
        until(all_there, 60, "the tables have them")
        for done in kafka.delete_topics([*ANEW]).values():
            done.result(90)

    def told() -> set[str]:
        return {e["topic"] for e in admin.events() if e["event"] == "topic_made_anew"}

    until(lambda: told() >= {*ANEW}, 30, "the engine reports it after the end of a batch")
    rows = in_tables()
    assert len(rows) == len(every) == 33, "each once"
    assert len({(topic, topic_id) for topic, _, topic_id in rows}) == 4
    await_history(job.engine.tables, connection, QUEUE)
    for name in ANEW:
        check_steps_are_made_again(home, name)
        admin.delete(name)


def asked(home: Path, question: str) -> Any:
    """The one answer of the tables; None where they do not exist yet."""
    with open_lake(home) as lake:
        found = lake.execute(question).fetchone()
        return found and found[0]


def await_snapshot(home: Path) -> None:
    """Wait until there is a snapshot from which steps can be replayed."""
    until(lambda: rows_where(home / "tables/snapshots", ["step"], page=""), 60, "a snapshot")


def let_any_time_in(bootstrap: str, *topics: str) -> None:
    """Allow any timestamp on these topics, as every Kafka before 4.0 does."""
    most = str(2**63 - 1)
    entry = ConfigEntry(
        "message.timestamp.after.max.ms", most, incremental_operation=AlterConfigOpType.SET
    )
    changes = [ConfigResource("topic", topic, incremental_configs=[entry]) for topic in topics]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.incremental_alter_configs(changes).values():
        done.result(90)


def test_R1_a_time_in_nanoseconds_ends_no_query(job: Job, connection: lakequeue.Connection) -> None:
    bootstrap, home = job.kafka.bootstrap_servers, job.engine.tables.parent
    let_any_time_in(bootstrap, "default.commands", "default.journal")
    foreign = Producer({"bootstrap.servers": bootstrap})
    heartbeat = b'{"command":"heartbeat","session":"nobody"}'
    write_at(foreign, "default.commands", heartbeat, NS, b"nobody")
    write_at(foreign, "default.journal", b"no journal", NS, b"nobody")
    foreign.produce("broker-0.steps", b"no step", None, 0)
    foreign.flush(90)
    await_history(job.engine.tables, connection, QUEUE)
    odd = asked(home, "SELECT max(time) FROM commands WHERE key = 'nobody'::BLOB")
    assert odd.year == 9999, "the history has the command"
    told = [event["event"] for event in connection.admin().events()]
    assert "tables_stopped" not in told
    with open_lake(home) as lake:
        assert as_of(lake, home, "broker-0").notes == []
