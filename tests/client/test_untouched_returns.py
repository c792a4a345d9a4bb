"""L5: what was prefetched and never handed over returns untouched, which is no attempt."""

import threading
import time
from typing import Any

import lakequeue
import pytest
from client.threaded import Held, connect, engine, wait_for
from lakequeue.client.consumer.consumer import RETURN_S
from rules.harness import Bench, drain, ids

ORDERS = {"name": "orders", "message_type": "json", "max_per_subscription_backlog": 100}


def received_one_five_times(connection: Any) -> None:
    """What an application does that is started and stopped often."""
    for _ in range(5):
        with connection.consumer("orders", ack_mode="individual", max_backlog=100) as consumer:
            consumer.receive(timeout=5).ack()


def test_L5_nothing_is_dead_lettered_with_the_shipped_configuration() -> None:
    with lakequeue.connect("memory://?config=conf/queues.yaml") as connection:
        producer, admin = connection.producer(), connection.admin()
        for n in range(200):
            producer.send("orders", b'{"n": %d}' % n)
        received_one_five_times(connection)
        seen = admin.describe("orders")
        assert (seen["depth"], seen["acknowledged"], seen["dead_lettered"]) == (195, 5, 0)
        assert admin.describe("orders-dmq")["depth"] == 0
        assert {m.delivery_count for m in admin.browse("orders", limit=200)} == {0}


def test_L5_B3_a_smaller_backlog_returns_what_is_beyond_it(bench: Bench) -> None:
    consumer = bench.consumer(backlog=10)
    sent = [bench.send({"n": n}) for n in range(10)]
    first = consumer.receive(timeout=0)
    consumer.set_max_backlog(4)
    assert (bench.seen()["leased"], bench.seen()["ready"]) == (4, 6)
    other = bench.consumer(name="other")
    taken = drain(other)
    assert ids(taken) == sent[4:]
    assert [m.delivery_count for m in taken] == [1] * 6
    first.ack()
    assert ids(drain(consumer)) == sent[1:4]
    consumer.set_max_backlog(0)
    assert bench.seen()["returned"] == 6, "what the application holds is not taken from it"


@pytest.mark.parametrize("backlog", [3, 5])
def test_L5_B3_X1_held_messages_that_expired_take_no_room(empty: Bench, backlog: int) -> None:
    """The application still has them; the engine delivers others. A smaller backlog returns what is
    beyond it, a larger one nothing."""
    empty.define(expiration="5s", max_per_subscription_backlog=100)
    consumer = empty.consumer(backlog=4)
    for n in range(2):
        empty.send({"n": n})
    assert len(drain(consumer)) == 2
    empty.advance("6s")
    sent = [empty.send({"n": n}) for n in range(5)]
    consumer.set_max_backlog(backlog)
    found = empty.seen()
    assert (found["leased"], found["returned"], found["expired"]) == (
        backlog,
        max(4 - backlog, 0),
        2,
    )
    assert ids(drain(consumer)) == sent[:backlog]


def test_L5_what_is_put_back_was_no_attempt(empty: Bench) -> None:
    empty.define(max_deliveries=1, max_per_subscription_backlog=100)
    sent = [empty.send({"n": n}) for n in range(3)]
    with empty.consumer(ack_mode="individual", backlog=3) as consumer:
        for message in drain(consumer):
            message.put_back()
            message.ack()  # too late
        again = drain(consumer)
        assert ids(again) == sent
        assert [m.delivery_count for m in again] == [1, 1, 1]


@pytest.mark.parametrize(
    ("mode", "acknowledged", "expired"), [("auto", 1, 0), ("dups_ok", 1, 0), ("client", 0, 1)]
)
def test_L5_in_every_mode_that_leases(
    empty: Bench, mode: str, acknowledged: int, expired: int
) -> None:
    empty.define(max_deliveries=1, max_per_subscription_backlog=100)
    sent = [empty.send({"n": n}) for n in range(9)]
    with empty.consumer(ack_mode=mode, backlog=4) as consumer:
        consumer.receive(timeout=0)
    assert ids(empty.admin.browse("orders")) == sent[1:]
    seen = empty.seen()
    assert (seen["acknowledged"], seen["expired"]) == (acknowledged, expired)


def test_L5_pre_ack_returns_what_it_has_not_acknowledged(empty: Bench) -> None:
    """Four wait in the client acknowledged, four behind them leased: these return."""
    empty.define(max_deliveries=1, max_per_subscription_backlog=100)
    sent = [empty.send({"n": n}) for n in range(9)]
    empty.consumer(ack_mode="pre_ack", backlog=4).close()
    assert ids(empty.admin.browse("orders")) == sent[4:]
    assert (empty.seen()["acknowledged"], empty.seen()["expired"]) == (4, 0)


def test_L5_what_is_on_its_way_at_the_close_returns_untouched_too() -> None:
    made = engine(ORDERS)
    connection, wire = connect(made, kind=Held)
    consumer = connection.consumer("orders", ack_mode="individual", max_backlog=100)
    producer = connection.producer()
    wire.let_go.clear()
    for n in range(20):
        producer.send_async("orders", b"%d" % n, ack_immediately=True)
    look, _ = connect(made, "look")
    admin = look.admin()
    wait_for(lambda: admin.describe("orders")["leased"] == 20)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    time.sleep(0.1)
    wire.let_go.set()
    closing.join(60)
    wait_for(lambda: admin.describe("orders")["ready"] == 20)
    assert {m.delivery_count for m in admin.browse("orders")} == {0}


def test_L5_consumers_of_an_engine_that_is_away_close_soon() -> None:
    """They wait once, not each."""
    made = engine(ORDERS)
    connection, wire = connect(made, kind=Held)
    for _ in range(5):
        connection.consumer("orders", ack_mode="individual", max_backlog=100)
    wire.let_go.clear()
    started = time.monotonic()
    connection.close()
    assert RETURN_S <= time.monotonic() - started < 4 * RETURN_S
