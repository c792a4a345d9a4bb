"""R4: past messages come back from the tables, to one queue. Most of it: `told.txt`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lake.on_files import Recorded, write_table
from lakequeue import LakequeueError
from lakequeue.protocol import ConfigError
from rules.harness import Bench, drain
from rules.mesh import Mesh, local


class Shop:
    """A bench whose actions are in the tables of a home."""

    def __init__(self, home: Path) -> None:
        self.bench = Bench()
        self.recorded = Recorded(self.bench.engine)
        self.home = home
        self.bench.define(max_per_subscription_backlog=100)

    def replay(self, **options: Any) -> Any:
        self.recorded.write(self.home)
        return self.bench.admin.replay("orders", home=self.home, **options)

    def consume(self) -> list[Any]:
        with self.bench.consumer() as consumer:
            found = drain(consumer)
            for message in found:
                message.ack()
        return found


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_R4_acknowledged_messages_come_back_marked_as_replayed(shop: Shop) -> None:
    first = shop.bench.send({"n": 1}, headers={"k": "v"}, key=b"key", priority=7)
    published = shop.bench.connection.now()
    shop.consume()
    shop.bench.advance("1m")
    done = shop.replay(since="epoch")
    assert (done.count, done.refused) == (1, {})
    (again,) = shop.consume()
    assert (again.payload, again.key, again.priority) == (b'{"n": 1}', b"key", 7)
    assert again.headers == {
        "k": "v", "lq-replay-of": first, "lq-replay-time": published.isoformat(),
        "lq-replay-by": shop.bench.connection.client_name,
    }  # fmt: skip
    assert again.id != first


def test_R4_wrong_arguments_are_refused(shop: Shop, tmp_path: Path) -> None:
    for options, said in (
        ({"since": "yesterday"}, "since: 'yesterday'"), ({"where": "/n >"}, "found the end"),
        ({"rate": 0}, "rate: 0"), ({"ids": "x"}, "x"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            shop.replay(**options)
        with pytest.raises(ConfigError, match=said):  # before the engine gets a request
            shop.bench.admin.replay("nobody", home=tmp_path, **options)
    with pytest.raises(ConfigError, match="there is no such queue"):
        shop.bench.admin.replay("nobody", home=tmp_path)
    with pytest.raises(LakequeueError, match="has no table messages"):
        shop.bench.admin.replay("orders", home=tmp_path / "nowhere")


def test_R4_a_consumer_can_request_a_replay(shop: Shop) -> None:
    shop.bench.send({"n": 0})
    shop.consume()
    shop.bench.advance("1m")
    since = shop.bench.connection.now()
    for n in (1, 2):
        shop.bench.send({"n": n})
    shop.consume()
    shop.bench.send({"n": 3})  # it is in the queue, and comes once
    shop.recorded.write(shop.home)
    with shop.bench.consumer(replay_from=since, replay_home=shop.home) as consumer:
        assert consumer.replay.result(0).count == 2
        found = drain(consumer)
        assert [m.payload for m in found] == [b'{"n": 3}', b'{"n": 1}', b'{"n": 2}']
        consumer.subscribe()  # as after a lost session
        assert len(drain(consumer)) == 3, "the same once more: nothing is replayed again"
    with shop.bench.consumer() as consumer:
        assert consumer.replay is None


def test_R4_a_consumers_wrong_request_fails_at_once(shop: Shop, tmp_path: Path) -> None:
    shop.bench.send({})
    shop.recorded.write(shop.home)
    with pytest.raises(ConfigError, match="replay_from"):
        shop.bench.consumer(replay_from="yesterday", replay_home=shop.home)
    with pytest.raises(LakequeueError, match="no table"):
        shop.bench.consumer(replay_from="epoch", replay_home=tmp_path / "nowhere")
    assert shop.bench.seen()["consumers"] == [], "a subscription was left behind"


def test_R4_beyond_retention_the_error_names_what_is_left(shop: Shop) -> None:
    first = shop.bench.connection.now()
    sent = shop.bench.send({})
    shop.consume()
    assert shop.replay(since=first, dry_run=True).left == ""
    assert shop.replay(since="epoch", dry_run=True).left == ""
    early = first - timedelta(days=1)
    begins = first.isoformat(" ", "seconds")
    found = shop.replay(since=early, dry_run=True)
    assert found.left == f"The tables begin at {begins}: older messages are gone"
    assert found.count == 1
    with pytest.raises(ConfigError, match=r"until: .+ the tables begin at .+ are gone"):
        shop.replay(until=early)
    second = shop.bench.send({})
    shop.recorded.write(shop.home)
    left = shop.recorded.journal().filter(pc.field("message_id") != sent)
    write_table(shop.home, "journal", left)
    found = shop.bench.admin.replay("orders", since=sent, home=shop.home, dry_run=True)
    assert found.left.startswith(f"The tables begin with message {second}, of ")


def test_R4_an_answer_from_empty_tables_says_so(shop: Shop) -> None:
    """Right after the first start, messages are still on their way to the tables."""
    empty = shop.replay(since="epoch")
    assert (empty.count, empty.begins) == (0, None)
    assert empty.left.startswith("The tables have no messages yet")
    shop.bench.send({})
    assert shop.replay(since="epoch").left == ""


def test_R4_discarded_messages_behind_a_bookmark_come_back(shop: Shop) -> None:
    shop.bench.define(max_spool_messages=1, reject_msg_to_sender_on_discard="never")
    for n in range(3):
        shop.bench.send({"n": 3 * n})
        shop.bench.send({"n": 3 * n + 1})  # discarded
        shop.consume()
    _, second, _ = [row["message_id"] for row in shop.bench.rows("spooled")]
    found = shop.replay(since=second, dry_run=True)
    assert [one["payload"] for one in found.examples] == [b'{"n": %d}' % n for n in (3, 4, 6, 7)]
    assert found.count == 4


def test_R4_messages_that_reached_another_broker_first_come_back(tmp_path: Path) -> None:
    """They waited there for the queue's broker. One that still waits is not replayed. Ids of
    different brokers say nothing about the order."""
    mesh = Mesh(local("far", "a", "t"))
    recorded = Recorded(mesh.engine)
    sent = []
    for broker in "acba":
        sent.append(mesh.send(broker, "t"))
        mesh.advance("1s")
    mesh.take("far")
    mesh.engine.broker("a").is_stopped = True
    mesh.send("b", "t")
    home = recorded.write(tmp_path)
    mesh.engine.broker("a").is_stopped = False
    for since, expected in (("epoch", sent), *((one, sent[at:]) for at, one in enumerate(sent))):
        found = mesh.admin.replay("far", home=home, since=since, dry_run=True)
        assert [one["id"] for one in found.examples] == expected


def test_R3_R4_a_message_that_a_rebuilt_home_has_stored_again_is_not_replayed(shop: Shop) -> None:
    """Its record has two rows: of a lost step, and under a higher id."""
    shop.bench.send({})
    shop.bench.send({})
    shop.recorded.write(shop.home)
    first, lost = (row for row in shop.recorded.journal().to_pylist() if row["event"] == "spooled")
    more = [{**lost, "event": "lost", "topic": "", "step": 1_000_000},
            {**lost, "message_id": "10", "step": 1_000_001}]  # fmt: skip
    rows = pa.Table.from_pylist([first, lost, *more], shop.recorded.journal().schema)
    write_table(shop.home, "journal", rows)
    assert (lost["message_id"], shop.bench.admin.replay("orders", home=shop.home).count) == ("2", 0)


def test_R4_a_record_dated_1970_does_not_extend_the_retained_time(shop: Shop) -> None:
    """A plain Kafka producer may set any time, and can ask for its message by that time."""
    first = shop.bench.connection.now()
    shop.bench.send({"n": 1})
    shop.bench.send({"n": 2})
    shop.consume()
    shop.recorded.write(shop.home)
    table = shop.home / "tables" / "messages"
    rows = deltalake.DeltaTable(table).to_pyarrow_table()
    at = rows.schema.get_field_index("time")
    times = [datetime.fromtimestamp(0, UTC), *rows["time"].to_pylist()[1:]]
    odd = rows.set_column(at, rows.schema.field(at), pa.array(times, rows.schema.field(at).type))
    deltalake.write_deltalake(table, odd, mode="overwrite")

    def dry_run(**period: Any) -> Any:
        return shop.bench.admin.replay("orders", home=shop.home, dry_run=True, **period)

    found = dry_run(since=first - timedelta(days=3))
    assert (found.begins.date(), found.count) == (first.date(), 1)
    assert found.left.startswith(f"The tables begin at {first.date()}")
    old = dry_run(until=first - timedelta(days=3))
    assert (old.count, [one["payload"] for one in old.examples]) == (1, [b'{"n": 1}'])
    with pytest.raises(ConfigError, match=f"the tables begin at {first.date()}"):
        dry_run(until=datetime.fromtimestamp(-1, UTC))


def test_R4_each_message_of_a_recreated_topic_comes_once(shop: Shop) -> None:
    """Two records have one offset: the message is the one that the step read."""
    sent = [shop.bench.send({"n": n}) for n in range(3)]
    shop.consume()
    shop.recorded.write(shop.home)

    def anew(rows: Any) -> Any:
        at, what = (rows.schema.get_field_index(name) for name in ("time", "payload"))
        times = pc.add(rows["time"], pa.scalar(10**10, pa.duration("us")))
        others = rows.set_column(at, rows.schema.field(at), times)
        payloads = pa.array([b"another"] * len(rows), rows.schema.field(what).type)
        return pa.concat_tables([rows, others.set_column(what, rows.schema.field(what), payloads)])

    table = shop.home / "tables" / "messages"
    rows = anew(deltalake.DeltaTable(table).to_pyarrow_table())
    deltalake.write_deltalake(table, rows, mode="overwrite")
    found = shop.bench.admin.replay("orders", home=shop.home, since="epoch", dry_run=True)
    assert [one["id"] for one in found.examples] == sent
    assert found.count == 3
    assert shop.bench.admin.replay("orders", home=shop.home, since="epoch").count == 3
    assert [message.payload for message in shop.consume()] == [b'{"n": %d}' % n for n in range(3)]
