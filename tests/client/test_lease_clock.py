"""L4, L8, L10: the client counts a lease by its own clock, from when the message came."""

import time
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from client.threaded import Wire, connect, engine, wait_for
from lakequeue.protocol import LeaseLost, NotConnected
from rules.harness import Bench, drain

LEASED = {
    "name": "orders", "message_type": "json", "lease_period": "10s",
    "max_per_subscription_backlog": 100,
}  # fmt: skip
DAY_MS = 86_400_000


@pytest.mark.parametrize("ahead_ms", [-DAY_MS, DAY_MS])
def test_L4_clocks_that_differ_by_a_day_do_no_harm(ahead_ms: int) -> None:
    made = engine(LEASED)
    made.now += ahead_ms
    connection, _ = connect(made)
    consumer = connection.consumer("orders", ack_mode="individual", max_backlog=10)
    connection.producer().send("orders", b"{}")
    before = datetime.now(UTC)
    message = consumer.receive(timeout=10)
    left = (message.lease_expires_at - before).total_seconds()
    assert 8 < left < 11, "by the clock of whoever reads it"
    message.ack()
    wait_for(lambda: connection.admin().describe("orders")["acknowledged"] == 1)


def test_L8_a_lease_that_is_over_by_the_clients_clock_is_lost() -> None:
    """Though the engine's clock stands still."""
    connection, _ = connect(engine({**LEASED, "lease_period": "200ms"}))
    consumer = connection.consumer("orders", ack_mode="individual", max_backlog=10)
    connection.producer().send("orders", b"{}")
    message = consumer.receive(timeout=10)
    time.sleep(0.25)
    with pytest.raises(LeaseLost, match="the lease of message 1 ended at "):
        message.ack()


def test_L10_renew_without_a_period_is_known_to_the_client(empty: Bench) -> None:
    empty.define(lease_period="10s")
    consumer = empty.consumer(backlog=1)
    empty.send()
    (message,) = drain(consumer)
    empty.advance("9s")
    message.renew()
    assert message.lease_expires_at == datetime.fromtimestamp(
        (empty.connection.now_ms() + 10_000) / 1000, UTC
    )
    empty.advance("9s")
    message.ack()
    assert empty.seen()["acknowledged"] == 1


def test_L10_the_engine_says_what_the_period_is_now(empty: Bench) -> None:
    """The queue was defined again since the consumer was bound (Q9)."""
    empty.define(lease_period="10s")
    consumer = empty.consumer(backlog=1)
    empty.send()
    (message,) = drain(consumer)
    empty.define(lease_period="1m")
    message.renew()
    empty.advance("59s")
    message.ack()
    assert empty.seen()["acknowledged"] == 1


@pytest.mark.parametrize("period", [None, "30s"])
def test_L4_L10_a_lease_without_end_stays_without_end(empty: Bench, period: str | None) -> None:
    empty.define()
    consumer = empty.consumer(backlog=1)
    empty.send()
    (message,) = drain(consumer)
    message.renew(period)
    assert message.lease_expires_at is None
    empty.advance("1h")
    message.ack()
    assert empty.seen()["acknowledged"] == 1


def test_L10_L8_what_was_not_renewed_is_lost() -> None:
    """By its own clock the client still has time; the engine says that the lease is over."""
    made = engine(LEASED)
    connection, _ = connect(made)
    consumer = connection.consumer("orders", ack_mode="individual", max_backlog=10)
    producer = connection.producer()
    producer.send("orders", b"{}")
    message = consumer.receive(timeout=10)
    consumer.set_max_backlog(0)
    made.advance("10s")
    message.renew()

    def known() -> bool:
        try:
            message.renew()
        except LeaseLost:
            return True
        return False

    wait_for(known)
    with pytest.raises(LeaseLost):
        message.ack()


def test_L10_auto_renew_learns_it_too(empty: Bench) -> None:
    empty.define(lease_period="10s")
    consumer = empty.consumer(auto_renew=True)
    empty.send()
    (message,) = drain(consumer)
    empty.define(lease_period="10s")
    empty.advance("20s")
    left = message.lease_expires_at.timestamp() * 1000 - empty.connection.now_ms()
    assert 0 < left <= 10_000
    message.ack()


@pytest.mark.parametrize("what", ["ack", "cancel", "reject", "renew"])
@pytest.mark.parametrize("closed", ["consumer", "connection"])
def test_L8_after_the_close_the_lease_is_lost(empty: Bench, what: str, closed: str) -> None:
    empty.define(lease_period="10s")
    connection = empty.connection
    consumer = empty.consumer()
    empty.send()
    (message,) = drain(consumer)
    (consumer if closed == "consumer" else connection).close()
    with pytest.raises(LeaseLost, match="message 1 returned to the queue: the consumer is closed"):
        getattr(message, what)()
    with pytest.raises(NotConnected):
        consumer.ack(ids="1")


def test_L8_what_was_settled_before_the_close_stays_settled(bench: Bench) -> None:
    consumer = bench.consumer()
    bench.send()
    (message,) = drain(consumer)
    message.ack()
    consumer.close()
    message.ack()
    assert bench.seen()["ack_ignored"] == 0


class Epoch(Wire):
    """The engine's home has the epoch 7."""

    def poll(self, timeout: float) -> list[Any]:
        found = super().poll(timeout)
        for record in found:
            if b'"epoch":0' in (record.value or b""):
                answer = msgspec.json.decode(record.value)
                answer["result"]["epoch"] = 7
                object.__setattr__(record, "value", msgspec.json.encode(answer))
        return found


def test_ids_are_named_with_the_epoch_that_they_belong_to() -> None:
    connection, wire = connect(engine(LEASED), kind=Epoch)
    consumer = connection.consumer("orders", ack_mode="individual", max_backlog=10)
    producer = connection.producer()
    for n in range(6):
        producer.send("orders", b"%d" % n)
    messages = consumer.receive_many(4, timeout=10)
    messages[0].cancel("1h")
    messages[1].reject()
    messages[2].renew()
    messages[3].ack()
    wait_for(lambda: len(consumer._prefetch.buffer) == 2)
    consumer.close()
    named = wire.said("cancel", "reject", "renew", "ack", "return")
    assert {c["command"]: c.get("epoch", 0) for c in named} == {
        "cancel": 7, "reject": 7, "renew": 7, "ack": 7, "return": 7,
    }  # fmt: skip
