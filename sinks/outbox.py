"""Sends steps' outputs to Kafka, and tracks which have arrived.

The producer is idempotent, waits for all replicas and never stops trying: outputs wait while Kafka
is unreachable. A record that Kafka refuses permanently (no topic, too large, not allowed) is
counted and reported, and nothing waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from ..protocol.bounds import RECORD_BYTES_MAX
from ..protocol.commands import Command, RecordRefused, Returned
from ..protocol.ids import format_ranges
from ..protocol.once_a_minute import OnceAMinute
from ..protocol.record_splitting import delivered, fitting, halves
from ..protocol.wire import WireRecord, headers_list
from .log_writer import Stopping
from .record_limits import instruction, limits_of, refusal, undeliverable

log = logging.getLogger("lakequeue.loop")

# Kafka refuses this record itself, or another one in the same batch.
_OF_RECORD = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError._INVALID_DIFFERENT_RECORD,
)
_OF_SIZE = _OF_RECORD[:3]
_NEVER = (
    *_OF_RECORD,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_EXCEPTION,
)
RETURN_S = 1.0
NARROW_S = 60.0  # for this long, records for a topic are sent alone after it refused one


@dataclass(slots=True)
class _Step:
    """A step, and how many of its records are in transit."""

    number: int
    left: int = 0


@dataclass(slots=True)
class _NarrowTopic:
    """A topic that refused a record. limit: its `max.message.bytes`, None if unknown."""

    until: float
    limit: int | None


LOOK_S = 0.005
_errors = OnceAMinute()  # of this process


def log_error(error: KafkaError) -> None:
    """Log an error of Kafka's client, once a minute."""
    if _errors.first(error.code()):
        log.warning("Kafka: %s", error.str())


