"""P3, P6, S4: messages that were not stored are reported in every mode: refused, discarded, too
large."""

from typing import Any

import pytest
from client.threaded import Held, Threaded, Wire, connect, wait_for
from lakequeue.protocol import Reason, Rejected
from rules.harness import Bench

SMALL: dict[str, Any] = {"message_type": "text", "max_message_size": 10}
GROUPACK: dict[str, Any] = {"delivery_mode": "persistent_groupack", "group_ack": 10}


@pytest.fixture
def held() -> Threaded:
    return Threaded(Held, **SMALL)


def send_unheard(bench: Threaded, producer: Any, *payloads: str, to: str = "orders") -> None:
    """The sends return before the engine's answers are read."""
    bench.wire.let_go.clear()
    for payload in payloads:
        assert producer.send(to, payload).message_id is None
    bench.wire.let_go.set()


def test_P3_P6_flush_raises_a_late_refusal(held: Threaded) -> None:
    producer = held.connection.producer(**GROUPACK)
    send_unheard(held, producer, "small", "far too large", "fine", "much too large too")
    with pytest.raises(Rejected, match="message_too_large: 1 more were refused") as error:
        producer.flush(10)
    assert (error.value.reason, error.value.queue) == (Reason.MESSAGE_TOO_LARGE, "orders")
    assert producer.unacknowledged() == [b"far too large", b"much too large too"]
    producer.flush(10)
    assert producer.unacknowledged() == []


def test_P3_P6_close_raises_a_late_refusal(held: Threaded) -> None:
    producer = held.connection.producer(**GROUPACK)
    send_unheard(held, producer, "x", to="nowhere")
    with pytest.raises(Rejected, match=r"no_matching_destination: .*nowhere.* – check the name"):
        producer.close()
    assert producer.unacknowledged() == [b"x"]


def test_P6_closing_a_connection_closes_everything_and_then_raises(held: Threaded) -> None:
    first, second = (held.connection.producer(**GROUPACK) for _ in range(2))
    held.wire.let_go.clear()
    first.send("orders", "far too large")
    second.send("orders", "fine")
    second.send_async("orders", "gathered")
    held.wire.let_go.set()
    with pytest.raises(Rejected, match="message_too_large"):
        held.connection.close()
    assert not held.connection.is_open
    assert held.stored() == [b"fine", b"gathered"]


def test_P6_unacknowledged_lists_messages_in_order_before_a_flush(held: Threaded) -> None:
    producer = held.connection.producer(**GROUPACK)
    send_unheard(held, producer, "far too large")
    wait_for(lambda: not producer._waiting())
    held.wire.lose_published = lambda _: True
    producer.send("orders", "unknown")
    assert producer.unacknowledged() == [b"far too large", b"unknown"]
    held.wire.lose_published = lambda _: False
    producer.retransmit(1e12)
    with pytest.raises(Rejected):
        producer.flush(10)


def test_P6_a_refusal_is_raised_only_by_the_future_if_it_was_used() -> None:
    producer = Threaded(**SMALL).connection.producer(**GROUPACK)
    future = producer.send_async("orders", "far too large")
    with pytest.raises(Rejected):
        future.result(10)
    producer.flush(10)
    assert producer.unacknowledged() == []


def test_P6_kept_refusals_are_bounded_by_the_window(
    held: Threaded, caplog: pytest.LogCaptureFixture
) -> None:
    producer = held.connection.producer(window=3, **GROUPACK | {"group_ack": 1})
    for numbers in (range(3), range(3, 5)):
        send_unheard(held, producer, *(f"far too large {n}" for n in numbers))
        wait_for(lambda: not producer._waiting())
    assert len(producer.unacknowledged()) == 3
    assert "message 1 was refused and flush was not called" in caplog.text
    with pytest.raises(Rejected):
        producer.flush(10)


def test_P6_send_raises_an_immediate_refusal(bench: Bench) -> None:
    producer = bench.connection.producer(**GROUPACK)
    with pytest.raises(Rejected):
        producer.send("nowhere", b"{}")
    producer.flush()
    assert producer.unacknowledged() == []


class Small(Wire):
    """Kafka's library takes no record of more than 20 bytes."""

    def publish(self, topic: str, value: bytes, *rest: Any) -> None:
        if len(value) > 20:
            raise Rejected(Reason.MESSAGE_TOO_LARGE, detail="20 are allowed")
        super().publish(topic, value, *rest)


@pytest.mark.parametrize("mode", ["persistent", "persistent_groupack", "non_persistent"])
def test_P6_a_message_too_large_for_kafka_raises_and_leaves_nothing(mode: str) -> None:
    bench = Threaded(Small, message_type="text")
    producer = bench.connection.producer(delivery_mode=mode)
    producer.send("orders", "one")
    with pytest.raises(Rejected, match="message_too_large: 20 are allowed"):
        producer.send("orders", "x" * 21, key="k")
    assert producer.unacknowledged() in ([], [b"one"])
    receipt = producer.send("orders", "two")
    assert receipt.sequence == (0 if mode == "non_persistent" else 2), "a sequence is missing"
    producer.flush(10)
    assert bench.stored() == [b"one", b"two"]


# ---------------------------------------------------------------- discarded


def said(receipt: Any) -> tuple[bool, str | None, str | None, str | None]:
    return receipt.discarded, receipt.reason, receipt.queue, receipt.message_id


@pytest.mark.parametrize("threaded", [False, True])
def test_S4_the_receipt_reports_a_discard(threaded: bool, bench: Bench) -> None:
    connection = connect(bench.engine)[0] if threaded else bench.connection
    producer = connection.producer()
    bench.admin.shutdown("orders", ingress=True)
    receipt = producer.send("orders", b"{}")
    assert said(receipt) == (True, "queue_shutdown", "orders", None)
    assert repr(receipt) == "<Receipt 1: discarded by 'orders', queue_shutdown>"
    bench.admin.shutdown("orders", ingress=False)
    assert said(producer.send("orders", b"{}")) == (False, None, None, "1")


def test_S4_each_discarded_message_of_a_batch_is_reported() -> None:
    producer = Threaded(max_spool_messages=3, reject_msg_to_sender_on_discard="never").producer
    sent = [producer.send_async("orders", f"{n}") for n in range(8)]
    producer.flush(10)
    assert [s.result().discarded for s in sent] == [False] * 3 + [True] * 5


def test_S4_another_queue_may_have_taken_it(empty: Bench) -> None:
    empty.define("shut", underlying_topic="both")
    empty.define("open", underlying_topic="both")
    empty.admin.shutdown("shut", ingress=True)
    assert said(empty.producer.send("both", b"{}")) == (True, "queue_shutdown", "shut", "1")


def test_S4_S6_without_a_queue_too() -> None:
    bench = Bench(config={"system": {"on_no_match": "discard"}})
    receipt = bench.producer.send("nowhere", b"{}")
    assert said(receipt) == (True, "no_matching_destination", None, None)
