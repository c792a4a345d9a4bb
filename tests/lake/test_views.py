"""R1, R6: the views over the tables say what the engine says, and add up with the journal.

The scenarios are run in memory and their journal written as Delta files. No Spark:
`tests/job/test_tables.py` does it on the real thing.
"""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import deltalake
import lakequeue
import pyarrow as pa
import pytest
from lake.agreement import lifecycle_adds_up, queued_agrees, rows
from lake.on_files import MESSAGES, Recorded, write_table
from lakequeue.lake import open_lake
from lakequeue.lake.story import trace
from lakequeue.lake.views import states_after
from lakequeue.state.storage.row import DELAYED, GONE, LEASED, MOVING, READY
from rules.harness import Bench, drain, start
from rules.scenario import Runner, load

SQL_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "sql.md"


def test_the_views_agree_after_all_scenarios(tmp_path: Path) -> None:
    """One after the other on one engine, each with queues of its own; but for those that foresee an
    id. Consumers stay until time moves: it would move slowly for very many."""
    connection = start()
    connection.engine.checking = False
    recorded = Recorded(connection.engine)
    scenarios = [one for one in load() if not any("next" in line.words for line in one.lines)]
    consumers: list[Any] = []
    for number, scenario in enumerate(scenarios):
        while consumers and scenario.waits_s:
            consumers.pop().close()
        runner = Runner(connection, rename=f"s{number}/{{}}".format)
        runner.check(scenario)
        consumers += runner.consumers.values()
        runner.producer.close()  # the engine's clock would look after each of them
    with open_lake(recorded.write(tmp_path)) as lake:
        assert queued_agrees(lake, connection.admin()) > 100
        assert lifecycle_adds_up(lake, connection.engine.journal()) > 400
        assert rows(lake, "FROM queued WHERE state = 'leased'")


def test_the_states_are_those_of_the_table() -> None:
    """What the views read from the table, written down once more by hand."""
    assert states_after() == {
        "spooled": {READY, DELAYED}, "canceled": {READY, DELAYED},
        "delivered": {LEASED}, "redelivered": {LEASED}, "renewed": {LEASED},
        "ready": {READY}, "returned": {READY, DELAYED}, "lease_ended": {READY},
        "acknowledged": {GONE}, "consumer_rejected": {GONE}, "deleted": {GONE}, "expired": {GONE},
        "lost": {GONE}, "moved": {GONE}, "purged": {GONE}, "redriven": {GONE},
        "replaced": {GONE}, "granted": {MOVING}, "transferred": {GONE},
    }  # fmt: skip


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def recorded(bench: Bench) -> Recorded:
    return Recorded(bench.engine)


def test_S7_a_deleted_queue_is_gone_and_a_new_one_of_its_name_begins_anew(
    bench: Bench, recorded: Recorded
) -> None:
    bench.define()
    bench.consumer(name="of the first")
    bench.send()
    bench.admin.shutdown("orders", ingress=False, egress=True)
    bench.admin.delete("orders")
    with recorded.lake() as lake:
        assert rows(lake, "FROM queues") == []
        assert rows(lake, "FROM queued") == []
        (row,) = rows(lake, "FROM lifecycle")
        assert (row["state"], row["ended"]) == ("gone", "deleted")
    bench.define()
    bench.send()
    with recorded.lake() as lake:
        assert queued_agrees(lake, bench.admin) == 1


JOIN = """SELECT j.message_id AS id, m.payload FROM messages m
JOIN journal j USING (topic, "partition", "offset", item) WHERE j.event = 'spooled'"""


