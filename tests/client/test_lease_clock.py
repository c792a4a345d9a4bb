"""L4, L8, L10: the client measures a lease by its own clock, from the message's arrival."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from client.threaded import Threaded, Wire, wait_for
from lakequeue.protocol import LeaseLost, NotConnected
from rules.harness import Bench, drain

DAY_MS = 86_400_000
ONE_MS = timedelta(milliseconds=1)


@pytest.fixture
def leased(empty: Bench) -> Bench:
    empty.define(lease_period="10s")
    return empty


def delivered(bench: Bench, **options: Any) -> Any:
    """A message that is leased to a consumer."""
    consumer = bench.consumer(**options)
    bench.send()
    return consumer.receive(timeout=10)


@pytest.mark.parametrize("ahead_ms", [-DAY_MS, DAY_MS])
def test_L4_clocks_may_differ_by_a_day(ahead_ms: int) -> None:
    bench = Threaded(lease_period="10s")
    bench.engine.now += ahead_ms
    before = datetime.now(UTC)
    message = delivered(bench)
    begun = message.lease_expires_at - timedelta(seconds=10)
    assert before - ONE_MS <= begun <= datetime.now(UTC) + ONE_MS, "by the reader's clock"
    message.ack()
    wait_for(lambda: bench.seen()["acknowledged"] == 1)


def test_L8_a_lease_ended_by_the_clients_clock_is_lost() -> None:
    """Although the engine's clock stands still."""
    message = delivered(Threaded(lease_period="1h"))
    message.lease_ends -= 3_600_000
    with pytest.raises(LeaseLost, match="the lease of message 1 ended at "):
        message.ack()


@pytest.mark.parametrize("period", [None, "30s"])
def test_L4_L10_an_unlimited_lease_stays_unlimited(bench: Bench, period: str | None) -> None:
    message = delivered(bench)
    message.renew(period)
    assert message.lease_expires_at is None
    bench.advance("1h")
    message.ack()
    assert bench.seen()["acknowledged"] == 1


def test_L10_L8_a_lease_not_renewed_is_lost() -> None:
    """By its own clock the client still has time; the engine reports that the lease is over."""
    bench = Threaded(lease_period="10s")
    consumer = bench.consumer()
    bench.send()
    message = consumer.receive(timeout=10)
    consumer.set_max_backlog(0)
    bench.advance("10s")
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


def test_L10_auto_renew_learns_of_a_lost_lease(leased: Bench) -> None:
    message = delivered(leased, auto_renew=True)
    leased.define(lease_period="10s")
    leased.advance("20s")
    left = message.lease_expires_at.timestamp() * 1000 - leased.connection.now_ms()
    assert 0 < left <= 10_000
    message.ack()


@pytest.mark.parametrize("what", ["ack", "cancel", "reject", "renew"])
@pytest.mark.parametrize("closed", ["consumer", "connection"])
def test_L8_after_the_close_the_lease_is_lost(leased: Bench, what: str, closed: str) -> None:
    connection, consumer = leased.connection, leased.consumer()
    leased.send()
    (message,) = drain(consumer)
    (consumer if closed == "consumer" else connection).close()
    with pytest.raises(LeaseLost, match="message 1 returned to the queue: the consumer is closed"):
        getattr(message, what)()
    with pytest.raises(NotConnected):
        consumer.ack(ids="1")


def test_L8_messages_settled_before_the_close_stay_settled(bench: Bench) -> None:
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


def test_commands_about_ids_carry_their_epoch() -> None:
    bench = Threaded(Epoch, lease_period="10s")
    consumer = bench.consumer()
    for n in range(6):
        bench.send({"n": n})
    messages = consumer.receive_many(4, timeout=10)
    messages[0].cancel("1h")
    messages[1].reject()
    messages[2].renew()
    messages[3].ack()
    bench.waiting(consumer, 2)
    consumer.close()
    named = bench.wire.said("cancel", "reject", "renew", "ack", "return")
    epochs = {command["command"]: command.get("epoch") for command in named}
    assert epochs == dict.fromkeys(("cancel", "reject", "renew", "ack", "return"), 7)
