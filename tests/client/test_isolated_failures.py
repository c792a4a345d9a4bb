"""What fails once keeps nothing else away: records, answers, callbacks, closes. No Kafka."""

import logging
from collections.abc import Callable
from typing import Any

import lakequeue
import msgspec
import pytest
from client.threaded import Held, Wire, connect, engine, wait_for
from lakequeue.client.session.transport import Record
from lakequeue.protocol import ConfigError, LakequeueError, NotConnected, Rejected, wire
from lakequeue.protocol.duties import do_every
from rules.harness import Bench

ORDERS = {"name": "orders", "message_type": "json", "max_per_subscription_backlog": 9}


# ---------------------------------------------------------------- what comes in


@pytest.mark.parametrize(
    ("value", "framing"),
    [(b"", b"batch"), (b"\xff\xff\xff\xff", b"batch"), (b"\0\0\0\1\x80", b"batch"),
     (b"{}", b"reply"), (b"null", b"reply"), (b"\xff", b"reply")],
)  # fmt: skip
def test_C1_a_record_that_nobody_can_read_keeps_none_behind_it_away(
    value: bytes, framing: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody may write to the topic of deliveries."""
    connection, way = connect(engine(ORDERS))
    consumer = connection.consumer("orders")
    inbox = connection.inbox
    odd = Record(
        inbox.topic, inbox.partition, 0, 0, consumer.subscription.encode(), value,
        [(wire.FRAMING, framing)],
    )  # fmt: skip
    poll = way.poll

    way.poll = lambda timeout: [odd, *found] if (found := poll(timeout)) else []
    with caplog.at_level(logging.CRITICAL, "lakequeue.client"):
        connection.producer().send("orders", "{}", timeout=5)
        message = consumer.receive(5)
        assert message.payload == b"{}"
        message.ack()
        wait_for(lambda: connection.admin().describe("orders")["depth"] == 0)
        connection.close()


def test_S7_only_the_engine_ends_a_subscription(bench: Bench) -> None:
    """Another client can have its answers sent to anybody's inbox, under any name."""
    bench.define()
    consumer = bench.consumer()
    reply = {"topic": "default.deliveries", "request": consumer.subscription}
    command = msgspec.json.encode({"command": "queues", "reply": reply})
    bench.connection._transport.command("default.commands", b"rogue", command)
    bench.send()
    assert consumer.receive(0) is not None


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError("no")])
def test_P1_a_callback_of_a_sent_message_keeps_no_other_from_its_answer(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    connection, way = connect(engine(ORDERS), kind=Held)
    producer = connection.producer()

    def fail(_: Any) -> None:
        raise error

    told: list[Any] = []
    way.let_go.clear()
    sent = [producer.send_async("orders", "{}") for _ in range(5)]
    sent[0].add_done_callback(fail)
    sent[0].add_done_callback(told.append)
    assert "message 1" not in repr(sent[0])
    way.let_go.set()
    producer.flush(5)
    assert told == [sent[0]]
    assert "message 1" in repr(sent[0])
    assert producer.send("orders", "{}", timeout=5).message_id == "6"
    connection.close()
    assert "a callback of a sent message failed" in caplog.text


# ---------------------------------------------------------------- what goes out


class Busy(Wire):
    """Records are on their way to Kafka until `through` is called; then its library is odd once."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.on_way: list[Callable[[], None]] = []
        self.odd = False
        self.busy = True

    def publish(self, topic: str, value: bytes, *rest: Any) -> None:
        if self.odd:
            self.odd = False
            raise RuntimeError("the library is odd")
        if self.busy:
            self.on_way.append(rest[-1])
            rest = (*rest[:-1], None)
        super().publish(topic, value, *rest)

    def through(self, odd: bool) -> None:
        self.odd = odd
        on_way, self.on_way = self.on_way, []
        for acked in on_way:
            acked()


def test_P2_what_the_library_does_not_take_once_keeps_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who sends what was gathered goes on."""
    connection, way = connect(engine(ORDERS), kind=Busy)
    producer = connection.producer(pub_ack_time="60s")
    with caplog.at_level(logging.CRITICAL, "lakequeue.client"):
        producer.send_async("orders", "{}")
        producer.send_async("orders", "{}")  # gathers
        way.through(odd=True)
        wait_for(lambda: not way.odd)
    wait_for(lambda: len(way.on_way) == 0)
    other = connection.producer(pub_ack_time="60s")
    other.send_async("orders", "{}")
    last = other.send_async("orders", "{}")
    way.through(odd=False)
    assert last.result(5).message_id == "3"
    connection.is_open = False  # it would wait for what was not sent


class Away(Wire):
    """A Kafka that takes no command for a while."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.refuses: tuple[str, ...] = ()

    def command(self, topic: str, key: bytes, value: bytes, partition: int = 0) -> None:
        if msgspec.json.decode(value)["command"] in self.refuses:
            raise NotConnected("Kafka is away")
        super().command(topic, key, value, partition)


@pytest.mark.parametrize("kind", ["ack", "set_backlog", "return", "unsubscribe"])
def test_C3_a_close_that_could_not_be_said_can_be_said_again(kind: str) -> None:
    made = engine(ORDERS)
    connection, way = connect(made, kind=Away)
    connection.runner.acks_most = 100
    consumer = connection.consumer("orders", ack_mode="individual", max_backlog=5)
    for _ in range(4):
        connection.producer().send("orders", "{}", timeout=5)
    first = consumer.receive(5)
    assert first is not None
    wait_for(lambda: len(consumer._prefetch.buffer) == 3)
    way.refuses = (kind,)
    first.ack()
    try:
        consumer.close()
    except NotConnected:
        assert consumer.is_closed
    way.refuses = ()
    consumer.close()
    seen = connection.admin().describe("orders")
    assert (seen["depth"], seen["leased"], seen["consumers"]) == (3, 0, [])


@pytest.mark.parametrize("kind", ["unsubscribe", "set_backlog", "bye"])
def test_C3_a_connection_closes_all_the_same(kind: str) -> None:
    connection, way = connect(engine(ORDERS, ORDERS | {"name": "other"}), kind=Away)
    consumers = [connection.consumer(queue) for queue in ("orders", "other")]
    way.refuses = (kind,)
    if kind == "set_backlog":
        connection.close()
    else:
        with pytest.raises(NotConnected, match="Kafka is away"):
            connection.close()
    assert not connection.is_open
    assert all(consumer.is_closed for consumer in consumers)


# ---------------------------------------------------------------- what waits in memory


@pytest.mark.parametrize("mode", ["auto", "pre_ack", "dups_ok", "individual"])
def test_L5_time_that_moves_in_long_steps_costs_no_attempt(bench: Bench, mode: str) -> None:
    """What is due by now is done before time moves."""
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


# ---------------------------------------------------------------- what is given


ODD: list[Any] = [True, -1, 1.5, b"x", ["a"], object()]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
@pytest.mark.parametrize("option", ["url", "vpn", "client_name", "broker", "config", "key"])
def test_connect_says_what_is_wrong(option: str, odd: Any) -> None:
    with pytest.raises(ConfigError, match=option):
        lakequeue.connect(**{"url": "memory://", option: odd})


@pytest.mark.parametrize(
    ("option", "value"), [("client_name", "x" * 201), ("vpn", ""), ("vpn", "x" * 201)]
)
def test_a_name_that_no_command_could_carry(option: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{option}: "):
        lakequeue.connect("memory://", **{option: value})


def test_a_queue_of_another_vpn_is_not_defined_here(bench: Bench) -> None:
    with pytest.raises(ConfigError, match=r"vpn: 'b' – allowed is 'default'.*connect to"):
        bench.admin.define({"name": "orders", "message_type": "json", "vpn": "b"})


def test_a_refusal_says_what_to_do(bench: Bench) -> None:
    bench.define(max_message_size=3)
    with pytest.raises(Rejected, match="by queue 'orders': message_too_large – send less, also"):
        bench.producer.send("orders", b"1234")
    assert str(Rejected("malformed")) == "message rejected: malformed"
    assert (
        str(Rejected("queue_quota", "q", "why"))
        == "message rejected by queue 'q': queue_quota: why"
    )


def test_R6_a_header_s_name_has_no_zero(bench: Bench) -> None:
    """As a producer's: Kafka's C library would end it there."""
    bench.define()
    bench.send()
    with pytest.raises(ConfigError, match="without NUL"):
        bench.admin.edit("orders", {"a\0b": "c"})


# ---------------------------------------------------------------- duties


@pytest.mark.parametrize("how", ["upkeep", "advance"])
def test_C3_one_whose_duty_fails_keeps_no_other_from_its_own(bench: Bench, how: str) -> None:
    """Of the consumers of one connection the first cannot say anything to Kafka."""
    bench.define(lease_period="30s")
    session = bench.connection
    failing = bench.consumer(ack_mode="individual")
    going = bench.consumer(ack_mode="individual", auto_renew=True)
    ticks: list[str] = []

    def fail() -> None:
        ticks.append("failing")
        raise LakequeueError("Kafka does not take it")

    failing.tick = fail
    producer = session.producer()
    resent: list[float] = []
    producer.retransmit = resent.append
    tick = going.tick
    going.tick = lambda: (ticks.append("going"), tick())[0]
    with pytest.raises(LakequeueError, match="does not take it"):
        session.upkeep() if how == "upkeep" else bench.connection.advance("1s")
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
