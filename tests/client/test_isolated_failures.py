"""A single failure does not affect other records, answers, callbacks or closes. No Kafka."""

import logging
import threading
from typing import Any

import lakequeue
import msgspec
import pytest
from client.threaded import WAIT_S, Away, Held, Slow, Threaded, wait_for
from lakequeue.client.session.transport import Record
from lakequeue.protocol import ConfigError, LakequeueError, NotConnected, Rejected, wire
from lakequeue.protocol.duties import do_every
from rules.harness import Bench

# ---------------------------------------------------------------- incoming records


@pytest.mark.parametrize(
    ("value", "framing"),
    [(b"", b"batch"), (b"\xff\xff\xff\xff", b"batch"), (b"\0\0\0\1\x80", b"batch"),
     (b"{}", b"reply"), (b"null", b"reply"), (b"\xff", b"reply")],
)  # fmt: skip
def test_C1_an_unreadable_record_does_not_block_later_ones(
    value: bytes, framing: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody may write to the topic of deliveries."""
    bench = Threaded()
    consumer, inbox, poll = bench.consumer(backlog=1), bench.connection.inbox, bench.wire.poll
    odd = Record(
        inbox.topic, inbox.partition, 0, 0, consumer.subscription.encode(), value,
        [(wire.FRAMING, framing)],
    )  # fmt: skip
    bench.wire.poll = lambda timeout: [odd, *found] if (found := poll(timeout)) else []
    with caplog.at_level(logging.CRITICAL, "lakequeue.client"):
        bench.send(timeout=5)
        message = consumer.receive(5)
        assert message.payload == b"{}"
        message.ack()
        wait_for(lambda: bench.seen()["depth"] == 0)
        bench.connection.close()


def test_S7_only_the_engine_ends_a_subscription(bench: Bench) -> None:
    """Another client can direct its answers to anybody's inbox, under any name."""
    consumer = bench.consumer()
    reply = {"topic": "default.deliveries", "request": consumer.subscription}
    command = msgspec.json.encode({"command": "queues", "reply": reply})
    bench.connection._transport.command("default.commands", b"rogue", command)
    bench.send()
    assert consumer.receive(0) is not None


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError("no")])
def test_P1_a_failing_callback_does_not_affect_other_receipts(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Threaded(Held)

    def fail(_: Any) -> None:
        raise error

    told: list[Any] = []
    bench.wire.let_go.clear()
    sent = [bench.producer.send_async("orders", "{}") for _ in range(5)]
    sent[0].add_done_callback(fail)
    sent[0].add_done_callback(told.append)
    assert "message 1" not in repr(sent[0])
    bench.wire.let_go.set()
    bench.producer.flush(5)
    assert told == [sent[0]]
    assert "message 1" in repr(sent[0])
    assert bench.send(timeout=5) == "6"
    bench.connection.close()
    assert "a callback of a sent message failed" in caplog.text


# ---------------------------------------------------------------- outgoing records


class Odd(Slow):
    """Its library fails once, when told to."""

    odd = False

    def publish(self, *given: Any) -> None:
        if self.odd:
            self.odd = False
            raise RuntimeError("the library is odd")
        super().publish(*given)


def test_P2_a_record_refused_once_does_not_affect_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The thread that sends gathered messages continues."""
    bench = Threaded(Odd)
    first, other = (bench.connection.producer(pub_ack_time="60s") for _ in range(2))
    with caplog.at_level(logging.CRITICAL, "lakequeue.client"):
        for _ in range(2):  # the second gathers
            first.send_async("orders", "{}")
        bench.wire.odd = True
        bench.wire.acked()
        wait_for(lambda: not bench.wire.odd)
    sent = [other.send_async("orders", "{}") for _ in range(2)]
    bench.wire.acked()
    assert sent[1].result(5).message_id == "3"
    bench.connection.is_open = False  # it would wait for unsent messages


@pytest.mark.parametrize("is_repeated", [True, False])
@pytest.mark.parametrize("kind", ["ack", "set_backlog", "return", "unsubscribe"])
def test_C3_an_unsent_close_is_repeated(kind: str, is_repeated: bool) -> None:
    """By the application, or by itself: a canceled task does not."""
    bench = Threaded(Away)
    bench.connection.runner.acks_most = 100
    consumer = bench.consumer(backlog=5)
    for _ in range(4):
        bench.send(timeout=5)
    first = consumer.receive(5)
    bench.waiting(consumer, 3)
    bench.wire.refuses = (kind,)
    first.ack()
    try:
        consumer.close()
    except NotConnected:
        assert consumer.is_closed
    bench.wire.refuses = ()
    if is_repeated:
        consumer.close()
    wait_for(lambda: bench.seen()["consumers"] == [])
    seen = bench.seen()
    assert (seen["depth"], seen["leased"]) == (3, 0)
    assert [m.delivery_count for m in bench.admin.browse("orders")] == [0, 0, 0]


@pytest.mark.parametrize("kind", ["unsubscribe", "set_backlog", "bye"])
def test_C3_a_connection_closes_despite_an_unsent_close(kind: str) -> None:
    bench = Threaded(Away)
    bench.define("other")
    consumers = [bench.consumer(queue) for queue in ("orders", "other")]
    bench.wire.refuses = (kind,)
    with pytest.raises(NotConnected, match="Kafka is away"):
        bench.connection.close()
    assert not bench.connection.is_open
    assert all(consumer.is_closed for consumer in consumers)


def test_a_connection_closed_by_two_threads_closes_without_an_error() -> None:
    """The second closes the transport while the first says goodbye."""
    bench = Threaded(Held)
    bench.consumer()
    command, second = bench.wire.command, threading.Thread(target=bench.connection.close)

    def slow(topic: str, key: bytes, value: bytes, partition: int = 0) -> None:
        if b'"bye"' in value and threading.current_thread() is not second:
            second.start()
            second.join(WAIT_S)
        if not bench.connection.is_open:
            raise NotConnected("this connection is closed")
        command(topic, key, value, partition)

    bench.wire.command = slow
    bench.connection.close()
    assert not second.is_alive()


# ---------------------------------------------------------------- messages in the client


@pytest.mark.parametrize("mode", ["auto", "pre_ack", "dups_ok", "individual"])
def test_L5_a_long_step_of_the_clock_counts_no_attempt(bench: Bench, mode: str) -> None:
    """Work that is due is done before time moves."""
    bench.define("dead")
    bench.define(lease_period="30s", max_deliveries=3, dead_message_queue="dead",
                 max_per_subscription_backlog=10)  # fmt: skip
    for n in range(20):
        bench.send({"n": n})
    consumer = bench.consumer(backlog=10, ack_mode=mode)
    seen = []
    for _ in range(40):
        message = consumer.receive(0)
        bench.advance("26s")
        if message is not None:
            seen.append(message.id)
            if mode == "individual":
                message.ack()
    assert sorted(map(int, seen)) == list(range(1, 21))
    assert bench.seen("dead")["depth"] == 0


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("option", "odd"),
    [
        *((option, odd)
          for option in ("url", "vpn", "client_name", "broker", "config", "key")
          for odd in (True, -1, 1.5, b"x", ["a"], object())),
        ("client_name", "x" * 201), ("vpn", ""), ("vpn", "x" * 201),
    ],
    ids=lambda given: str(given)[:12],
)  # fmt: skip
def test_connect_names_the_wrong_argument(option: str, odd: Any) -> None:
    with pytest.raises(ConfigError, match=f"{option}: "):
        lakequeue.connect(**{"url": "memory://", option: odd})


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda admin: admin.add_broker(5), "name: 5"),
        (lambda admin: admin.add_broker("b", group=0), "group: 0"),
        (lambda admin: admin.remove_broker(""), "name: ''"),
        (lambda admin: admin.remove_broker("b", to=7), "to: 7"),
        (lambda admin: admin.move_queue("orders", "b", pause="no"), "pause: 'no'"),
        (lambda admin: admin.move_queue("orders", 5, pause=True), "broker: 5"),
    ],
)  # fmt: skip
def test_M4_a_change_of_brokers_names_the_wrong_argument(
    bench: Bench, call: Any, error: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{error} – allowed (is|are) "):
        call(bench.admin)


def test_a_queue_of_another_vpn_is_refused(bench: Bench) -> None:
    with pytest.raises(ConfigError, match=r"vpn: 'b' – allowed is 'default'.*connect to"):
        bench.admin.define({"name": "orders", "message_type": "json", "vpn": "b"})


def test_a_refusal_names_the_remedy(bench: Bench) -> None:
    bench.define(max_message_size=3)
    with pytest.raises(Rejected, match="by queue 'orders': message_too_large – send less "):
        bench.send(b"1234")
    assert str(Rejected("malformed")) == "message rejected: malformed"
    said = str(Rejected("queue_quota", "q", "why"))
    assert said == "message rejected by queue 'q': queue_quota: why"


def test_R6_a_headers_name_has_no_zero_byte(bench: Bench) -> None:
    """Like a producer's: Kafka's C library would end it there."""
    bench.send()
    with pytest.raises(ConfigError, match="without NUL"):
        bench.admin.edit("orders", {"a\0b": "c"})


# ---------------------------------------------------------------- regular duties


@pytest.mark.parametrize("how", ["upkeep", "advance"])
def test_C3_a_consumers_failing_duty_does_not_affect_others(bench: Bench, how: str) -> None:
    """Of the consumers of one connection the first cannot send anything to Kafka."""
    bench.define(lease_period="30s")
    failing, going = bench.consumer(), bench.consumer(auto_renew=True)
    ticks: list[str] = []

    def fail() -> None:
        ticks.append("failing")
        raise LakequeueError("Kafka does not take it")

    failing.tick = fail
    producer = bench.connection.producer()
    resent: list[float] = []
    producer.retransmit = resent.append
    tick = going.tick
    going.tick = lambda: (ticks.append("going"), tick())[0]
    with pytest.raises(LakequeueError, match="does not take it"):
        bench.connection.upkeep() if how == "upkeep" else bench.advance("1s")
    assert {"failing", "going"} <= set(ticks)
    assert resent


def test_do_every_does_all_and_raises_the_first_error(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []

    def duty(n: int) -> None:
        done.append(n)
        if n % 2:
            raise ValueError(n)

    with pytest.raises(ValueError, match="1"):
        do_every(lambda n=n: duty(n) for n in range(5))
    assert done == [0, 1, 2, 3, 4]
    assert "ValueError: 3" in caplog.text
