"""L10: leases are renewed while the application works, up to a limit. C3: heartbeats meanwhile."""

import threading
import time
from typing import Any

import pytest
from client.threaded import connect, engine, wait_for
from lakequeue.protocol import ConfigError, LeaseLost
from rules.harness import Bench, drain, ids

LEASED = {"lease_period": "10s", "max_per_subscription_backlog": 100}


def test_L10_a_lease_is_renewed_while_the_message_is_worked_on(empty: Bench) -> None:
    empty.define(**LEASED)
    consumer = empty.consumer(auto_renew=True)
    other = empty.consumer(name="other", filter="/n < 0")
    empty.send()
    (message,) = drain(consumer)
    empty.advance("4m")
    assert empty.seen()["counters"]["lease_ended"] == 0
    message.ack()
    assert empty.seen()["acknowledged"] == 1
    assert drain(other) == []
    renewals = empty.events().count("renewed")
    assert 24 <= renewals <= 60  # when half is over, not with every look


def test_L10_what_waits_in_the_buffer_is_renewed_too(empty: Bench) -> None:
    empty.define(**LEASED)
    consumer = empty.consumer(auto_renew=True)
    sent = [empty.send({"n": n}) for n in range(3)]
    consumer.receive(timeout=0).ack()
    empty.advance("2m")
    messages = drain(consumer)
    assert ids(messages) == sent[1:]
    assert [m.delivery_count for m in messages] == [1, 1]


def test_L10_up_to_the_limit_and_no_longer(empty: Bench) -> None:
    """A callback that never returns does not keep its message for ever."""
    empty.define(**LEASED)
    consumer = empty.consumer(auto_renew=True, auto_renew_limit="30s")
    empty.send()
    (message,) = drain(consumer)
    empty.advance("29s")
    assert empty.seen()["counters"]["lease_ended"] == 0
    empty.advance("12s")
    assert empty.seen()["counters"]["lease_ended"] == 1
    with pytest.raises(LeaseLost):
        message.ack()


def test_L10_what_is_settled_is_not_renewed(empty: Bench) -> None:
    empty.define(**LEASED)
    consumer = empty.consumer(auto_renew=True)
    for n in range(3):
        empty.send({"n": n})
    for message in drain(consumer):
        message.ack()
    empty.advance("1h")
    assert empty.events().count("renewed") == 0


def test_L10_without_a_lease_period_there_is_nothing_to_renew(bench: Bench) -> None:
    consumer = bench.consumer(auto_renew=True)
    bench.send()
    drain(consumer)
    bench.advance("1h")
    assert bench.events().count("renewed") == 0


@pytest.mark.parametrize("renews", [True, False])
def test_L10_the_limit_is_positive(bench: Bench, renews: bool) -> None:
    for wrong in (0, "0s", "long"):
        with pytest.raises(ConfigError, match="auto_renew_limit: "):
            bench.consumer(auto_renew=renews, auto_renew_limit=wrong)


def test_C3_heartbeats_go_on_while_a_callback_runs_long() -> None:
    """Its session is kept by the background thread, whatever the application does."""
    queue = {"name": "orders", "message_type": "json", "max_per_subscription_backlog": 9}
    made = engine(queue, heartbeat_timeout="600ms")
    connection, wire = connect(made)
    consumer = connection.consumer("orders", ack_mode="auto", max_backlog=9)
    release = threading.Event()
    consumer.on_message(lambda _: release.wait(30))
    connection.producer().send("orders", b"{}")
    for _ in range(20):  # the engine's time, as real time passes
        time.sleep(0.1)
        made.advance("100ms")
    assert len(wire.said("heartbeat")) >= 3
    release.set()

    def acknowledged() -> Any:
        return connection.admin().describe("orders")["acknowledged"] == 1

    wait_for(acknowledged)
    seen = connection.admin().describe("orders")
    assert (seen["counters"]["returned"], seen["redelivered"]) == (0, 0)


def test_L10_a_lease_without_end_that_cannot_be_renewed_is_lost(bench: Bench) -> None:
    bench.send()
    (message,) = drain(bench.consumer())
    bench.admin.purge("orders")
    message.renew("5s")
    with pytest.raises(LeaseLost, match="no longer held by this consumer"):
        message.ack()