@pytest.mark.parametrize("age_s", [-3_600, 3_600], ids=["older", "younger"])
def test_R1_of_two_topics_of_one_name_each_message_is_of_its_own(
    bench: Bench, recorded: Recorded, tmp_path: Path, age_s: int
) -> None:
    """Two records stand at one offset; the page `sql` has a line for that, which is taken here."""
    bench.define()
    sent = {bench.send({"n": n}): b'{"n": %d}' % n for n in range(4)}
    home = recorded.write(tmp_path)
    age = timedelta(seconds=age_s)
    own = deltalake.DeltaTable(home / "tables" / "messages").to_pyarrow_table().to_pylist()
    others = [
        row | {"topic_id": "B", "payload": b"another one", "time": row["time"] + age} for row in own
    ]
    write_table(home, "messages", pa.Table.from_pylist([*own, *others], MESSAGES))
    (line,) = re.findall(r"`(qualify .*)`", SQL_PAGE.read_text())
    with open_lake(home) as lake:
        assert len(rows(lake, JOIN)) == 8
        assert {r["id"]: r["payload"] for r in rows(lake, f"{JOIN} {line}")} == sent
        assert len(rows(lake, f"{JOIN} {line}")) == 4
        found = rows(lake, "SELECT message_id, published_at FROM lifecycle")
        assert len(found) == 4
        assert {r["published_at"] for r in found} == {row["time"] for row in own}
        for number, payload in sent.items():
            published = trace(lake, number)["published"]
            assert (published["bytes"], published["time"]) == (len(payload), own[0]["time"])


def test_R6_what_was_moved_is_where_it_is(bench: Bench, recorded: Recorded) -> None:
    """Dead, delayed, ready; the dead one is still dead of what it died of."""
    bench.define("dmq")
    bench.define("others")
    bench.define(dead_message_queue="dmq")
    bench.send({"n": 1}, ttl="1s")
    bench.send({"n": 2}, delay="1h")
    bench.send({"n": 3})
    bench.advance("1s")
    assert bench.admin.move("dmq", to="others").count == 1
    assert bench.admin.move("orders", to="others", why="a test").count == 2
    bench.admin.edit("others", headers={"a": "b"}, ids="1")
    with recorded.lake() as lake:
        assert queued_agrees(lake, bench.admin) == 3
        lifecycle_adds_up(lake, bench.engine.journal())


@pytest.mark.parametrize("ingress", [True, False])
@pytest.mark.parametrize("egress", [True, False])
def test_H5_what_is_shut_down(
    bench: Bench, recorded: Recorded, ingress: bool, egress: bool
) -> None:
    bench.define()
    for both in (ingress, egress), (not ingress, not egress), (ingress, egress):
        bench.admin.shutdown("orders", ingress=both[0], egress=both[1])
    with recorded.lake() as lake:
        assert queued_agrees(lake, bench.admin) == 0


def test_X6_a_redriven_message_has_two_stays(bench: Bench, recorded: Recorded) -> None:
    bench.define(dead_message_queue="dead", max_deliveries=1, lease_period="2s")
    bench.define("dead")
    number = bench.send()
    bench.advance("3s")
    consumer = bench.consumer(name="c-1")
    assert drain(consumer)
    bench.advance("2s")  # the lease ends: dead
    bench.advance("5s")
    assert bench.admin.redrive("dead").moved == 1
    bench.advance("1s")
    with recorded.lake() as lake:
        assert queued_agrees(lake, bench.admin) == 1
        found = rows(lake, "SELECT * FROM lifecycle ORDER BY queue DESC")
        (orders, dead) = found
        assert (orders["stays"], orders["deliveries"], orders["waiting_ms"]) == (2, 2, 3000)
        assert (orders["state"], orders["ended"]) == ("leased", None)
        assert orders["dead_lettered_at"] == orders["expired_at"] == dead["entered_at"]
        assert (dead["stays"], dead["waiting_ms"], dead["ended"]) == (1, 5000, "redriven")
        assert {r["message_id"] for r in found} == {number}
        assert {r["published_at"] for r in found} == {orders["entered_at"]}


