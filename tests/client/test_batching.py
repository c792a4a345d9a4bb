"""Several messages in a record, from the producer's side: when they go out, and together with what.

`wire.sizes` has how many messages each record held; the engine behind takes them as the job does.
"""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from client.threaded import Wire, connect, engine, wait_for
from lakequeue.client.connection import Connection
from lakequeue.client.producer.window import RUN_BYTES
from lakequeue.protocol.messages import RUN_MAX
from rules.harness import Bench

ORDERS = {"name": "orders", "message_type": "binary", "max_per_subscription_backlog": 1000}


class Slow(Wire):
    """Kafka takes its time: it has a record only once `acked` was called."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.sizes: list[int] = []
        self.on_way: list[Callable[[], None]] = []

    def publish(
        self, topic: str, value: bytes, key: Any, headers: Any, partition: Any, acked: Any
    ) -> None:
        self.sizes.append(json.loads(dict(headers)["lq"]).get("count", 1))
        self.on_way.append(acked)
        super().publish(topic, value, key, headers, partition, None)

    def acked(self) -> None:
        """Kafka has all that was sent."""
        on_way, self.on_way = self.on_way, []
        for acked in on_way:
            acked()


@pytest.fixture
def slow() -> tuple[Connection, Slow]:
    return connect(engine(ORDERS), kind=Slow)


def browse(connection: Connection) -> list[bytes]:
    return [m.payload for m in connection.admin().browse("orders", limit=1000)]


def test_what_follows_gathers_until_nothing_is_on_its_way(slow: tuple[Connection, Slow]) -> None:
    """And what is alone goes at once: nobody waits for company."""
    connection, wire = slow
    producer = connection.producer()
    for n in range(4):
        producer.send_async("orders", b"%d" % n)
    assert wire.sizes == [1]
    wire.acked()
    wait_for(lambda: wire.sizes == [1, 3])
    producer.send_async("orders", b"4")
    assert wire.sizes == [1, 3]
    wire.acked()
    wait_for(lambda: wire.sizes == [1, 3, 1])
    wire.acked()
    producer.send_async("orders", b"5")
    assert wire.sizes == [1, 3, 1, 1]
    assert browse(connection) == [b"%d" % n for n in range(6)]


def test_a_full_run_goes_out_and_the_rest_with_flush(slow: tuple[Connection, Slow]) -> None:
    connection, wire = slow
    producer = connection.producer()
    sent = [producer.send_async("orders", b"%d" % n) for n in range(1 + 2 * RUN_MAX + 3)]
    assert wire.sizes == [1, RUN_MAX, RUN_MAX]
    producer.flush(10)
    assert wire.sizes == [1, RUN_MAX, RUN_MAX, 3]
    assert [f.result().message_id for f in sent] == [str(n + 1) for n in range(len(sent))]
    assert browse(connection) == [b"%d" % n for n in range(len(sent))]


@pytest.mark.parametrize("how", ["send", "ack_immediately", "close", "window"])
def test_what_somebody_waits_for_is_not_gathered(slow: tuple[Connection, Slow], how: str) -> None:
    connection, wire = slow
    producer = connection.producer(window=3)
    for name in (b"first", b"a"):
        producer.send_async("orders", name)
    assert wire.sizes == [1]
    if how == "send":
        assert producer.send("orders", b"b").sequence == 3
    else:
        producer.send_async("orders", b"b", ack_immediately=how == "ack_immediately")
    if how == "window":
        producer.send_async("orders", b"c")
    if how == "close":
        producer.close()
    assert wire.sizes[:2] == [1, 2]
    assert browse(connection)[:3] == [b"first", b"a", b"b"]


def test_only_what_differs_in_nothing_but_payload_travels_together(
    slow: tuple[Connection, Slow],
) -> None:
    """And the order stays: what cannot join a run is sent behind it."""
    connection, wire = slow
    producer = connection.producer()
    producer.send_async("orders", b"first")
    for options in ({}, {}, {"priority": 7}, {"priority": 7}, {"ttl": "1h"}, {"key": "k"}, {},
                    {"headers": {"a": "b"}}, {}, {}):  # fmt: skip
        producer.send_async("orders", b"%d" % len(wire.sizes), **options)
    producer.send_async("orders", b"x" * RUN_BYTES)
    producer.flush(10)
    assert wire.sizes == [1, 2, 2, 1, 1, 1, 1, 2, 1]
    seen = connection.admin().browse("orders", limit=100)
    assert [int(m.id) for m in seen] == list(range(1, 13))


def test_a_run_has_a_limit_in_bytes(slow: tuple[Connection, Slow]) -> None:
    connection, wire = slow
    producer = connection.producer()
    producer.send_async("orders", b"first")
    for _ in range(5):
        producer.send_async("orders", b"x" * (RUN_BYTES // 2))
    producer.flush(10)
    assert wire.sizes == [1, 2, 2, 1]
    assert max(map(len, wire.published)) <= RUN_BYTES + 4 * 2


def test_not_acknowledged_messages_are_gathered_too(slow: tuple[Connection, Slow]) -> None:
    connection, wire = slow
    producer = connection.producer(delivery_mode="non_persistent")
    for n in range(1 + RUN_MAX):
        producer.send_async("orders", b"%d" % n)
    assert wire.sizes == [1, RUN_MAX]
    assert browse(connection) == [b"%d" % n for n in range(1 + RUN_MAX)]


def test_P2_a_lost_run_is_sent_again_message_by_message(slow: tuple[Connection, Slow]) -> None:
    """Some of it may have been answered, so each goes under its own number."""
    connection, wire = slow
    producer = connection.producer(pub_ack_time="100ms")
    lost = iter([False, True])
    wire.lose_published = lambda _: next(lost, False)
    sent = [producer.send_async("orders", b"%d" % n) for n in range(1 + RUN_MAX)]
    producer.flush(30)
    assert wire.sizes[:2] == [1, RUN_MAX]
    assert set(wire.sizes[2:]) == {1}
    assert len({f.result().message_id for f in sent}) == 1 + RUN_MAX
    assert sorted(browse(connection)) == [b"%d" % n for n in range(1 + RUN_MAX)]


def test_several_threads_lose_nothing() -> None:
    connection, _ = connect(engine(ORDERS))
    producer = connection.producer(window=1000)

    def send(name: int) -> None:
        for n in range(100):
            producer.send_async("orders", b"%d %d" % (name, n))

    threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush(30)
    seen = browse(connection)
    assert len(seen) == len(set(seen)) == 400
    for name in range(4):
        own = [int(p.split()[1]) for p in seen if p.startswith(b"%d " % name)]
        assert own == list(range(100)), "each thread's messages keep their order"


def test_a_forgotten_connection_leaves_no_thread() -> None:
    connection, _ = connect(engine(ORDERS), "forgotten")

    def threads() -> list[str]:
        return [t.name for t in threading.enumerate() if "forgotten" in t.name]

    assert len(threads()) == 2
    del connection
    wait_for(lambda: not threads())


def test_memory_takes_each_message_at_once(bench: Bench) -> None:
    """There, a record is a step: nothing would be saved, and time stands still."""
    bench.producer.send_async("orders", b"{}")
    assert bench.seen()["depth"] == 1
