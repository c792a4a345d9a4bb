"""The real job with tables and checkpoints on an S3 store, of which the home knows the address, and
with a Kafka of three nodes: the one that leads the log of steps dies in the middle of traffic, and
comes back. What two of three nodes have is kept (`min.insync.replicas`), and the engine, its log of
steps and the clients go on with those that are left. Then the engine dies."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from typing import Any

import lakequeue
import pytest
from confluent_kafka.admin import AdminClient
from job.kafka_cluster import EmbeddedCluster
from job.output_audit import UNTRIMMED, judge_what_was_said
from job.processes import EngineProcess, until
from job.traffic import Traffic, drain
from lakequeue.lake import NoLake, open_lake
from lakequeue.lake.past import as_of, brokers
from lakequeue.lake.queries_at import admin_of
from lakequeue.lake.rebuilding import rebuild
from lakequeue.protocol import LakequeueError
from lakequeue.protocol.folders import folder
from lakequeue.streaming.kafka.embedded_kafka import EmbeddedKafka
from s3_store import bucket

__all__ = ["bucket"]
pytestmark = pytest.mark.job

SEED = 3
KNOCKS_MAX = 30_000  # in all; a client that knocks without a pause comes to 100,000 in 30 s
STEPS = "broker-0.steps"
CONFIG = """queues:
  - {name: orders, message_type: text, max_per_subscription_backlog: 10}
  - {name: busy, message_type: text, max_per_subscription_backlog: 50}
"""
SETTINGS = (
    *UNTRIMMED,
    # Each file is several requests, and the store is a server in this process: seldom is soon.
    "--set", "lakequeue.batch_s=14", "--set", "lakequeue.history_interval_s=14",
    "--set", "lakequeue.snapshots_interval_s=14", "--set", "lakequeue.tables_interval_s=14",
)  # fmt: skip
NO_TABLES = ("--set", "lakequeue.tables_interval_s=0")
COUNT, ACKED, LOOK_EACH_S = 20, 8, 8.0


def left(admin: Any) -> list[bytes]:
    return [message.payload for message in admin.browse("orders", limit=100)]


def known(home: Path) -> list[bytes]:
    """What the tables know of the queue, made again of a snapshot."""
    time.sleep(LOOK_EACH_S)
    with contextlib.suppress(NoLake), open_lake(home) as lake:
        with contextlib.suppress(lakequeue.ConfigError):
            for broker in brokers(lake):
                moment = as_of(lake, home, broker)
                return left(admin_of(moment)) if moment.snapshot else []
    return []


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


def one_of_three_dies_and_comes_back(cluster: EmbeddedCluster, engine: EngineProcess) -> None:
    look = Look(cluster)
    until(look.whole, 20, "all topics have their copies")
    traffic = Traffic(f"kafka://{cluster.bootstrap_servers}", SEED, "busy", per_second=6)
    traffic.goes_on(15, 60)
    victim = look.leader_of_the_log()
    victim.kill()
    took = traffic.goes_on(15, 60)
    print(f"without {victim.home.name}: 15 messages in {took:.1f} s")
    victim.start()
    until(look.whole, 60, "the node has all that it missed")
    traffic.goes_on(15, 60)
    drain(traffic)
    print(judge_what_was_said(cluster.bootstrap_servers, engine.home))
    assert knocks(engine.home / "spark.log") < KNOCKS_MAX
    assert "Traceback" not in engine.errors()


def test_a_home_on_an_object_store_survives_a_node_of_kafka_and_its_engine(
    bucket: str, tmp_path: Path
) -> None:
    """Killed, it goes on from the checkpoint there; without that it is made of the tables there."""
    (tmp_path / "queues.yaml").write_text(CONFIG)
    home, store = tmp_path / "home", folder(bucket)
    places = (
        "--set", f"lakequeue.tables={bucket}/tables",
        "--set", f"lakequeue.checkpoints={bucket}/checkpoints",
    )  # fmt: skip
    with EmbeddedCluster(tmp_path / "cluster") as cluster:
        address = cluster.bootstrap_servers
        engines = [EngineProcess(address, home, tmp_path / "queues.yaml", *SETTINGS, *places)]
        try:
            engines[0].wait_ready()
            one_of_three_dies_and_comes_back(cluster, engines[0])
            with lakequeue.connect(f"kafka://{address}", client_name="tests") as connection:
                admin = connection.admin()
                works(connection)
                rest = [b"%d" % number for number in range(ACKED, COUNT)]
                until(lambda: left(admin) == rest, 30, "the acks")
                until(lambda: known(home) == rest, 90, "the tables")
                engines[0].kill()
                checkpoint = store / "checkpoints" / "checkpoint" / "broker-0"
                assert any(checkpoint.glob("commits/*"))
                engines.append(EngineProcess(address, home, tmp_path / "queues.yaml", *NO_TABLES))
                engines[1].wait_ready()
                assert left(admin) == rest
        finally:
            for engine in engines:
                engine.kill()
    assert not (home / "checkpoint").exists()
    assert not any((home / "tables").glob("*/_delta_log"))
    with pytest.raises(LakequeueError, match=f"{bucket}/checkpoints has a checkpoint"):
        rebuild(home, home)
    (store / "checkpoints" / "checkpoint").remove()
    (made,) = rebuild(home, home)
    assert made.messages == COUNT - ACKED
    assert not any((store / "checkpoints").glob("*/metadata"))


def works(connection: Any) -> None:
    producer = connection.producer()
    for number in range(COUNT):
        producer.send("orders", f"{number}")
    with connection.consumer("orders", ack_mode="individual", max_backlog=4) as consumer:
        for _ in range(ACKED):
            until(lambda: consumer.receive(1.0), 30, "a message").ack()
