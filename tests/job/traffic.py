"""A producer and two consumers that record their observations, and their judge (after jepsen's
total-queue)."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import lakequeue
from job.processes import until

PER_SECOND = 20  # each costs some 4 ms of a core, in clients, Kafka and loop
CANCELED_SHARE = 0.03


@dataclass(frozen=True)
class Received:
    consumer: int
    payload: bytes
    id: str
    count: int
    redelivered: bool


class Traffic:
    """A producer and two consumers, each with a record of its observations."""

    def __init__(
        self, url: str, seed: int, queue: str = "orders", broker: str | None = None,
        window: int = 2_000, per_second: float = PER_SECOND,
    ) -> None:  # fmt: skip
        self.queue = queue
        self.sent: dict[bytes, Future[lakequeue.client.Receipt]] = {}
        self.sent_at: dict[bytes, float] = {}
        self.took: list[tuple[float, float]] = []  # per delivery: when it was sent, seconds
        self.received: list[Received] = []
        self.acked: list[bytes] = []
        self.errors: list[BaseException] = []
        self._random, self._per_second = random.Random(seed), per_second
        self._producing, self._consuming = threading.Event(), threading.Event()
        self._producing.set()
        self._consuming.set()
        self.connections = [
            lakequeue.connect(url, client_name=f"app-{i}", broker=broker) for i in range(3)
        ]
        self.producer = self.connections[0].producer(pub_ack_time="500ms", window=window)
        self.consumers = [
            c.consumer(queue, ack_mode="individual", max_backlog=50) for c in self.connections[1:]
        ]
        jobs = [(self._produce, ()), (self._consume, (0,)), (self._consume, (1,))]
        self.threads = [threading.Thread(target=self._run, args=job, daemon=True) for job in jobs]
        for thread in self.threads:
            thread.start()

    def _run(self, what: Any, arguments: tuple) -> None:
        try:
            what(*arguments)
        except BaseException as error:
            self.errors.append(error)

    def _produce(self) -> None:
        while self._producing.is_set():
            payload = f"message {len(self.sent)}".encode()
            self.sent_at[payload] = time.monotonic()
            with contextlib.suppress(lakequeue.Timeout):  # its window is full: it tries again
                self.sent[payload] = self.producer.send_async(self.queue, payload)
            time.sleep(self._random.expovariate(self._per_second))

    def _consume(self, number: int) -> None:
        choose = random.Random(number)
        while self._consuming.is_set():
            m = self.consumers[number].receive(timeout=0.2)
            if m is None:
                continue
            sent_at = self.sent_at[m.payload]
            self.took.append((sent_at, time.monotonic() - sent_at))
            seen = Received(number, m.payload, m.id, m.delivery_count, m.redelivered)
            self.received.append(seen)
            if choose.random() < CANCELED_SHARE:
                m.cancel()
            else:
                m.ack()
                self.acked.append(m.payload)

    def goes_on(self, more: int, seconds: float) -> float:
        """Wait until so many more were acknowledged; returns the time it took."""
        begun, enough = time.monotonic(), len(self.acked) + more
        until(lambda: len(self.acked) >= enough or self.errors, seconds, "traffic continues")
        assert not self.errors, self.errors
        return time.monotonic() - begun

    def finish_producing(self) -> None:
        self._producing.clear()
        self.threads[0].join(60)
        self.producer.flush(120)

    def finish_consuming(self) -> None:
        self._consuming.clear()
        for thread in self.threads[1:]:
            thread.join(90)
        for connection in self.connections:
            connection.close()

    def acknowledged(self) -> set[bytes]:
        """The messages that the producer knows as stored."""
        return {p for p, f in self.sent.items() if f.done() and f.exception() is None}


def drain(traffic: Traffic) -> None:
    """End the traffic, drain the queue, and judge everything."""
    traffic.finish_producing()
    admin = traffic.connections[0].admin()
    until(lambda: admin.describe(traffic.queue)["depth"] == 0, 90, "the queue is drained")
    traffic.finish_consuming()
    judge(traffic, set())


def judge(traffic: Traffic, left: set[bytes]) -> None:
    """Nothing lost, nothing invented, and every repetition flagged."""
    assert not traffic.errors, traffic.errors
    refused = [f.exception() for f in traffic.sent.values() if f.done() and f.exception()]
    assert not refused
    attempted = set(traffic.sent)
    received = {r.payload for r in traffic.received}
    assert not received - attempted, "unexpected"
    lost = traffic.acknowledged() - set(traffic.acked) - left
    assert not lost, f"{len(lost)} lost, such as {sorted(lost)[:3]}"
    deliveries: dict[bytes, list[Received]] = defaultdict(list)
    for r in traffic.received:
        deliveries[r.payload].append(r)
    for payload, times in deliveries.items():
        assert len({r.id for r in times}) == 1, f"{payload!r} is stored twice: {times}"
        counts = [r.count for r in times]
        assert len(set(counts)) == len(counts), f"the same delivery reached two: {times}"
        assert all(r.redelivered == (r.count > 1) for r in times)
        assert all(r.redelivered for r in times[1:]), f"again, and it does not say so: {times}"
    ids = Counter(r.id for times in deliveries.values() for r in times[:1])
    assert max(ids.values()) == 1, "two messages with one id"
