"""Traffic at a steady rate, with the time in each payload: what the benchmarks of latency share."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..client import connect
from ..protocol.errors import LakequeueError

_TIME = struct.Struct("d")
REST = b"x" * (1_000 - _TIME.size)


def stamped() -> bytes:
    """A payload of about 1 KB that says when it was made."""
    return _TIME.pack(time.time()) + REST


def made_at(payload: bytes) -> float:
    """When a payload was made, seconds since 1970."""
    return float(_TIME.unpack_from(payload)[0])


def at_rate(send: Callable[[bytes], object], rate: int, seconds: float) -> float:
    """Send at a steady rate; returns when it began, seconds since 1970."""
    begin = time.time()
    for i in range(round(rate * seconds)):
        ahead = begin + i / rate - time.time()
        if ahead > 0.001:
            time.sleep(ahead)
        send(stamped())
    return begin


class Traffic:
    """A producer and a consumer of a queue in threads of their own, until stopped; notes for each
    message when it was sent and how long it took."""

    def __init__(self, address: str, queue: str, rate: int, producer_id: str | None = None) -> None:
        self._address, self._queue, self._rate = address, queue, rate
        self._producer_id = producer_id
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._send, self._receive)
        ]
        self.taken: list[tuple[float, float]] = []  # sent at, seconds on the way
        self.failures: list[BaseException] = []

    def _send(self) -> None:
        try:
            with connect(self._address, client_name="bench-producer") as connection:
                with connection.producer(
                    producer_id=self._producer_id, window=100_000, pub_ack_time="60s"
                ) as producer:
                    while not self._stopping.is_set():
                        at_rate(lambda p: producer.send_async(self._queue, p), self._rate, 0.5)
        except LakequeueError as error:
            self.failures.append(error)

    def _receive(self) -> None:
        try:
            with connect(self._address, client_name="bench-consumer") as connection:
                consumer = connection.consumer(
                    self._queue, ack_mode="individual", max_backlog=5_000
                )
                while not self._stopping.is_set():
                    message = consumer.receive(0.5)
                    if message is not None:
                        sent = made_at(message.payload)
                        self.taken.append((sent, time.time() - sent))
                        message.ack()
        except LakequeueError as error:
            self.failures.append(error)

    def between(self, begin: float, end: float) -> list[float]:
        """Milliseconds of each message that was sent then."""
        return [s * 1000 for sent, s in list(self.taken) if begin <= sent < end]

    def first_after(self, moment: float, timeout_s: float) -> float:
        """Milliseconds from then until the first message that was sent later had come."""
        deadline = time.monotonic() + timeout_s
        at = len(self.taken)
        while time.monotonic() < deadline:
            for sent, took in self.taken[at:]:
                at += 1
                if sent > moment:
                    return (sent + took - moment) * 1000
            self.check()
            time.sleep(0.002)
        raise LakequeueError(f"No message came within {timeout_s:.0f} s of the kill.")

    def check(self) -> None:
        """Raise what made the traffic end."""
        if self.failures:
            raise self.failures[0]

    def stop(self) -> None:
        """End both threads."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(30)

    def start(self) -> Traffic:
        """Begin, the consumer first."""
        self._threads[1].start()
        time.sleep(1)
        self._threads[0].start()
        return self


@contextmanager
def traffic(
    address: str, queue: str, rate: int, producer_id: str | None = None
) -> Iterator[Traffic]:
    """Steady traffic through a queue."""
    one = Traffic(address, queue, rate, producer_id).start()
    try:
        yield one
    finally:
        one.stop()
