"""A Kafka of three nodes under a running engine: the one that leads the log of steps dies in the
middle of traffic, and comes back. What two of three nodes have is kept (`min.insync.replicas`), and
the engine, its log of steps and the clients go on with those that are left."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from job.kafka_cluster import EmbeddedCluster
from job.output_audit import UNTRIMMED, judge_what_was_said
from job.processes import EngineProcess, until
from job.traffic import Traffic, drain
from lakequeue.streaming.kafka.embedded_kafka import EmbeddedKafka

pytestmark = pytest.mark.job

SEED = 3
KNOCKS_MAX = 30_000  # in all; a client that knocks without a pause comes to 100,000 in 30 s
STEPS = "broker-0.steps"
SETTINGS = (*UNTRIMMED, "--set", "lakequeue.tables_interval_s=0")
CONFIG = "queues:\n  - {name: orders, message_type: text, max_per_subscription_backlog: 50}\n"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path / "cluster") as cluster:
        yield cluster


class Look:
    """What the cluster says of itself."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})

    def leader_of_the_log(self) -> EmbeddedKafka:
        """The node whose death hurts most."""
        about = self._admin.list_topics(STEPS, timeout=20).topics[STEPS].partitions[0]
        return self._cluster.nodes[about.leader - 1]

    def whole(self) -> bool:
        """Every partition has three copies, all of them up to date."""
        topics = self._admin.list_topics(timeout=20).topics.values()
        return all(len(p.isrs) == 3 for t in topics for p in t.partitions.values())


def knocks(log: Path) -> int:
    """How often the loop's clients asked for a connection in vain, beside those in the log."""
    counts = re.findall(r"([0-9]+) identical error\(s\) suppressed", log.read_text())
    return sum(map(int, counts))


def test_one_of_three_dies_and_comes_back(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    config = tmp_path / "queues.yaml"
    config.write_text(CONFIG)
    engine = EngineProcess(cluster.bootstrap_servers, tmp_path / "home", config, *SETTINGS)
    try:
        engine.wait_ready()
        look = Look(cluster)
        until(look.whole, 20, "all topics have their copies")
        traffic = Traffic(f"kafka://{cluster.bootstrap_servers}", SEED)
        traffic.goes_on(60, 60)
        victim = look.leader_of_the_log()
        victim.kill()
        took = traffic.goes_on(60, 60)
        print(f"without {victim.home.name}: 60 messages in {took:.1f} s")
        victim.start()
        until(look.whole, 60, "the node has all that it missed")
        traffic.goes_on(30, 60)
        drain(traffic)
        print(judge_what_was_said(cluster.bootstrap_servers, tmp_path / "home"))
        assert engine.terminate() == 0
        assert knocks(tmp_path / "home" / "spark.log") < KNOCKS_MAX
        assert "Traceback" not in engine.errors()
    finally:
        engine.kill()
