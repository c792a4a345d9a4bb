"""Writes the log of steps, which fences earlier workers of the same broker.

The producer is transactional, with one open transaction for about a batch. Its only purpose is the
fence; readers read the log uncommitted. When a new worker opens the log, it raises the producer's
epoch, and Kafka then refuses records of the earlier worker. A step's outputs are sent only after
Kafka has its record. So a worker that was cut off or frozen can never send outputs that are not in
the log.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException, Producer

from ..protocol.bounds import RECORD_BYTES_MAX
from ..protocol.errors import LakequeueError

OPEN_S_MAX = 30.0
# A transaction stays open for a batch. Its timeout allows for three more batches, for the commit
# and for a machine that freezes, within these bounds.
MARGIN_S_MIN, MARGIN_S_MAX = 30.0, 90.0
# If Kafka accepted a record this recently (seconds), this worker still owns the log. Ending a
# transaction proves that too, but stops the steps for some tens of milliseconds.
RECENT_S = 0.5


class Stopping(LakequeueError):
    """The engine stops while Kafka does not answer. Unwritten steps are computed again at the next
    start."""


def transaction_s(batch_s: float) -> float:
    """The longest time that a transaction of the log may be open."""
    return batch_s + min(max(3 * batch_s, MARGIN_S_MIN), MARGIN_S_MAX)


class StepLog:
    """The log of one broker, for the worker that opened it last. stop: returns whether to give up
    waiting. batch_s: the usual duration of a transaction."""

    def __init__(
        self, kafka: dict[str, Any], topic: str, stop: Callable[[], bool], batch_s: float = 30.0
    ) -> None:
        self._topic = topic
        self._stop = stop
        self._batch_s = batch_s
        # when the transaction began; when Kafka last accepted a record
        self._begun = self._took = float("-inf")
        self._producer = Producer(
            {
                **kafka,
                "transactional.id": f"lakequeue-{topic}",
                "transaction.timeout.ms": int(transaction_s(batch_s) * 1000),
                "acks": "all",
                "linger.ms": 0,
                "message.max.bytes": RECORD_BYTES_MAX,
            }
        )
        # This fences any other worker that still runs the broker. If that worker died with an open
        # transaction, Kafka's client needs half a second, so a thread does it.
        self._fencing = threading.Thread(target=self._fence, name="lakequeue-fence", daemon=True)
        self._failure: BaseException | None = None
        self._fencing.start()
        self._delivered: deque[tuple[Any, Any]] = deque()

    def _fence(self) -> None:
        try:
            self._producer.init_transactions(OPEN_S_MAX)
        except BaseException as error:  # raised by `fenced`
            self._failure = error

    def fenced(self) -> None:
        """Wait until no other worker can write here. Raises Kafka's error."""
        self._fencing.join()
        if self._failure is not None:
            raise self._failure

    def begin(self) -> None:
        """Begin a transaction."""
        self.fenced()
        self._producer.begin_transaction()
        self._begun = time.monotonic()

    def append(self, value: bytes) -> None:
        """Begin to write a record. Also called before the loop runs steps, if a replayed step
        fails."""
        if self._begun == float("-inf"):
            self.begin()
        keep = self._delivered.append  # not through `self`: the client refers to it, see `Outbox`
        self._producer.produce(self._topic, value, None, 0, on_delivery=lambda *one: keep(one))

    def written(self, timeout_s: float) -> list[int]:
        """Offsets of the records that were written since the last call, in order. Waits at most
        ``timeout_s`` for one, and gives up sooner if the engine stops."""
        if not self._delivered:
            self._producer.poll(timeout_s)
        if timeout_s and not self._delivered and self._stop():
            self._producer.poll(1.0)
            if not self._delivered:
                raise Stopping("the log of steps does not answer")
        offsets = []
        while self._delivered:
            error, message = self._delivered.popleft()
            if error is not None:
                raise KafkaException(error)
            offsets.append(message.offset())
        if offsets:
            self._took = time.monotonic()
        return offsets

    def mark(self) -> None:
        """End the transaction for a snapshot of everything written. Raises if this worker was
        fenced: the snapshot must not be saved. A busy broker may have several marks in one
        transaction."""
        now = time.monotonic()
        if now - self._took > RECENT_S or now - self._begun >= self._batch_s:
            self.commit()
            self.begin()

    def commit(self) -> None:
        """End the transaction."""
        until = time.monotonic() + OPEN_S_MAX
        while True:
            try:
                self._producer.commit_transaction(1.0)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > until:
                    raise
                if self._stop():
                    raise Stopping("the log of steps does not answer") from error
