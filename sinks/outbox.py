"""A step's outputs on their way to Kafka, and which of them have arrived.

Idempotent, acknowledged by all, without an end to trying: while Kafka is away, outputs wait. A
record that Kafka will never take (its topic is gone, it is too large, it is not allowed) is
counted and told, and nobody waits for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from ..protocol.bounds import RECORD_BYTES_MAX
from ..protocol.wire import WireRecord, headers_list
from .log_writer import Stopping

_NEVER = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.INVALID_RECORD,
)


class _Step:
    """The records of a step that are on their way."""

    __slots__ = ("left", "number", "outbox")

    def __init__(self, outbox: Outbox, number: int) -> None:
        self.outbox, self.number, self.left = outbox, number, 0

    def done(self, error: KafkaError | None, message: Any) -> None:
        self.left -= 1
        if error is None:
            return
        if error.code() in _NEVER:
            self.outbox.refused += 1
            self.outbox.notes.append(f"refused:{message.topic()}:{error.str()}")
        else:
            self.outbox.failure = self.outbox.failure or error


LOOK_S = 0.005


class Outbox:
    """Writes outputs; what `driver.OutputWriter` asks for. stop: whether to give up waiting.

    Two threads come here: the one that steps, and the batch's, which waits for what was said.
    """

    def __init__(self, kafka: dict[str, Any], stop: Callable[[], bool]) -> None:
        self._stop = stop
        self._producer = Producer(
            {
                **kafka,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 0,
                "message.timeout.ms": 0,
                "message.max.bytes": RECORD_BYTES_MAX,
                "batch.size": 1_000_000,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 1 << 18,
                "partitioner": "murmur2_random",
            }
        )
        self._steps: deque[_Step] = deque()
        self._lock = threading.Lock()  # callbacks run in whichever thread looks
        self.failure: KafkaError | None = None
        self.notes: list[str] = []
        self.refused = 0
        self.records = 0

    def send(self, step: int, records: Iterable[WireRecord]) -> None:
        """Begin to write a step's outputs."""
        with self._lock:
            self._send(step, records)

    def _send(self, step: int, records: Iterable[WireRecord]) -> None:
        one = _Step(self, step)
        self._steps.append(one)
        produce, done = self._producer.produce, one.done
        for r in records:
            headers: Any = headers_list(r.headers) if r.headers else None
            partition = -1 if r.partition is None else r.partition
            one.left += 1
            self.records += 1
            while True:
                try:
                    produce(r.topic, r.value, r.key, partition, headers=headers, on_delivery=done)
                    break
                except BufferError:
                    self._serve(0.05)
                except KafkaException as error:  # refused on the spot
                    done(error.args[0], _NamedTopic(r.topic))
                    break
        self._serve(0)

    def acked(self) -> int | None:
        """The newest step up to which nothing is on its way; None: nothing is."""
        with self._lock:
            self._serve(0)
            while self._steps and self._steps[0].left == 0:
                self._steps.popleft()
            return self._steps[0].number - 1 if self._steps else None

    def drain(self, step: int) -> None:
        """Wait until everything up to this step is in Kafka."""
        while (acked := self.acked()) is not None and acked < step:
            if self._stop():
                self._producer.flush(2.0)
                if (acked := self.acked()) is not None and acked < step:
                    raise Stopping("Kafka does not take the outputs")
            time.sleep(LOOK_S)

    def _serve(self, timeout_s: float) -> None:
        self._producer.poll(timeout_s)
        if self.failure is not None:
            raise KafkaException(self.failure)


class _NamedTopic:
    """What a delivery report would say of a record."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def topic(self) -> str:
        return self._topic
