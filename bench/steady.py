"""Traffic at a steady rate, with the time in each payload; shared by the benchmarks of latency."""

from __future__ import annotations

import itertools
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from ..client import Message, connect
from ..protocol.errors import LakequeueError
from .harness import percentile

_TIME = struct.Struct("d")
REST = b"x" * (1_000 - _TIME.size)


def stamped() -> bytes:
    """A payload of 1 KB that begins with the time."""
    return _TIME.pack(time.time()) + REST


def made_at(payload: bytes) -> float:
    """The time at which `stamped` made a payload, epoch s."""
    return float(_TIME.unpack_from(payload)[0])


def at_rate(send: Callable[[bytes], object], rate: int, seconds: float) -> float:
    """Send at a steady rate; returns the time of its start, epoch s."""
    begin = time.time()
    for i in range(round(rate * seconds)):
        ahead = begin + i / rate - time.time()
        if ahead > 0.001:
            time.sleep(ahead)
        send(stamped())
    return begin


class Traffic:
    """Sends messages to queues in turn and consumes them, in a ``with`` statement. taken: for each
    received message, when it was sent (epoch s) and its latency (s)."""

    def __init__(
        self, address: str, queues: Sequence[str], rate: int, producer_id: str | None = None
    ) -> None:
        self._address, self._queues, self._rate = address, queues, rate
        self._producer_id = producer_id
        self._stopping = threading.Event()
        self._sender = threading.Thread(target=self._send, daemon=True)
        self.taken: list[tuple[float, float]] = []
        self.failures: list[BaseException] = []

    def _send(self) -> None:
        turn = itertools.cycle(self._queues)
        try:
            with connect(self._address, client_name="bench-producer") as connection:
                with connection.producer(
                    producer_id=self._producer_id, window=100_000, pub_ack_time="60s"
                ) as producer:
                    while not self._stopping.is_set():
                        at_rate(lambda p: producer.send_async(next(turn), p), self._rate, 0.5)
        except LakequeueError as error:
            self.failures.append(error)

    def _take(self, message: Message) -> None:
        sent = made_at(message.payload)
        self.taken.append((sent, time.time() - sent))
        message.ack()

    def p99(self, begin: float, end: float) -> float:
        """The 99th percentile of `between`."""
        return percentile(self.between(begin, end), 99)

    def between(self, begin: float, end: float) -> list[float]:
        """The latencies of messages that were sent in this time (epoch s), in ms."""
        return [s * 1000 for sent, s in list(self.taken) if begin <= sent < end]

    def first_after(self, moment: float, timeout_s: float) -> float:
        """Milliseconds from a moment until the first message that was sent later was received."""
        deadline = time.monotonic() + timeout_s
        at = len(self.taken)
        while time.monotonic() < deadline:
            for sent, took in self.taken[at:]:
                at += 1
                if sent > moment:
                    return (sent + took - moment) * 1000
            self.check()
            time.sleep(0.002)
        raise LakequeueError(f"No message arrived within {timeout_s:.0f} s of the kill.")

    def check(self) -> None:
        """Raise the error that stopped the sender."""
        if self.failures:
            raise self.failures[0]

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopping.set()
        self._sender.join(30)
        with suppress(LakequeueError):
            self._connection.close()

    def __enter__(self) -> Traffic:
        """Start, the consumers first."""
        self._connection = connect(self._address, client_name="bench-consumer")
        for queue in self._queues:
            consumer = self._connection.consumer(queue, ack_mode="individual", max_backlog=5_000)
            consumer.on_message(self._take)
        self._sender.start()
        return self