def test_X5_a_dead_message_says_of_what_until_it_is_redriven(
    bench: Bench, recorded: Recorded
) -> None:
    bench.define(dead_message_queue="dead", expiration="1s")
    bench.define("dead")
    bench.send()
    bench.advance("2s")
    sql = "SELECT queue, dead_reason FROM queued"
    with recorded.lake() as lake:
        assert rows(lake, sql) == [{"queue": "dead", "dead_reason": "expired"}]
        (dead,) = rows(lake, "SELECT dead FROM queues WHERE queue = 'dead'")
        assert dead == {"dead": 1}
    bench.admin.redrive("dead")
    with recorded.lake() as lake:
        assert rows(lake, sql) == [{"queue": "orders", "dead_reason": None}]


def test_published_is_the_records_own_time(bench: Bench, recorded: Recorded) -> None:
    """A message that waited in Kafka before the engine took it; a run has one record for all."""
    bench.define()
    bench.engine.publish("orders", b'{"n": 1}', None, [], timestamp=bench.engine.now - 7000)
    for future in [bench.producer.send_async("orders", b"{}") for _ in range(3)]:
        future.result()
    with recorded.lake() as lake:
        found = rows(
            lake, "SELECT epoch_ms(entered_at) - epoch_ms(published_at) AS ms FROM lifecycle "
            "ORDER BY message_id",
        )  # fmt: skip
        assert [row["ms"] for row in found] == [7000, 0, 0, 0]
        lifecycle_adds_up(lake, bench.engine.journal())


def test_consumers_come_and_go(bench: Bench, recorded: Recorded) -> None:
    bench.define()
    first = bench.consumer(name="a, consumer=odd")
    bench.advance("2s")
    first.close()
    bench.advance("1s")
    bench.consumer(name="b")
    with recorded.lake() as lake:
        found = rows(lake, "SELECT * FROM consumers ORDER BY subscribed_at")
        assert [(r["consumer"], r["why"]) for r in found] == [
            ("a, consumer=odd", "closed"), ("b", None),
        ]  # fmt: skip
        spent = found[0]["unsubscribed_at"] - found[0]["subscribed_at"]
        assert spent.total_seconds() == 2
        assert found[1]["unsubscribed_at"] is None


def test_times_without_an_end_and_far_away(bench: Bench, recorded: Recorded) -> None:
    """A delivery time that no calendar has stands as the end of the last one."""
    bench.define()
    bench.engine.publish("orders", b"{}", None, [("lq", b'{"deliver_at": 9007199254740991}')])
    with recorded.lake() as lake:
        (row,) = rows(lake, "SELECT state, delayed_until FROM queued")
        assert row["state"] == "delayed"
        assert row["delayed_until"].year == 9999


def test_empty_tables_have_no_rows(recorded: Recorded, bench: Bench) -> None:
    bench.define()
    with recorded.lake() as lake:
        for name in ("messages", "queued", "lifecycle", "consumers", "changes"):
            assert rows(lake, f"FROM {name}") == []
        assert [row["queue"] for row in rows(lake, "FROM queues")] == ["orders"]


def test_H4_a_message_that_went_to_another_broker_is_there_once() -> None:
    """Each broker numbers its own steps: what it says of a message is in its own order."""
    config = {
        "brokers": ["a", "b"],
        "queues": [{"name": "orders", "message_type": "json", "max_per_subscription_backlog": 9}],
    }
    near = lakequeue.connect("memory://views", config=config, broker="a")
    recorded = Recorded(near.engine)
    far = lakequeue.connect("memory://views", broker="b")
    for _ in range(20):  # a is many steps ahead
        near.admin().usage()
    for _ in range(3):
        near.producer().send("orders", b"{}")
    consumer = far.consumer("orders", ack_mode="individual", max_backlog=9)
    consumer.receive().ack()
    with recorded.lake() as lake:
        found = rows(lake, "SELECT state, ended FROM lifecycle ORDER BY message_id")
        assert [(row["state"], row["ended"]) for row in found] == [
            ("gone", "acknowledged"), ("leased", None), ("leased", None),
        ]  # fmt: skip
        held = rows(lake, "SELECT state FROM queued")
        assert [row["state"] for row in held] == ["leased", "leased"]
    for connection in (consumer, far, near):
        connection.close()
