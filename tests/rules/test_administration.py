"""Rules of the administrator and of the publisher's options, on memory://."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import lakequeue
import pytest
from lakequeue.protocol.errors import ConfigError, Rejected


@pytest.fixture
def connection() -> lakequeue.Connection:
    queues = [
        {"name": "orders", "message_type": "json", "max_per_subscription_backlog": 10},
        {"name": "strict", "message_type": "json",
         "reject_msg_to_sender_on_discard": "including-when-shutdown"},
        {"name": "low", "message_type": "json", "reject_low_priority_msg_limit": 2},
    ]  # fmt: skip
    connection = lakequeue.connect("memory://", config={"queues": queues})
    connection.engine.checking = True
    return connection


def test_H5_egress_shut_down_holders_may_acknowledge_and_get_nothing_new(
    connection: lakequeue.Connection,
) -> None:
    admin, producer = connection.admin(), connection.producer()
    consumer = connection.consumer("orders", ack_mode="individual", max_backlog=1)
    producer.send("orders", "1")
    producer.send("orders", "2")
    held = consumer.receive(0)
    admin.shutdown("orders", egress=True)
    held.ack()
    assert consumer.receive(0) is None
    assert admin.describe("orders")["depth"] == 1
    admin.shutdown("orders")
    assert consumer.receive(0).payload == b"2"


def test_H5_S4_ingress_shut_down_discards_and_says_so(connection: lakequeue.Connection) -> None:
    admin = connection.admin()
    admin.shutdown("orders", ingress=True)
    receipt = connection.producer().send("orders", "1")
    assert receipt.message_id is None
    described = admin.describe("orders")
    assert (described["depth"], described["discarded"]) == (0, 1)


def test_H5_S4_ingress_shut_down_nacks_by_policy(connection: lakequeue.Connection) -> None:
    connection.admin().shutdown("strict", ingress=True)
    with pytest.raises(Rejected) as refusal:
        connection.producer().send("strict", "1")
    assert (refusal.value.reason, refusal.value.queue) == ("queue_shutdown", "strict")


def test_L12_a_scheduled_message_is_acknowledged_now_and_delivered_then(
    connection: lakequeue.Connection,
) -> None:
    due = connection.now() + dt.timedelta(minutes=5)
    assert connection.producer().send("orders", "1", deliver_at=due).message_id
    consumer = connection.consumer("orders", max_backlog=1)
    assert connection.admin().describe("orders")["delayed"] == 1
    connection.advance("299s")
    assert consumer.receive(0) is None
    connection.advance("1s")
    assert consumer.receive(0).payload == b"1"


def test_R6_browse_takes_nothing_and_purge_removes_by_predicate(
    connection: lakequeue.Connection,
) -> None:
    admin, producer = connection.admin(), connection.producer()
    for n in range(4):
        producer.send("orders", f'{{"n": {n}}}')
    consumer = connection.consumer("orders", max_backlog=1)
    assert consumer.receive(0) is not None
    assert [m.state for m in admin.browse("orders")] == ["leased", "ready", "ready", "ready"]
    assert [m.payload for m in admin.browse("orders", where="/n > 2")] == [b'{"n": 3}']
    assert admin.purge("orders", where="/n > 1") == 2
    assert admin.describe("orders")["depth"] == 2


@pytest.mark.parametrize("what", ["purge", "move", "browse", "redrive", "edit", "ack", "consumer"])
def test_R6_a_predicate_that_cannot_be_read_is_refused_by_its_name_and_text(
    connection: lakequeue.Connection, what: str
) -> None:
    admin, wrong = connection.admin(), "/price >"
    for name in ("some", "others"):
        admin.define({"name": name, "message_type": "json"})
    connection.producer().send("some", b'{"price": 1}')
    calls: dict[str, Callable[[], object]] = {
        "purge": lambda: admin.purge("some", where=wrong),
        "move": lambda: admin.move("some", "others", where=wrong),
        "browse": lambda: admin.browse("some", where=wrong),
        "redrive": lambda: admin.redrive("some", where=wrong),
        "edit": lambda: admin.edit("some", where=wrong, headers={"x": "y"}),
        "ack": lambda: connection.consumer("some", ack_mode="individual").ack(where=wrong),
        "consumer": lambda: connection.consumer("some", filter=wrong),
    }
    name = "filter" if what == "consumer" else "where"
    with pytest.raises(ConfigError, match=f"^{name}: '/price >' – must be an expression: at char"):
        calls[what]()
    assert admin.describe("some")["depth"] == 1
