"""Rules of the administrator and of the publisher's options, on memory://."""

from __future__ import annotations

from collections.abc import Callable

import lakequeue
import pytest
from lakequeue.protocol.errors import ConfigError


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
