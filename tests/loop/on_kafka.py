"""The loop on a real Kafka without Spark: workers as processes, one after the other."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lakequeue
from lakequeue.client.kafka import open_kafka
from lakequeue.protocol import commands
from lakequeue.protocol.errors import LakequeueError
from lakequeue.streaming.kafka.topics_admin import ensure_topics

WORKER = Path(__file__).with_name("worker.py")
INSTRUCTIONS = "broker-0.instructions"
EPOCH = 7  # as in worker.py


@dataclass
class LoopOnKafka:
    """One Kafka, and the workers that serve it one after the other."""

    kafka: Any  # `EmbeddedKafka`, or several nodes
    folder: Path
    workers: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"kafka://{self.kafka.bootstrap_servers}"

    def start(self, *more: str) -> subprocess.Popen[str]:
        """Start a worker; one that still runs is abandoned."""
        generation = str(len(self.workers))
        (self.folder / "generation").write_text(generation)
        command = [sys.executable, str(WORKER), self.kafka.bootstrap_servers, str(self.folder)]
        worker = subprocess.Popen(
            [*command, generation, *more], stdout=subprocess.PIPE, text=True,
            stderr=(self.folder / f"stderr-{generation}").open("w"),
        )  # fmt: skip
        self.workers.append(worker)
        return worker

    def begin(self) -> None:
        """Start Kafka. The home begins at the current ends of the VPN's commands and the engine's
        instructions."""
        self.kafka.start()
        ensure_topics(self.kafka.bootstrap_servers, ["default"], [], ["broker-0"])
        tell(self, commands.Begin(epoch=EPOCH), INSTRUCTIONS, "default.commands")

    def running(self) -> subprocess.Popen[str]:
        """The running worker; starts one if none runs."""
        return self.workers[-1] if self.workers[-1].poll() is None else self.start()

    def stop(self, worker: subprocess.Popen[str]) -> str:
        """Stop the worker as the engine does. Returns what it printed."""
        transport = open_kafka(self.kafka.bootstrap_servers, "stop")
        transport.command("broker-0.control", b"", str(self.workers.index(worker)).encode())
        transport.flush(90)
        transport.close()
        said, _ = worker.communicate(timeout=180)
        return said


def tell(place: LoopOnKafka, command: commands.AnyCommand, *topics: str) -> None:
    """Write a command to these topics; without any, to the instructions, as the engine does."""
    transport = open_kafka(place.kafka.bootstrap_servers, "tell")
    for topic in topics or (INSTRUCTIONS,):
        key = b"default" if topic == INSTRUCTIONS else b""
        transport.command(topic, key, commands.encode_command(command))
    transport.flush(90)
    transport.close()


def answers(connection: lakequeue.Connection) -> bool:
    try:
        connection.request(commands.Queues(), timeout=2.0)
    except LakequeueError:
        return False
    return True
