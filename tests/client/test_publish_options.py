"""P7, L12: a publisher's options. The engine does not answer what it cannot read, so the client
refuses it before the message enters the window; a producer's own options when the producer is
created."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import lakequeue
import pytest
from client.threaded import Threaded
from lakequeue.protocol import ConfigError
from lakequeue.state import Batch
from rules.harness import Bench, drain
from rules.steps import Steps, define, delivered, described, subscribe

YEAR_0 = datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))
YEAR_9999 = datetime.max.replace(tzinfo=timezone(-timedelta(hours=14)))

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("ttl: '10675199d' – allowed is a duration of at most 100 years", {"ttl": "10675199d"}),
    ("ttl: '999", {"ttl": "9" * 400 + "d"}),
    ("ttl: inf", {"ttl": float("inf")}),
    ("ttl: 0 – allowed is a positive duration", {"ttl": 0}),
    ("ttl: b'5s'", {"ttl": b"5s"}),
    ("delay: '99999999999d' – allowed is a duration of at most", {"delay": "99999999999d"}),
    ("delay: nan", {"delay": float("nan")}),
    ("deliver_at, delay: both are given", {"delay": "1s", "deliver_at": "2026-01-31T12:00:00Z"}),
    ("delay: 7200000 ms from now – allowed is less than the ttl, 3600000 ms",
     {"delay": "2h", "ttl": "1h"}),
    ("delay: 3600000 ms from now – allowed is less", {"delay": "1h", "ttl": "1h"}),
    ("deliver_at: datetime.*a time needs a time zone: '2026-01-31T12:00:00Z'",
     {"deliver_at": datetime(2026, 1, 1)}),
    ("deliver_at: 'tomorrow' – allowed is ISO-8601", {"deliver_at": "tomorrow"}),
    ("deliver_at: 5 – allowed are aware", {"deliver_at": 5}),
    ("priority: 256 – allowed are 0 to 255", {"priority": 256}),
    ("priority: True", {"priority": True}),
    ("dmq_eligible: 'yes' – allowed are True and False", {"dmq_eligible": "yes"}),
    (r"delivery_mode: \['x'\] – allowed are persistent, ", {"delivery_mode": ["x"]}),
]  # fmt: skip
OF_A_MESSAGE: list[tuple[str, dict[str, Any]]] = [
    (r"headers\['retries'\]: 1 – allowed are bytes, and text", {"headers": {"retries": 1}}),
    (r"headers\['tags'\]: \['a'\]", {"headers": {"fine": "x", "tags": ["a"]}}),
    (r"headers\['x'\]: None", {"headers": {"x": None}}),
    (r"headers\['x'\]: '\\ud800'", {"headers": {"x": "\ud800"}}),
    ("headers: 5 – allowed as a name is text", {"headers": {5: "x"}}),
    ("headers: '\\\\ud800'", {"headers": {"\ud800": "x"}}),
    ("headers: 'a.x00b'", {"headers": {"a\0b": "x"}}),
    ("headers: 'lq' – is reserved for lakequeue", {"headers": {"lq": "{}"}}),
    (r"headers: \[\('a', 'b'\)\] – allowed is a dict", {"headers": [("a", "b")]}),
    ("deliver_at: .* ms from now – allowed is less than the ttl",
     {"deliver_at": datetime(2100, 1, 1, tzinfo=UTC), "ttl": "1h"}),
    ("key: 5 – allowed are bytes, and text", {"key": 5}),
    ("key: '\\\\ud800'", {"key": "\ud800"}),
    ("payload: 5 – allowed are bytes, and text", {"payload": 5}),
    ("payload: '\\\\udc80'", {"payload": "\udc80"}),
    ("payload: None", {"payload": None}),
    ("destination: b'orders' – allowed is text of 1 to 1,000", {"destination": b"orders"}),
    ("destination: ''", {"destination": ""}),
    ("destination: 'xxx", {"destination": "x" * 1_001}),
    ("destination: '\\\\ud800'", {"destination": "\ud800"}),
    ("timeout: 'soon' – allowed are seconds", {"timeout": "soon"}),
    ("timeout: nan", {"timeout": float("nan")}),
    ("ack_immediately: 'no' – allowed are True and False", {"ack_immediately": "no"}),
]  # fmt: skip
OF_A_PRODUCER: list[tuple[str, dict[str, Any]]] = [
    ("producer_id: 'xxx.* – allowed is text of 1 to 250", {"producer_id": "x" * 251}),
    ("producer_id: b'app'", {"producer_id": b"app"}),
    ("producer_id: '\\\\ud800'", {"producer_id": "\ud800"}),
    ("first_sequence: 4611686018427387904", {"first_sequence": 1 << 62}),
    ("window: 0 – allowed are 1 to", {"window": 0}),
    ("group_ack: '5'", {"group_ack": "5"}),
    ("pub_ack_time: '36501d'", {"pub_ack_time": "36501d"}),
    ("on_full: None", {"on_full": None}),
    ("durability: \\[\\]", {"durability": []}),
]


@pytest.mark.parametrize(("says", "options"), OPTIONS + OF_A_MESSAGE)
def test_P7_a_wrong_option_is_refused_before_the_message_enters_the_window(
    bench: Bench, says: str, options: dict[str, Any]
) -> None:
    sent = {"destination": "orders", "payload": b"{}"} | options
    with pytest.raises(ConfigError, match=says):
        bench.producer.send(**sent)
    assert bench.producer.unacknowledged() == []
    assert bench.producer.send("orders", b"{}").sequence == 1
    bench.producer.close(1)
    assert bench.seen()["depth"] == 1


@pytest.mark.parametrize(("says", "options"), OPTIONS + OF_A_PRODUCER)
def test_P7_a_producers_options_are_checked_when_it_is_created(
    bench: Bench, says: str, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=says):
        bench.connection.producer(**options)
    bench.connection.close()


def test_P7_a_ttl_shorter_than_the_delay_is_refused(bench: Bench) -> None:
    producer = bench.connection.producer(ttl="1h")
    with pytest.raises(ConfigError, match="delay: "):
        producer.send("orders", b"{}", delay="2h")
    producer.send("orders", b"{}", delay="2h", ttl="3h")
    assert bench.seen()["depth"] == 1


@pytest.mark.parametrize(
    "moment",
    ["0001-01-01T00:00:00Z", YEAR_0, "1969-12-31T23:59:59Z", datetime(1970, 1, 1, tzinfo=UTC)],
)
def test_L12_a_past_delivery_time_means_now(bench: Bench, moment: Any) -> None:
    consumer = bench.consumer()
    bench.producer.send("orders", b"{}", deliver_at=moment)
    assert len(drain(consumer)) == 1


@pytest.mark.parametrize("moment", ["9999-12-31T23:59:59.999999Z", YEAR_9999, "9999-01-01T00:00Z"])
def test_L12_the_latest_possible_delivery_time(bench: Bench, moment: Any) -> None:
    bench.producer.send("orders", b"{}", deliver_at=moment)
    (message,) = bench.admin.browse("orders")
    assert (message.state, message.ready_at.year) == ("delayed", 9999)


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({"delay": "5s"}, 5), ({"delay": 3}, 3), ({"delay": "0s"}, 0), ({"delay": 0}, 0),
        ({"deliver_at": timedelta(seconds=3)}, 3), ({}, 10),
    ],
)  # fmt: skip
def test_P7_L12_a_delay_counts_from_each_send_and_a_message_may_override_it(
    bench: Bench, options: dict[str, Any], seconds: int
) -> None:
    """A delay is sent as a delay, so the client's clock does not matter."""
    producer, consumer = bench.connection.producer(delay="10s"), bench.consumer()
    for _ in range(2):
        given = dict(options)
        if "deliver_at" in given:
            given["deliver_at"] += bench.connection.now()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bench.connection, "now_ms", lambda: 0)
            producer.send("orders", b"{}", **given)
        if seconds:
            bench.advance(f"{seconds * 1000 - 1}ms")
            assert drain(consumer) == []
            bench.advance("1ms")
        assert len(drain(consumer)) == 1


