"""C3: a session that was given up is taken up again by the client, once; nothing stays behind."""

from typing import Any

import pytest
from client.threaded import connect, engine, wait_for
from lakequeue.client.session import requests as broker_requests
from lakequeue.protocol import ConfigError, Timeout, commands

ORDERS = {"name": "orders", "message_type": "json", "max_per_subscription_backlog": 10}


def consumers(made: Any) -> list[dict[str, Any]]:
    connection, _ = connect(made, "look")
    found = connection.admin().describe("orders")["consumers"]
    connection.close()
    return list(found)


def test_C3_who_was_given_up_subscribes_again_and_receives() -> None:
    made = engine(ORDERS, heartbeat_timeout="300ms")
    connection, _ = connect(made)
    producer = connection.producer()
    consumer = connection.consumer("orders", ack_mode="individual", max_backlog=10)
    first = consumer.subscription
    producer.send("orders", b"1")
    assert consumer.receive(timeout=10).delivery_count == 1
    made.advance("300ms")
    assert first not in [c["subscription"] for c in consumers(made)], "it may be back already"
    wait_for(lambda: consumers(made))
    message = consumer.receive(timeout=10)
    assert (message.payload, message.delivery_count) == (b"1", 2)
    message.ack()


def test_C3_two_answers_that_it_is_lost_make_one_subscription() -> None:
    """Both heartbeats were on their way before the first answer came."""
    made = engine(ORDERS, heartbeat_timeout="10m")
    connection, wire = connect(made)
    consumer = connection.consumer("orders", ack_mode="individual", max_backlog=10)
    for _ in range(2):
        connection._lost.add(0)
        subscribed = len(wire.said("subscribe"))
        wait_for(lambda n=subscribed: len(wire.said("subscribe")) > n)
    wait_for(lambda: not connection._subscribing)
    assert [c["subscription"] for c in consumers(made)] == [consumer.subscription]
    connection.producer().send("orders", b"1")
    assert consumer.receive(timeout=10).payload == b"1"


def test_C3_a_consumer_that_could_not_be_made_leaves_nothing() -> None:
    connection, wire = connect(engine(ORDERS))
    with pytest.raises(ConfigError, match="there is no such queue"):
        connection.consumer("nowhere")
    assert connection._consumers == {}
    connection.request(commands.Queues())
    connection.close()
    assert wire.said("heartbeat") == []


def test_C3_who_was_closed_meanwhile_is_not_bound_again() -> None:
    made = engine(ORDERS)
    connection, _ = connect(made)
    consumer = connection.consumer("orders")
    consumer.close()
    consumer.subscribe()
    assert consumers(made) == []


def test_C3_a_consumer_whose_engine_did_not_answer_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine subscribes it later than its client waits, and the session lives on: nothing may
    be leased to a consumer that is not there."""
    monkeypatch.setattr(broker_requests, "REQUEST_TIMEOUT_S", 0.2)
    made = engine(ORDERS)
    connection, wire = connect(made)
    wire.lose_received = lambda record: True
    with pytest.raises(Timeout):
        connection.consumer("orders", max_backlog=10)
    wire.lose_received = lambda record: False
    monkeypatch.undo()
    connection.producer().send("orders", b"1")
    consumer = connection.consumer("orders", ack_mode="individual", max_backlog=10)
    assert [c["subscription"] for c in consumers(made)] == [consumer.subscription]
    assert consumer.receive(timeout=10).payload == b"1"


def test_C3_a_consumer_that_was_interrupted_while_it_was_made_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C in a shell, whose connection lives on."""
    made = engine(ORDERS)
    connection, _ = connect(made)
    wait = connection.wait

    def interrupted(*given: Any) -> bool:
        wait(*given)  # the engine has answered
        raise KeyboardInterrupt

    monkeypatch.setattr(connection, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        connection.consumer("orders", max_backlog=10)
    monkeypatch.undo()
    wait_for(lambda: consumers(made) == [])
    connection.producer().send("orders", b"1")
    consumer = connection.consumer("orders", ack_mode="individual", max_backlog=10)
    assert consumer.receive(timeout=10).payload == b"1"
