"""The home of `test_standalone.py`: Kafka with credentials over TLS, a standalone cluster, an S3
store with its tables and checkpoints, and a submitted engine with two brokers."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil
import pytest
from job.brokers import BROKERS, workers
from job.hosts import Host
from job.output_audit import UNTRIMMED
from job.processes import EngineProcess
from job.secured import KEY, SecuredKafka, settings_file
from job.standalone import Standalone
from lakequeue.protocol.folders import Folder, folder
from lakequeue.protocol.kafka_settings import VARIABLE

SETTINGS = (
    "--set", "lakequeue.batch_s=14", "--set", "spark.decommission.enabled=true",
    "--set", "lakequeue.tables_interval_s=20", "--set", "lakequeue.history_interval_s=0",
    # After this long Spark gives up a silent executor, and its brokers move.
    "--set", "spark.network.timeout=20s", "--set", "spark.network.timeoutInterval=5s",
    "--set", "spark.executor.heartbeatInterval=2s",
)  # fmt: skip
VPNS = ("default", "left", "right")
LOCAL = "message_type: text, type: LocalQueue, max_per_subscription_backlog: 50"
CONFIG = f"""
auth: required
brokers: [{", ".join(BROKERS)}]
clients:
  - {{name: app, key: {{env: APP_KEY}}}}
  - {{name: app, vpn: left, key: {{env: APP_KEY}}}}
  - {{name: app, vpn: right, key: {{env: APP_KEY}}}}
queues:
  - {{name: orders, message_type: text, max_per_subscription_backlog: 50}}
  - {{name: orders, vpn: left, message_type: text, max_per_subscription_backlog: 50}}
  - {{name: others, vpn: left, message_type: text, owner: them, permission: read-only}}
  - {{name: orders, vpn: right, message_type: text, max_per_subscription_backlog: 50}}
  - {{name: orders-a, broker: a, {LOCAL}}}
  - {{name: orders-b, broker: b, {LOCAL}}}
  - {{name: one, broker: a, {LOCAL}, subscriptions: ["news/>"]}}
  - {{name: two, broker: b, {LOCAL}, subscriptions: ["news/>"]}}
  - {{name: spread, message_type: text, max_per_subscription_backlog: 20}}
"""
SLOTS = 4  # of each executor: room for all brokers and the tables on one


class SubmittedEngine(EngineProcess):
    """`lakequeue submit` in client mode: the same engine, with spark-submit's Java before its
    Python. It has its jars, and SIGTERM to the command stops the driver cleanly."""

    def command(self, bootstrap: str) -> list[str]:
        return ["submit", "--bootstrap", bootstrap]


class Home:
    """Kafka, the cluster and the engine. hosts: of Kafka, of the driver, and of each worker; by
    default all are on this one. bucket: the URI of an empty one."""

    def __init__(
        self, place: Path, hosts: list[Host], bucket: str, patch: pytest.MonkeyPatch
    ) -> None:
        (place / "queues.yaml").write_text(CONFIG)
        self.store = folder(bucket)
        on = [host() for host in hosts[:2]] or [contextlib.nullcontext()] * 2
        address = hosts[0].address if hosts else "127.0.0.1"
        self.kafka = SecuredKafka(place / "kafka", host=address)
        with on[0]:
            self.kafka.start()
        for user in ("engine", "left", "right"):
            self.kafka.add_user(user)
        self.kafka.allow_engine(VPNS, BROKERS)
        for vpn in ("left", "right"):
            self.kafka.allow_client(vpn, vpn)
        self.cluster = Standalone(place, 2, SLOTS, hosts[1:])
        own = settings_file(place, "SCRAM-SHA-512", certificate=self.kafka.certificate)
        patch.setenv(VARIABLE, str(own))  # after the cluster's start, which does not know it
        patch.setenv("APP_KEY", KEY)
        patch.setenv("LAKEQUEUE_CLIENT_KEY", f"app:{KEY}")
        with on[1]:
            self.engine = SubmittedEngine(
                self.kafka.encrypted, place / "home", place / "queues.yaml",
                *self.cluster.settings(), *UNTRIMMED, *SETTINGS,
                "--set", f"lakequeue.tables={bucket}/tables",
                "--set", f"lakequeue.checkpoints={bucket}/checkpoints",
            )  # fmt: skip

    @property
    def url(self) -> str:
        return f"kafka://{self.kafka.encrypted}"

    @property
    def tables(self) -> Folder:
        return self.store / "tables"

    def workers(self) -> dict[str, psutil.Process]:
        """Each broker's stepping process."""
        return workers(self.cluster.family())

    @property
    def logs(self) -> list[Path]:
        """The logs of the engine, and of all processes of the cluster."""
        place = self.engine.home.parent
        executors = place.glob("worker-*/*/*/std*")
        return [*self.engine.home.glob("*.log"), *place.glob("*.log"), self.engine.log, *executors]

    def kill(self) -> None:
        """Kill everything."""
        self.engine.kill()
        self.cluster.kill()
        self.kafka.stop()