def test_L12_X4_a_delay_and_a_ttl_count_from_kafkas_timestamp() -> None:
    """The record's time is Kafka's; this machine's clock is ten minutes ahead of it."""
    steps = Steps()
    steps.run([define(), subscribe("s")])
    sent = [("orders", b"{}", {"delay_ms": 5_000}), ("orders", b"{}", {"ttl_ms": 5_000})]
    records = steps.publish_records(sent)
    steps.now += 3_000
    out = steps.step(Batch(publishes=records))
    assert delivered(out) == [2]
    assert described(steps)["delayed"] == 1
    assert delivered(steps.tick(1_999)) == []
    assert delivered(steps.tick(1)) == [1]
    assert described(steps)["expired"] == 1


def test_P2_one_bad_message_among_many_is_reported_and_delays_none() -> None:
    bench = Threaded(message_type="binary")
    producer = bench.connection.producer(window=1_000, pub_ack_time="1m")
    sent = []
    for n in range(300):
        if n == 150:
            with pytest.raises(ConfigError, match="tags"):
                producer.send_async("orders", b"x" * 2_000, headers={"tags": ["a"]})
        else:
            sent.append(producer.send_async("orders", b"x" * 2_000, headers={"n": str(n)}))
    producer.flush(10)
    assert len({future.result(0).message_id for future in sent}) == 299
    assert producer.send("orders", b"fine", timeout=10).sequence == 300
    assert len(bench.wire.published) == 300, "nothing was sent again"


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, 10**30, None])
def test_a_very_long_wait(timeout: Any) -> None:
    bench = Threaded()
    bench.producer.send("orders", "x", timeout=timeout)
    assert bench.consumer().receive(timeout).payload == b"x"


def test_the_longest_names_there_are() -> None:
    longest = "n" * 200
    with lakequeue.connect("memory://", client_name=longest) as connection:
        connection.admin().define({"name": "q" * 200, "message_type": "text"})
        connection.producer(producer_id="p" * 250).send("q" * 200, "x")
        with connection.consumer("q" * 200, name=longest) as consumer:
            assert consumer.receive(0).payload == b"x"
