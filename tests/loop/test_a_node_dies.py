"""A Kafka of three nodes loses the leader of the log of steps under traffic, and gets it back. The
two other nodes have every acknowledged record (`min.insync.replicas`); the worker, its log and the
clients go on with them."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import lakequeue
import pytest
from confluent_kafka.admin import AdminClient
from job.processes import until
from job.traffic import Traffic, drain
from lakequeue.sources.live import kafka_client
from lakequeue.sources.replay_inputs import read_steps
from loop.kafka_cluster import EmbeddedCluster
from loop.on_kafka import LoopOnKafka, answers

pytestmark = pytest.mark.job

SEED = 3
KNOCKS_MAX = 30_000  # in all; a client that reconnects without a pause makes 100,000 in 30 s
STEPS = "broker-0.steps"
QUEUE = {"name": "busy", "message_type": "text", "max_per_subscription_backlog": 50}


class Look:
    """The cluster's metadata."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})

    def leader_of_the_log(self) -> int:
        """The node whose death hurts most."""
        return self._admin.list_topics(STEPS, timeout=90).topics[STEPS].partitions[0].leader

    def whole(self) -> bool:
        """Whether every partition has three copies, all up to date."""
        topics = self._admin.list_topics(timeout=90).topics.values()
        return all(len(p.isrs) == 3 for t in topics for p in t.partitions.values())


def knocks(log: Path) -> int:
    """How many failed connection attempts of the loop's clients its log counts as suppressed."""
    counts = re.findall(r"([0-9]+) identical error\(s\) suppressed", log.read_text())
    return sum(map(int, counts))


def test_one_of_three_nodes_dies_and_comes_back(tmp_path: Path) -> None:
    with EmbeddedCluster(tmp_path / "cluster") as cluster, contextlib.ExitStack() as stack:
        place = LoopOnKafka(cluster, tmp_path)
        place.begin()
        worker = place.start()
        stack.callback(worker.kill)
        with lakequeue.connect(place.url) as connection:
            until(lambda: answers(connection), 30, "the worker answers")
            connection.admin().define(QUEUE)
        look = Look(cluster)
        until(look.whole, 60, "all topics have their copies")
        traffic = Traffic(place.url, SEED, "busy", per_second=6)
        traffic.goes_on(15, 60)
        victim = cluster.nodes[look.leader_of_the_log() - 1]
        victim.kill()
        took = traffic.goes_on(15, 60)
        print(f"without {victim.home.name}: 15 messages in {took:.1f} s")
        victim.start()
        until(look.whole, 60, "the node has all that it missed")
        traffic.goes_on(15, 60)
        drain(traffic)
        logged = read_steps(kafka_client(cluster.bootstrap_servers, "look"), STEPS, 0)
        assert worker.poll() is None, "the same worker went on"
        assert "stopped:broker-0" in place.stop(worker)
    numbers = [record.step for _, record in logged]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    said = tmp_path / "stderr-0"
    assert knocks(said) < KNOCKS_MAX
    assert "Traceback" not in said.read_text()
