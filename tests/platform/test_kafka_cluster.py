"""Three embedded nodes, of which one dies in the middle of traffic: what was confirmed is there."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from lakequeue.streaming.kafka.kafka_cluster import EmbeddedCluster

pytestmark = pytest.mark.job

PARTITIONS = 3
RECORDS, KILL_AT, START_AT = 6_000, 2_000, 4_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    """Each test finds and leaves all nodes up, and has a topic of its own."""
    with EmbeddedCluster(tmp_path_factory.mktemp("three") / "cluster") as cluster:
        yield cluster


def make_topic(cluster: EmbeddedCluster, topic: str) -> dict[int, int]:
    """A topic with the cluster's own settings; the leader of each partition."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    (made,) = admin.create_topics([NewTopic(topic, PARTITIONS)]).values()
    made.result(30)
    time.sleep(1)
    partitions = admin.list_topics(topic, timeout=20).topics[topic].partitions
    assert [len(p.replicas) for p in partitions.values()] == [3] * PARTITIONS
    return {number: p.leader for number, p in partitions.items()}


def read_all(cluster: EmbeddedCluster, topic: str, count: int) -> dict[int, list[int]]:
    """What stands in each partition, in its order."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "judge",
         "enable.auto.commit": False}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    found: dict[int, list[int]] = {p: [] for p in range(PARTITIONS)}
    deadline = time.monotonic() + 60
    while sum(map(len, found.values())) < count and time.monotonic() < deadline:
        for message in consumer.consume(1000, 1.0):
            assert message.error() is None
            found[message.partition()].append(int(message.value()))
    assert consumer.consume(1, 2.0) == []  # and nothing more
    consumer.close()
    return found


def test_one_of_three_dies_in_mid_traffic_and_comes_back(cluster: EmbeddedCluster) -> None:
    leaders = make_topic(cluster, topic := "traffic")
    victim = cluster.nodes[leaders[0] - 1]
    confirmed: set[int] = set()
    refused: list[str] = []

    def told(error: KafkaError | None, message: Message) -> None:
        if error is None:
            confirmed.add(int(message.value()))
        else:
            refused.append(str(error))

    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "linger.ms": 2,
         "enable.idempotence": True}
    )  # fmt: skip
    confirmed_without_it = 0
    for n in range(RECORDS):
        if n == KILL_AT:
            victim.kill()
        if n == START_AT:
            assert producer.flush(60) == 0
            confirmed_without_it = len(confirmed)
            victim.start()
        producer.produce(topic, str(n).encode(), partition=n % PARTITIONS, on_delivery=told)
        producer.poll(0)
        time.sleep(0.0005)
    assert producer.flush(60) == 0
    assert (refused, confirmed_without_it, len(confirmed)) == ([], START_AT, RECORDS)
    found = read_all(cluster, topic, RECORDS)
    for partition, numbers in found.items():
        assert numbers == list(range(partition, RECORDS, PARTITIONS))


def test_with_two_of_three_gone_nothing_is_confirmed(cluster: EmbeddedCluster) -> None:
    """`min.insync.replicas` is 2: one copy is no promise. Both come back, and so does service."""
    make_topic(cluster, topic := "promises")
    said: list[KafkaError | None] = []
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"}
    producer = Producer({**settings, "message.timeout.ms": 5_000})
    for node in cluster.nodes[1:]:
        node.kill()
    producer.produce(topic, b"1", partition=0, on_delivery=lambda error, _: said.append(error))
    producer.flush(20)
    assert len(said) == 1
    assert said[0] is not None
    cluster.start()
    patient = Producer({**settings, "message.timeout.ms": 60_000})
    patient.produce(topic, b"2", partition=0, on_delivery=lambda error, _: said.append(error))
    patient.flush(60)
    assert said[1:] == [None]
