"""Four brokers, a queue `orders-<name>` on each, and traffic through all of them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable

import lakequeue
import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from job.processes import loop_workers
from job.traffic import Traffic
from lakequeue.streaming.realtime import ENVIRONMENT

SEED = 7
BROKERS = ("a", "b", "c", "d")
CONFIG = f"brokers: [{', '.join(BROKERS)}]\n"


def define_queues(url: str) -> None:
    """A queue on each broker."""
    for broker in BROKERS:
        with lakequeue.connect(url, broker=broker) as connection:
            connection.admin().define(
                {
                    "name": f"orders-{broker}", "message_type": "text", "type": "LocalQueue",
                    "broker": broker,
                    "max_per_subscription_backlog": 50,
                }
            )  # fmt: skip


def traffics(url: str) -> dict[str, Traffic]:
    """Traffic on each broker's queue."""
    return {
        broker: Traffic(url, SEED + i, f"orders-{broker}", broker)
        for i, broker in enumerate(BROKERS)
    }


class PlainRecords:
    """Records that a plain producer writes to a topic while this is open, and who takes them."""

    PARTITIONS, REST_S, QUIET_S = 7, 0.02, 5.0

    def __init__(self, url: str, topic: str) -> None:
        self._url, self._topic = url, topic
        self._kafka = {"bootstrap.servers": url.removeprefix("kafka://")}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._n = 0

    def __enter__(self) -> PlainRecords:
        topic = NewTopic(self._topic, self.PARTITIONS, 1)
        AdminClient(self._kafka).create_topics([topic])[self._topic].result(30)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(2.0)  # all brokers are there
        self._closed.set()
        self._thread.join()

    def _write(self) -> None:
        producer = Producer(self._kafka)
        while not self._closed.wait(self.REST_S):
            partition = self._n % self.PARTITIONS
            producer.produce(self._topic, b"%d" % self._n, partition=partition)
            producer.poll(0)
            self._n += 1
        assert not producer.flush(30)

    def written(self) -> Counter[bytes]:
        return Counter({b"%d" % n: 1 for n in range(self._n)})

    def taken(self) -> Counter[bytes]:
        """What the queue of this name holds, at whatever broker; it is deleted then."""
        found: Counter[bytes] = Counter()
        with lakequeue.connect(self._url) as connection:
            with connection.consumer(self._topic, ack_mode="individual", max_backlog=500) as c:
                wait_s = 12 * self.QUIET_S
                while (message := c.receive(timeout=wait_s)) is not None:
                    found[message.payload] += 1
                    message.ack()
                    wait_s = 12 * self.QUIET_S if len(found) < self._n else self.QUIET_S
            connection.admin().delete(self._topic)
        return found


def workers(processes: Iterable[psutil.Process]) -> dict[str, psutil.Process]:
    """The process that steps, of each broker."""
    return {w.environ()[ENVIRONMENT]: w for w in loop_workers(processes)}
