"""Clients of several brokers as over Kafka, with their threads: they read the directory's topic,
and follow a queue."""

import json
from typing import Any

import pytest
from client.threaded import ORDERS, Held, connect, wait_for
from lakequeue.client.session.queue_directory import QueueDirectory
from lakequeue.definitions import parse_configuration
from lakequeue.memory import MemoryEngine
from lakequeue.memory.registry import MemoryConnection
from lakequeue.protocol.errors import LeaseLost
from lakequeue.streaming.brokers.change_requests import request_of


def queue(name: str, **keys: Any) -> dict[str, Any]:
    return ORDERS | {"name": name, "type": "LocalQueue"} | keys


def mesh(*brokers: str, **queue_keys: Any) -> MemoryEngine:
    """Time stands still."""
    queues = [queue(**queue_keys)] if queue_keys else []
    made = MemoryEngine(parse_configuration({"brokers": list(brokers), "queues": queues}))
    made.checking = True
    return made


@pytest.fixture
def three() -> MemoryEngine:
    """Three brokers; the queue is on `b`."""
    return mesh("a", "b", "c", name="q", broker="b")


def test_a_new_connection_reads_the_directory(three: MemoryEngine) -> None:
    connection, wire = connect(three, number=0)
    assert connection.broker_of("q") == 1
    receipt = connection.producer().send("q", b"1", timeout=10)
    assert int(receipt.message_id or 0) >> 48 == 1
    with connection.consumer("q", ack_mode="individual") as consumer:
        consumer.receive(timeout=10).ack()
    wait_for(lambda: connection.admin().describe("q")["depth"] == 0)
    connection.close()
    assert {c["command"] for c in wire.commands} >= {"subscribe", "ack", "unsubscribe", "bye"}


def test_an_unreachable_broker_does_not_delay_consumers_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They used to wait as long as it was away."""
    brokers = ["a", "b", "c"]
    queues = [queue(f"at-{name}", broker=name) for name in brokers]
    engine = MemoryEngine(parse_configuration({"brokers": brokers, "queues": queues}))
    connection, wire = connect(engine, number=0)
    consumers = [connection.consumer(one["name"]) for one in queues]
    first, command = [c.subscription for c in consumers], wire.command

    def take(topic: str, key: bytes, value: bytes, partition: int = 0) -> None:
        if partition != 1:  # `b` is away
            command(topic, key, value, partition)

    monkeypatch.setattr(wire, "command", take)
    for broker in (1, 2):  # each had missed its heartbeats
        connection._heartbeat_answered(broker, {"result": False})
        wait_for(lambda: not connection._follow)
    wait_for(lambda: consumers[2].subscription != first[2])
    connection.producer().send("at-c", b"1", timeout=10)
    assert consumers[2].receive(timeout=10).payload == b"1"
    assert connection._binding == {consumers[1]}


def test_an_open_connection_uses_an_added_broker(
    three: MemoryEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's clients know the partitions of their last metadata, and refuse others."""
    connection, wire = connect(three, number=0)
    known = {"default.commands": 3}
    partitions, command = wire.partitions, wire.command

    def look(topic: str) -> int:
        known[topic] = partitions(topic)
        return known[topic]

    def take(topic: str, key: bytes, value: bytes, partition: int = 0) -> None:
        assert partition < known[topic], "unknown partition"
        command(topic, key, value, partition)

    monkeypatch.setattr(wire, "partitions", look)
    monkeypatch.setattr(wire, "command", take)
    three.configure(parse_configuration({"brokers": ["a", "b", "c", "d"]}))
    admin = connection.admin()
    admin.define(queue("r", broker="d"))
    for _ in range(2):
        assert admin.describe("r")["depth"] == 0


