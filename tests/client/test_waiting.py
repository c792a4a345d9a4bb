"""C6, L5, L10: messages that wait in the client when their lease or life ends. Leases are renewed
while the application works, up to a limit."""

import threading
import time
from typing import Any

import pytest
from client.threaded import Away, Held, Threaded, wait_for
from lakequeue.protocol import LeaseLost
from lakequeue.protocol import commands as c
from rules.harness import Bench, drain, ids
from rules.steps import REPLY, Steps, define, described, replies, subscribe

LEASED: dict[str, Any] = {"lease_period": "10s", "max_deliveries": 2}
DAY_MS = 86_400_000


@pytest.fixture
def leased(bench: Bench) -> Bench:
    bench.define(max_per_subscription_backlog=100, **LEASED)
    return bench


def send(bench: Bench, count: int) -> list[str]:
    return [bench.send({"n": n}) for n in range(count)]


def test_C6_a_message_expired_in_the_client_is_not_handed_over(bench: Bench) -> None:
    for n in range(4):
        bench.send({"n": n}, ttl="5s" if n % 2 == 0 else "1h")
    consumer = bench.consumer()
    bench.advance("6s")
    assert consumer.has_messages
    assert ids(consumer.receive_many(9, timeout=0)) == ["2", "4"]
    assert not consumer.has_messages


def test_C6_a_ttl_is_measured_without_comparing_clocks() -> None:
    bench = Threaded()
    bench.engine.now += DAY_MS
    consumer = bench.consumer()
    for ttl in ("200ms", "1h"):
        bench.send(ttl=ttl)
    bench.waiting(consumer, 2)
    time.sleep(0.25)
    assert ids(consumer.receive_many(9, timeout=1)) == ["2"]


def test_C6_a_message_whose_lease_ended_in_the_client_is_not_handed_over() -> None:
    """The delivery that replaces it is still in transit."""
    bench = Threaded(Held, lease_period="400ms")
    consumer = bench.consumer()
    send(bench, 3)
    bench.waiting(consumer, 3)
    bench.wire.let_go.clear()
    time.sleep(0.5)
    assert consumer.receive(timeout=0) is None
    bench.wire.let_go.set()
    assert [m.delivery_count for m in consumer.receive_many(3, timeout=10)] == [1] * 3


@pytest.mark.parametrize("mode", ["auto", "client", "individual", "dups_ok"])
def test_L5_L10_a_callback_that_takes_nearly_a_whole_lease(leased: Bench, mode: str) -> None:
    """Each callback gets a whole lease, however long its message waited before."""
    sent = send(leased, 10)
    seen: list[str] = []

    def work(message: Any) -> None:
        seen.append(message.id)
        leased.advance("8s")
        if mode in ("client", "individual"):
            message.ack()

    options = {"dups_ok_count": 1} if mode == "dups_ok" else {}
    leased.consumer(ack_mode=mode, **options).on_message(work)
    leased.advance("5m")
    assert seen == sent
    assert (leased.seen()["acknowledged"], leased.seen()["expired"]) == (10, 0)


def test_L10_a_message_handed_over_late_has_a_whole_lease(leased: Bench) -> None:
    send(leased, 3)
    consumer = leased.consumer()
    leased.advance("7s")
    messages = consumer.receive_many(3, timeout=0)
    left = {m.lease_expires_at.timestamp() * 1000 - leased.connection.now_ms() for m in messages}
    assert left == {10_000}
    assert leased.events().count("renewed") == 3
    leased.advance("9s")
    for message in messages:
        message.ack()
    assert leased.seen()["acknowledged"] == 3


# ---------------------------------------------------------------- renewals during the work


def test_L10_a_lease_is_renewed_while_the_message_is_worked_on(leased: Bench) -> None:
    consumer = leased.consumer(auto_renew=True)
    other = leased.consumer(name="other", filter="/n < 0")
    leased.send()
    (message,) = drain(consumer)
    leased.advance("4m")
    assert leased.seen()["counters"]["lease_ended"] == 0
    message.ack()
    assert leased.seen()["acknowledged"] == 1
    assert drain(other) == []
    assert 24 <= leased.events().count("renewed") <= 60  # at half of the lease, not at every tick