class Outbox:
    """Writes outputs, as a `driver.OutputWriter`. stop: returns whether to give up waiting.
    instructions: the topic in which the broker gets reports of refused records.

    Kafka refuses a whole batch because of one record. So a refused record is sent again alone, and
    in halves while it is larger than the topic allows. If Kafka refuses it then, it always will.
    For a delivery, the broker then gets the ids of the messages that cannot be sent; otherwise it
    would send them again after each lease.

    A delivery whose topic is missing never reached its client, so it was not an attempt (L5). The
    outbox returns its messages to the broker, once in `RETURN_S`, or the broker would send them
    again and again. A refused repetition is not returned: the first delivery may have arrived.

    Two threads use it: the one that runs steps, and the batch's, which waits for the outputs.
    """

    def __init__(
        self, kafka: dict[str, Any], stop: Callable[[], bool], instructions: str = ""
    ) -> None:
        self._stop = stop
        self._kafka, self._instructions = kafka, instructions
        self._wide = self._make_producer({"error_cb": log_error})
        self._alone: Producer | None = None
        self._narrow: dict[str, _NarrowTopic] = {}
        self._back: deque[tuple[_Step, WireRecord, KafkaError, bool]] = deque()
        self._logged, self._told = OnceAMinute(), OnceAMinute()  # lines of the log; events
        # Messages that never reached their clients, by inbox, queue and subscription.
        self._unseen: dict[tuple[str, str, str], list[int]] = {}
        self._returned = float("-inf")
        self._steps: deque[_Step] = deque()
        self._lock = threading.Lock()  # callbacks run in the thread that polls
        self.failure: KafkaError | None = None
        self.notes: list[str] = []
        self.refused = 0
        self.records = 0

    def _make_producer(self, more: dict[str, Any]) -> Producer:
        return Producer(
            {
                **self._kafka,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 0,
                "message.timeout.ms": 0,
                "message.max.bytes": RECORD_BYTES_MAX,
                "batch.size": 1_000_000,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 1 << 18,
                "partitioner": "murmur2_random",
                **more,
            }
        )

    def send(self, step: int, records: Iterable[WireRecord]) -> None:
        """Begin to write a step's outputs. `acked` reports when they have arrived."""
        with self._lock:
            one = _Step(step)
            self._steps.append(one)
            for record in records:
                self._send(one, record)
                if record.instead_of is not None:
                    self._note_unseen(record.instead_of)

    def _send(self, one: _Step, record: WireRecord) -> None:
        narrow = self._narrow.get(record.topic) if self._narrow else None
        if narrow is None:
            self._produce(self._wide, one, record)
        elif time.monotonic() < narrow.until:
            # not split at first, because the limit may have been raised
            self._send_alone(one, record, None)
        else:  # its limit may have been raised again
            del self._narrow[record.topic]
            self._produce(self._wide, one, record)

    def _send_alone(self, one: _Step, record: WireRecord, limit: int | None) -> None:
        """Send a record alone, in parts that fit if it can be split."""
        if self._alone is None:
            self._alone = self._make_producer({"batch.num.messages": 1})
        for part in fitting(record, limit):
            self._produce(self._alone, one, part)

    def _produce(self, producer: Producer, one: _Step, record: WireRecord) -> None:
        headers: Any = headers_list(record.headers) if record.headers else None
        partition = -1 if record.partition is None else record.partition
        done = partial(self._done, one, record, producer is self._alone)
        one.left += 1
        self.records += 1
        while True:
            try:
                producer.produce(
                    record.topic, record.value, record.key, partition, headers=headers,
                    on_delivery=done,
                )  # fmt: skip
                return
            except BufferError:
                self._serve(0.05)
            except KafkaException as error:  # refused immediately
                self._done(one, record, True, error.args[0], None)
                return

    def _done(
        self, one: _Step, record: WireRecord, alone: bool, error: KafkaError | None, message: Any
    ) -> None:
        if error is None:
            one.left -= 1
        elif error.code() in _NEVER:
            self._back.append((one, record, error, alone))
        else:
            one.left -= 1
            self.failure = self.failure or error

    def _send_back(self) -> None:
        """Send a refused record once more, or report it to the broker."""
        while self._back:
            one, record, error, alone = self._back.popleft()
            if not alone and error.code() in _OF_RECORD:
                self._send_alone(one, record, self._narrow_of(record.topic, error).limit)
            elif error.code() in _OF_SIZE and (parts := halves(record)):
                limit = self._narrow_of(record.topic, error).limit
                for part in parts:
                    self._send_alone(one, part, limit)
            else:
                self._report_refused(one, record, error)
            one.left -= 1
        if self._unseen and time.monotonic() - self._returned >= RETURN_S:
            self._return_unseen()

    def _note_unseen(self, record: WireRecord) -> None:
        found = delivered(record) if self._instructions else None
        if found is not None and found.is_first:
            place = record.topic, found.queue, found.subscription
            self._unseen.setdefault(place, []).extend(found.ids)

    def _return_unseen(self) -> None:
        self._returned = time.monotonic()
        unseen, self._unseen = self._unseen, {}
        for (topic, queue, subscription), ids in unseen.items():
            command = Returned(queue=queue, subscription=subscription, ids=format_ranges(ids))
            self._produce(self._wide, _Step(0), instruction(self._instructions, topic, command))

    def _narrow_of(self, topic: str, error: KafkaError) -> _NarrowTopic:
        now = time.monotonic()
        known = self._narrow.get(topic)
        if known is None or now >= known.until:
            of_size = error.code() in _OF_SIZE
            # None if Kafka does not report it; then records are halved until they fit.
            limit = limits_of(self._kafka, [topic]).get(topic) if of_size else None
            known = self._narrow[topic] = _NarrowTopic(now + NARROW_S, limit)
        return known

    def _report_refused(self, one: _Step, record: WireRecord, error: KafkaError) -> None:
        self.refused += 1
        if self._logged.first(record.topic):
            self.notes.append(f"refused:{record.topic}:{error.str()}")
        if not self._instructions:
            return
        size = error.code() in _OF_SIZE
        known = self._narrow.get(record.topic)
        limit = known.limit if size and known is not None else None
        why = refusal(record, error.str(), limit)
        command: Command | None = None
        if error.code() in _OF_RECORD:
            command = undeliverable(record, why, size)
        else:
            self._note_unseen(record)
        if command is None and self._told.first(record.topic):
            command = RecordRefused(topic=record.topic, why=why)
        if command is not None and record.topic != self._instructions:
            report = instruction(self._instructions, record.topic, command)
            self._produce(self._wide, one, report)

    def acked(self) -> int | None:
        """The newest step up to which all outputs are in Kafka; None if no output is in transit."""
        with self._lock:
            self._serve(0)
            self._send_back()
            while self._steps and self._steps[0].left == 0:
                self._steps.popleft()
            return self._steps[0].number - 1 if self._steps else None

    def drain(self, step: int) -> None:
        """Wait until everything up to this step is in Kafka."""
        while (acked := self.acked()) is not None and acked < step:
            if self._stop():
                self._wide.flush(2.0)
                if self._alone is not None:
                    self._alone.flush(2.0)
                if (acked := self.acked()) is not None and acked < step:
                    raise Stopping("Kafka does not accept the outputs")
            time.sleep(LOOK_S)

    def close(self) -> None:
        """Drop outputs in transit; the next loop sends them again. Kafka's client keeps a reference
        to the outbox for each record, so neither would ever be freed."""
        for producer in filter(None, (self._wide, self._alone)):
            producer.purge()
            producer.poll(0)

    def _serve(self, timeout_s: float) -> None:
        if self._alone is not None:
            self._alone.poll(0)
        self._wide.poll(timeout_s)
        if self.failure is not None:
            raise KafkaException(self.failure)