def test_an_old_connection_administers_brokers_added_later() -> None:
    engine = mesh("a", name="here")
    admin = MemoryConnection(engine, "default", "app", "a").admin()
    assert [q["name"] for q in admin.queues()] == ["here"]
    engine.configure(parse_configuration({"brokers": ["a", "b"]}))
    other = MemoryConnection(engine, "default", "other", "b").admin()
    other.define(queue("there", broker="b"))
    other.define({"name": "all", "message_type": "json"})
    assert [q["name"] for q in admin.queues()] == ["all", "here", "there"]
    assert sorted(admin.describe("all")["brokers"]) == ["a", "b"]
    assert admin.describe("there")["depth"] == 0


def test_an_open_connection_follows_a_moved_queue(three: MemoryEngine) -> None:
    (one, _), (two, _) = connect(three, number=0), connect(three, number=2)
    producer = one.producer(delivery_mode="persistent_groupack", window=1000, group_ack=100)
    consumer = two.consumer("q", ack_mode="individual", max_backlog=10)
    got: list[int] = []

    def take(most: int) -> None:
        while len(got) < most:
            message = consumer.receive(timeout=10)
            assert message is not None, f"{len(got)} of {most}"
            try:
                message.ack()
            except LeaseLost:
                continue  # it moved with the queue, and comes again
            got.append(json.loads(message.payload))

    for n, broker in enumerate(("c", "a", "b")):
        for number in range(n * 40, n * 40 + 40):
            producer.send("q", json.dumps(number))
        take(n * 40 + 10)
        two.admin().move_queue("q", broker)
        take(n * 40 + 40)
    producer.flush(10)
    assert sorted(set(got)) == list(range(120))
    wait_for(lambda: one.admin().describe("q")["depth"] == 0)
    assert one.admin().describe("q")["counters"]["spooled"] == 120


BAD = [b"", b"5", b"\xff", b"not json", b"[]", b"{}", b'{"hosts": [1]}', b"[" * 100_000,
       b'{"hosts": {"b": "x"}}']  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, b"{}"), (b"broker/a", b'{"number": 0}'), *((b"queue/q", value) for value in BAD)],
    ids=lambda given: str(given)[:24],
)
def test_malformed_directory_records_change_nothing(key: Any, value: bytes) -> None:
    """Any client may write there; no thread ends because of it."""
    directory = QueueDirectory(2)
    assert directory.take(b"queue/q", b'{"hosts": {"b": 1}}') == "q"
    assert directory.take(key, value) is None
    assert directory.broker_of("q") == 1
    assert request_of(b"wish/b", value, "default") is None


def test_the_home_broker_serves_unknown_queues_and_those_it_hosts() -> None:
    directory = QueueDirectory(2)
    assert directory.broker_of("q") == 2
    directory.learn("q", {"b": 1, "c": 2})
    assert directory.broker_of("q") == 2
    # the name of a changed queue, for its consumers
    assert directory.take(b"queue/q", b'{"hosts": {"b": 1, "c": 2}}') == "q"
    assert directory.take(b"queue/q", b'{"hosts": {"c": 2, "b": 1}}') is None
    assert directory.take(b"queue/q", None) == "q"
    assert directory.hosts_of("q") == {}


def test_a_directory_change_does_not_reorder_messages_in_flight(
    three: MemoryEngine,
) -> None:
    """P1, O1: earlier messages went to the home broker, which forwards them to the queue."""
    connection, wire = connect(three, kind=Held, number=0)
    producer = connection.producer(delivery_mode="persistent_groupack", window=1000)
    wire.let_go.clear()
    for first, hosts in ((0, {}), (20, {"b": 1})):
        connection.learn("q", hosts)
        for n in range(first, first + 20):
            producer.send_async("q", b"%d" % n)
        producer.send_gathered()
    wire.let_go.set()
    producer.flush(10)
    got = []
    with connection.consumer("q", max_backlog=100, ack_mode="individual") as consumer:
        while len(got) < 40:
            message = consumer.receive(timeout=10)
            got.append(int(message.payload))
            message.ack()
    assert got == list(range(40))
