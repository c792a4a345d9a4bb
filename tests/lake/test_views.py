"""R1, R6: the views over the tables agree with the engine, and add up with the journal.

The scenarios run in memory and their journal is written as Delta files. `tests/job/test_tables.py`
does it with Spark.
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
from lake.on_files import MESSAGES, Recorded, by_day, write_table
from lakequeue import ConfigError, LakequeueError
from lakequeue.lake import open_lake, trace
from lakequeue.lake.views import states_after
from lakequeue.protocol import commands as c
from lakequeue.state.storage.row import DELAYED, GONE, LEASED, MOVING, READY
from rules.harness import Bench, drain, start
from rules.mesh import Mesh, ids, local, shared
from rules.scenario import Runner, load
from rules.steps import subscribe

SQL_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "sql.md"


def test_the_views_agree_after_all_scenarios(tmp_path: Path) -> None:
    """All on one engine, each with its own queues, except those that expect certain ids. Consumers
    stay until time moves: with very many it would move slowly."""
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
        runner.producer.close()  # otherwise the engine's clock would visit each of them
    with open_lake(recorded.write(tmp_path)) as lake:
        assert queued_agrees(lake, connection.admin()) > 100
        assert lifecycle_adds_up(lake, connection.engine.journal()) > 400
        assert rows(lake, "FROM queued WHERE state = 'leased'")


def test_the_states_are_those_of_the_table() -> None:
    """The mapping that the views read from the table, written once more by hand."""
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


JOIN = """SELECT j.message_id AS id, m.payload FROM messages m
JOIN journal j USING (topic, "partition", "offset", item) WHERE j.event = 'spooled'"""


@pytest.mark.parametrize("age_s", [-3_600, 3_600], ids=["older", "younger"])
def test_R1_messages_of_two_topics_of_one_name_stay_apart(
    bench: Bench, recorded: Recorded, tmp_path: Path, age_s: int
) -> None:
    """Two records have one offset; the page `sql` has a query for that case, which this test
    runs."""
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


def test_X5_X6_a_dead_message_names_its_reason_until_redriven(
    bench: Bench, recorded: Recorded
) -> None:
    bench.define(dead_message_queue="dead", expiration="1s")
    bench.define("dead")
    bench.send()
    bench.advance("2s")
    sql = "SELECT queue, dead_reason FROM queued"
    with recorded.lake() as lake:
        assert rows(lake, sql) == [{"queue": "dead", "dead_reason": "expired"}]
        assert rows(lake, "SELECT dead FROM queues WHERE queue = 'dead'") == [{"dead": 1}]
    bench.admin.redrive("dead")
    with recorded.lake() as lake:
        assert rows(lake, sql) == [{"queue": "orders", "dead_reason": None}]
        dead, orders = rows(lake, "SELECT * FROM lifecycle ORDER BY queue")
        assert (dead["ended"], orders["stays"]) == ("redriven", 2)
        assert orders["expired_at"] == orders["dead_lettered_at"] == dead["entered_at"]
        assert dead["published_at"] == orders["published_at"] == orders["entered_at"]


def test_published_is_the_records_time(bench: Bench, recorded: Recorded) -> None:
    """A message that waited in Kafka before the engine took it. A run has one record for all its
    messages."""
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


def test_a_time_beyond_the_calendar_becomes_its_end(bench: Bench, recorded: Recorded) -> None:
    bench.define()
    bench.engine.publish("orders", b"{}", None, [("lq", b'{"deliver_at": 9007199254740991}')])
    with recorded.lake() as lake:
        (row,) = rows(lake, "SELECT state, delayed_until FROM queued")
        assert row["state"] == "delayed"
        assert row["delayed_until"].year == 9999


def test_H4_a_message_that_changed_brokers_appears_once() -> None:
    """Each broker numbers its own steps: its rows about a message are in its own order."""
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


# ---------------------------------------------------------------- trace; see `told.txt`


def story(recorded: Recorded, number: str) -> dict[str, Any]:
    with recorded.lake() as lake:
        return trace(lake, number)


def test_L12_a_delay_does_not_count_as_waiting(bench: Bench, recorded: Recorded) -> None:
    bench.define()
    number = bench.send(delay="5s")
    bench.advance("6s")
    bench.consumer()
    entered, due, delivered = story(recorded, number)["queues"][0]["life"]
    assert (entered["then"]["state"], entered["then"]["ms"]) == ("delayed", 5000)
    assert entered["until"] == entered["then"]["until"]
    assert (due["event"], due["then"]["why"][0]["why"], due["then"]["ms"]) == (
        "ready", "no consumer", 1000,
    )  # fmt: skip
    assert delivered["then"]["state"] == "leased"


def test_a_trace_follows_a_message_over_several_queues(bench: Bench, recorded: Recorded) -> None:
    """C7, X5, X6: published, rejected, dead, redriven; and a copy in another queue."""
    bench.define(dead_message_queue="dead")
    bench.define("dead")
    bench.define("copies", underlying_topic="orders")
    consumer = bench.consumer()
    number = bench.send({"n": 1})
    drain(consumer)[0].reject(reason="not mine")
    consumer.close()
    bench.advance("1s")
    bench.admin.redrive("dead")
    told = story(recorded, f"0{number}")
    assert told["message_id"] == number
    assert told["published"]["topic"] == "default.publish"
    assert told["published"]["bytes"] == len(b'{"n": 1}')
    lives = {q["queue"]: [e["event"] for e in q["life"]] for q in told["queues"]}
    assert lives == {
        "orders": ["spooled", "delivered", "consumer_rejected", "dead_lettered", "spooled"],
        "copies": ["spooled"],
        "dead": ["spooled", "redriven"],
    }
    reasons = [e["reason"] for q in told["queues"] for e in q["life"] if e["reason"]]
    assert sorted(reasons) == ["dead", "not mine", "redriven from dead", "rejected"]


@pytest.mark.parametrize("wrong", ["x", "-1", "", "0", "1.5", str(1 << 64)])
def test_an_invalid_message_id_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="not a message id"):
        trace(None, wrong)


def test_an_unknown_message_is_reported(bench: Bench, recorded: Recorded) -> None:
    bench.define()
    with pytest.raises(LakequeueError, match="have no message 12345"):
        story(recorded, "12345")


def test_R1_H4_each_attempt_at_a_message_counts_once_and_is_traced_in_order() -> None:
    """Both brokers have steps of the same numbers, and the second broker goes on counting."""
    mesh = Mesh(shared("dist", "t"))
    recorded = Recorded(mesh.engine)
    sent = mesh.send("a", "t")
    for broker in "aab":
        mesh.advance("1s")
        with mesh.consumer(broker, queue="dist") as consumer:
            mesh.advance("1s")
            assert ids(drain(consumer)) == [sent]
    mesh.advance("1s")
    with recorded.lake() as lake:
        deliveries = rows(lake, "SELECT deliveries FROM lifecycle")
        queued = rows(lake, "SELECT state, deliveries FROM queued")
        (found,) = trace(lake, sent)["queues"]
    assert (deliveries, queued) == ([{"deliveries": 3}], [{"state": "ready", "deliveries": 3}])
    told = [(e["event"], e["deliveries"], (e["then"] or {}).get("state")) for e in found["life"]]
    assert told[:5] == [
        ("spooled", 0, "ready"), ("delivered", 1, "leased"), ("returned", 1, "ready"),
        ("redelivered", 2, "leased"), ("returned", 2, "ready"),
    ]  # fmt: skip
    assert sorted(told[5:9]) == [
        ("granted", 2, "moving"), ("redelivered", 3, "leased"), ("spooled", 2, "ready"),
        ("transferred", 2, "gone"),
    ]  # fmt: skip
    assert told[9:] == [("returned", 3, "ready")]


@pytest.mark.parametrize("state", ["ready", "delayed", "leased"])
def test_R1_L5_an_attempt_that_is_taken_back_late_is_not_in_the_tables(
    bench: Bench, recorded: Recorded, state: str
) -> None:
    bench.define(lease_period="1h")
    number, ask = bench.send(), bench.connection.request
    ask(subscribe("a"))
    ask(c.Unsubscribe(queue="orders", subscription="a"))
    if state != "ready":
        ask(subscribe("b"))
    if state == "delayed":
        ask(c.Cancel(queue="orders", subscription="b", ids=number, delay_ms=1_000))
    ask(c.Returned(queue="orders", subscription="a", ids=number))
    with recorded.lake() as lake:
        assert queued_agrees(lake, bench.admin) == 1
        assert rows(lake, "SELECT state FROM queued") == [{"state": state}]
        assert lifecycle_adds_up(lake, bench.engine.journal()) == 1


def test_R1_R3_deliveries_count_from_zero_in_the_tables_too(
    bench: Bench, recorded: Recorded
) -> None:
    """After a rebuild, which begins with this command."""
    bench.define(max_per_subscription_backlog=9)
    for _ in range(3):
        bench.send()
    first, second, _ = drain(bench.consumer())
    first.cancel()
    second.cancel(delay="1h")
    bench.instruct(c.BeginAgain(queue="orders"))
    with recorded.lake() as lake:
        assert queued_agrees(lake, bench.admin) == 3


def test_M6_dead_is_what_died_and_not_what_came_from_another_broker() -> None:
    mesh = Mesh(local("orders", "b", "t", dead_message_queue="dead"), local("dead", "c"))
    recorded = Recorded(mesh.engine)
    kept = mesh.send("a", "t")
    died = mesh.send("a", "t", ttl="1s")
    mesh.advance("2s")
    with recorded.lake() as lake:
        found = rows(lake, "SELECT message_id, queue, dead_reason FROM queued ORDER BY queue")
    assert [tuple(row.values()) for row in found] == [
        (died, "dead", "expired"), (kept, "orders", None)
    ]  # fmt: skip


def test_M4_a_queue_has_its_consumers_after_one_more_broker_defines_it() -> None:
    mesh = Mesh()
    recorded = Recorded(mesh.engine)
    mesh.admin.define(shared("dist"))
    with mesh.consumer("a", queue="dist"):
        mesh.advance("1s")
        journal = recorded.journal().to_pylist()
        first = [row for row in journal if row["event"] == "subscribed"]
        added = {"broker": "d", "step": 1, "event": "defined", "subscription": "", "reason": ""}
        added["time"] = first[0]["time"] + timedelta(seconds=1)
        journal.append(first[0] | added)
        with recorded.lake() as lake:
            lake.register("journal", by_day(pa.Table.from_pylist(journal)))
            (found,) = rows(lake, "FROM queues WHERE queue = 'dist'")
    assert found["consumers"] == 1


def test_M5_a_queue_that_moved_is_explained_by_its_definition() -> None:
    """Its new broker writes no definition, and has steps of its own."""
    mesh = Mesh()
    recorded = Recorded(mesh.engine)
    mesh.admin.define(local("orders", "a", max_backlog=1))
    for _ in range(20):  # a is many steps ahead
        mesh.admin.usage()
    mesh.move("orders", "b")
    mesh.advance("5s")
    with mesh.consumer("b") as consumer:
        sent = [mesh.send("b") for _ in range(2)]
        mesh.advance("1s")
        drain(consumer)[0].ack()
    (queue,) = (q for q in story(recorded, sent[1])["queues"] if q["queue"] == "orders")
    why = queue["life"][0]["then"]["why"]
    assert [(one["why"], one["ms"]) for one in why] == [("max_backlog of the queue", 1_000)]