@pytest.mark.parametrize("lease", ["settled", "without end"])
def test_L10_settled_messages_and_unlimited_leases_are_not_renewed(
    leased: Bench, lease: str
) -> None:
    if lease == "without end":
        leased.define(lease_period=None)
    consumer = leased.consumer(auto_renew=True)
    send(leased, 3)
    for message in drain(consumer):
        if lease == "settled":
            message.ack()
    leased.advance("1h")
    assert leased.events().count("renewed") == 0


def test_L10_an_unlimited_lease_that_cannot_be_renewed_is_lost(bench: Bench) -> None:
    bench.send()
    (message,) = drain(bench.consumer())
    bench.admin.purge("orders")
    message.renew("5s")
    with pytest.raises(LeaseLost, match="no longer held by this consumer"):
        message.ack()


def test_C3_heartbeats_continue_during_a_long_callback() -> None:
    """The background thread keeps the session, whatever the application does."""
    bench = Threaded(system={"heartbeat_timeout": "600ms"})
    release = threading.Event()
    bench.consumer(ack_mode="auto").on_message(lambda _: release.wait(60))
    bench.send()
    for count in range(1, 5):  # the engine's time, as heartbeats come
        wait_for(lambda count=count: len(bench.wire.said("heartbeat")) >= count)
        bench.advance("400ms")
    release.set()
    wait_for(lambda: bench.seen()["acknowledged"] == 1)
    assert (bench.seen()["counters"]["returned"], bench.seen()["redelivered"]) == (0, 0)


# ---------------------------------------------------------------- unread deliveries


def test_L7_a_later_delivery_replaces_an_unread_one() -> None:
    """The engine ended the lease, by its clock, and sent the message again."""
    bench = Threaded(**LEASED)
    consumer = bench.consumer()
    bench.send()
    bench.waiting(consumer, 1)
    bench.advance("10s")
    wait_for(lambda: consumer._prefetch.buffer[0].delivery_count == 2)
    assert len(consumer.receive_many(9, timeout=1)) == 1


@pytest.mark.parametrize("refused", [(), ("return",)], ids=["at once", "once kafka is back"])
def test_L5_a_lost_session_reports_its_unread_messages(refused: tuple[str, ...]) -> None:
    bench = Threaded(Away, **LEASED | {"lease_period": "1h"})
    consumer = bench.consumer()
    send(bench, 3)
    first = consumer.receive(timeout=10)
    bench.waiting(consumer, 2)
    bench.advance("1m")
    bench.wire.refuses = refused
    bench.connection._heartbeat_answered(0, {"result": False})
    if refused:
        bench.wire.back()
    bench.waiting(consumer, 3)
    messages = consumer.receive_many(9, timeout=10)
    assert [m.delivery_count for m in messages] == [2, 1, 1]
    assert messages[0].id == first.id


@pytest.mark.parametrize(
    ("state", "expected", "ignored"),
    [("ready", [1, 0, 0, 0], 2), ("leased", [2, 1, 1, 1], 2), ("delayed", [2, 1, 0, 0], 1)],
)
def test_L5_a_late_report_takes_one_attempt_back(
    state: str, expected: list[int], ignored: int
) -> None:
    """Its present holder does not matter; an attempt that did not count is not taken back."""
    steps = Steps()
    steps.run([define(max_per_subscription_backlog=9), subscribe("a")], [("orders", b"{}")])
    steps.run([c.Unsubscribe(queue="orders", subscription="a")])
    if state != "ready":
        steps.run([subscribe("b")])
    if state == "delayed":
        steps.run([c.Cancel(queue="orders", subscription="b", ids="1", delay_ms=1000)])
    said = c.Returned(queue="orders", subscription="a", ids="1")
    counts = expected[:1]
    for _ in range(3):
        steps.run([said])
        (row,) = replies(steps.run([c.Browse(queue="orders", reply=REPLY)]))[0].result
        counts.append(row["delivery_count"])
    assert (row["state"], counts) == (state, expected)
    assert described(steps)["ack_ignored"] == ignored
