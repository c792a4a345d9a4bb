"""C3 while the engine is away: who sent heartbeats all the time is not late.

A session is lost when its client is silent for `heartbeat_timeout`, not when nobody listened. On a
real Kafka, with a worker of the loop that is a process; without Spark.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import lakequeue
import pytest
from job.processes import until
from lakequeue.client.kafka import open_kafka
from lakequeue.protocol import commands
from lakequeue.streaming import EmbeddedKafka
from lakequeue.streaming.kafka.topics_admin import ensure_topics
from loop.test_on_kafka import QUEUE, LoopOnKafka, answers, begin

pytestmark = pytest.mark.job

TIMEOUT_S = 3.0
AWAY_S = 2.5 * TIMEOUT_S


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopOnKafka]:
    folder = tmp_path_factory.mktemp("absence")
    with EmbeddedKafka(folder / "kafka") as kafka:
        ensure_topics(kafka.bootstrap_servers, ["default"], [], ["broker-0"])
        place = LoopOnKafka(kafka, folder)
        begin(kafka.bootstrap_servers)
        transport = open_kafka(kafka.bootstrap_servers, "configure")
        system = {"heartbeat_timeout": f"{TIMEOUT_S:g}s"}
        value = commands.encode_command(commands.Configure(system=system, vpns={}))
        transport.command("broker-0.instructions", b"default", value)
        transport.flush(5)
        transport.close()
        place.start()
        with lakequeue.connect(place.url) as connection:
            until(lambda: answers(connection), 30, "the worker answers")
            connection.admin().define(QUEUE)
        yield place
        for worker in place.workers:
            worker.kill()
            worker.wait()


SILENT = """
import sys, time, lakequeue
consumer = lakequeue.connect(sys.argv[1], client_name="silent").consumer("orders", max_backlog=1)
print(consumer.receive(30).id, flush=True)
time.sleep(600)
"""


def silent_client(url: str) -> subprocess.Popen[str]:
    """A consumer that holds a message, in a process that is killed later."""
    child = subprocess.Popen(
        [sys.executable, "-c", SILENT, url], stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline().strip()
    return child


def lost(connection: lakequeue.Connection) -> int:
    return sum(e["event"] == "session_lost" for e in connection.admin().events())


def test_C3_who_was_there_is_not_late(place: LoopOnKafka) -> None:
    """And who died meanwhile is: what it held goes to the others."""
    with lakequeue.connect(place.url, client_name="there") as connection:
        before = lost(connection)
        producer = connection.producer()
        producer.send("orders", b"silent's")
        silent = silent_client(place.url)
        producer.send("orders", b"mine")
        with connection.consumer("orders", ack_mode="individual", max_backlog=2) as consumer:
            mine = consumer.receive(30)
            assert mine is not None
            assert mine.payload == b"mine"
            silent.kill()
            silent.wait()
            place.workers[-1].kill()
            time.sleep(AWAY_S)
            place.start()
            again = consumer.receive(30)
            assert again is not None, "the silent one is lost"
            assert (again.payload, again.redelivered) == (b"silent's", True)
            until(lambda: answers(connection), 30, "the engine answers")
            time.sleep(TIMEOUT_S)
            assert lost(connection) == before + 1, "one was silent, one was there all the time"
            mine.ack()
            again.ack()
            until(lambda: connection.admin().describe("orders")["depth"] == 0, 30, "both are gone")
            assert consumer.receive(0.5) is None
