"""The fast transport: confluent-kafka (librdkafka, C).

A daemon thread serves the producer's delivery reports; librdkafka only frees the place in its
queue when somebody collects them. The consumer is only touched inside `poll`.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from ...protocol.errors import NotConnected
from ...protocol.kafka_headers import headers_of
from ...protocol.kafka_settings import OLD_LEADER, kafka_settings
from ..session.transport import Acked, Headers, Record
from . import kafka_bounds as bounds
from .base import LOGGER, KafkaTransport, LibraryLog, no_answer, no_kafka, reach, refused
from .producer_buffer import ProducerBuffer

_T = TypeVar("_T")
_CHUNK_RECORDS = 500
_WATCH_SECONDS = 3.0
_LOOK_SECONDS = 1.0
_TRY_SECONDS = 1.0
_FAILED_SECONDS = 0.2
_MISSING = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)
_AWAY = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN)
# Any other error may pass in a moment: a topic that was just made, a broker that just started.
_FINAL = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError._AUTHENTICATION,
    KafkaError._INVALID_ARG,
)

_log = logging.Logger("librdkafka", logging.WARNING)  # on its own, not in the tree of loggers
_log.addHandler(LibraryLog())


class Refusal:
    """Takes the errors of a client. why: why Kafka refuses its credentials; empty if it does
    not."""

    why = ""

    def __call__(self, error: KafkaError) -> None:
        if error.code() == KafkaError._AUTHENTICATION:
            said = error.str().partition("error: ")[2] or error.str()
            self.why = said.partition(" (after")[0]


def first_error(producer: Producer, refusal: Refusal, deadline: float) -> KafkaException | None:
    """Wait until Kafka answers, refuses the credentials, or the deadline has passed. Returns the
    last error; None for an answer."""
    while True:
        left = max(0.5, deadline - time.monotonic())
        try:
            producer.list_topics(timeout=min(left, _TRY_SECONDS))
            return None
        except KafkaException as error:
            producer.poll(0)  # calls `refusal`
            if refusal.why or time.monotonic() >= deadline:
                return error


class ConfluentTransport(KafkaTransport):
    """`Transport` on confluent-kafka. Raises NotConnected within about 5 s when Kafka is away."""

    def __init__(self, bootstrap: str, client_name: str) -> None:
        deadline = time.monotonic() + bounds.OPEN_SECONDS_MAX
        bootstrap = reach(bootstrap)
        self._shared: dict[str, Any] = {
            **kafka_settings(),
            "bootstrap.servers": bootstrap,
            "client.id": client_name,
            "allow.auto.create.topics": False,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": bounds.RECONNECT_MS_MAX,
            "socket.nagle.disable": True,
            "socket.keepalive.enable": True,
            "log.connection.close": False,
            "log_level": 4,
        }
        self._refusal = Refusal()
        self._producer = Producer(
            {
                **self._shared,
                "error_cb": self._refusal,
                "enable.idempotence": True,  # implies acks=all, order and endless retries
                "acks": "all",
                "linger.ms": bounds.LINGER_MS,
                "compression.type": "none",  # every client can read it, also kafka-python
                "message.max.bytes": bounds.MESSAGE_BYTES_MAX,
                # `ProducerBuffer` keeps the bound; these are never reached.
                "queue.buffering.max.messages": 2 * bounds.BUFFER_RECORDS_MAX,
                "queue.buffering.max.kbytes": 2 * bounds.BUFFER_BYTES_MAX // 1024,
                # While Kafka is away no record is given up: the buffer is the bound, not time.
                "message.timeout.ms": 0,
                "topic.metadata.propagation.max.ms": int(bounds.FULL_SECONDS_MAX * 1000),
                "partitioner": "murmur2_random",  # as Java and kafka-python
            },
            logger=_log,
        )
        self._over = ProducerBuffer(self._producer, _weakly(self._lost))
        # Used by `poll` only: each partition's next offset, and the watch for a stalled consumer.
        self._next: dict[tuple[str, int], int] = {}
        self._asked: dict[TopicPartition, Any] = {}
        self._asked_next: dict[tuple[str, int], int] = {}
        self._look_at = 0.0
        self._helped: dict[tuple[str, int], int] = {}
        self._stop = threading.Event()
        super().__init__(bootstrap, client_name)
        self._require_answer(deadline)
        self._server = threading.Thread(
            target=_serve, args=(self._producer, self._stop), name="lakequeue-kafka", daemon=True
        )
        self._server.start()
        # A transport dropped without close() must not leave its thread behind. At the process's end
        # the thread goes on: code that closes connections there waits for its reports.
        weakref.finalize(self, self._stop.set).atexit = False

    def _require_answer(self, deadline: float) -> None:
        """Raise NotConnected unless Kafka answers, and accepts our credentials, by the deadline."""
        error = first_error(self._producer, self._refusal, deadline)
        if error is not None:
            self._closed = True
            if self._refusal.why:
                raise refused(self.bootstrap, self._refusal.why) from error
            raise no_kafka(self.bootstrap, _reason_of(error)) from error

    def publish(
        self, topic: str, value: bytes | None, key: bytes | None, headers: Headers,
        partition: int | None = None, acked: Acked | None = None,
    ) -> None:  # fmt: skip
        self._check()
        place = -1 if partition is None else partition
        try:
            while not self._over.give(topic, value, key, place, headers, acked):
                full_at = self._over.full_at
                if full_at and time.monotonic() > full_at + bounds.FULL_SECONDS_MAX:
                    raise self._no_room(self._over.records)
                time.sleep(0.002)
                self._check()
        except KafkaException as error:
            text = f"topic {topic!r} takes no record: {_reason_of(error)}"
            raise NotConnected(text) from error

    def partitions(self, topic: str) -> int:
        self._check()

        def count(seconds: float) -> int:
            found = self._producer.list_topics(topic, timeout=seconds).topics[topic]
            if not found.partitions:
                raise KafkaException(found.error or KafkaError(KafkaError._UNKNOWN_TOPIC))
            return len(found.partitions)

        return self._ask(f"topic {topic!r}", count)

    def flush(self, timeout: float) -> bool:
        self._check()
        done = self._over.flush(max(0.0, timeout))
        self._raise_failure()
        return done

    def close(self) -> None:
        """See `Transport.close`. Logs how many records did not reach Kafka."""
        if not self._begin_close():
            return
        if not self._over.flush(bounds.CLOSE_SECONDS_MAX):
            left = self._over.give_up()
            LOGGER.warning("%d records did not reach Kafka before the connection closed", left)
        self._stop.set()
        self._server.join(2.0)
        with self._consuming:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None

    def _end(self, topic: str, partition: int) -> int:
        if partition >= self.partitions(topic):
            raise NotConnected(
                f"partition {partition} of topic {topic!r} does not exist in Kafka at "
                f"{self.bootstrap}"
            )
        place = TopicPartition(topic, partition)

        def end(seconds: float) -> int:
            # Not the consumer's get_watermark_offsets: with 2.16.1 it never returns, whatever its
            # timeout, while another thread polls the same consumer.
            latest = {place: OffsetSpec.latest()}
            asked = self._lookup().list_offsets(latest, request_timeout=seconds)
            try:
                return int(asked[place].result(seconds + 1).offset)
            except KafkaException as error:
                self._renew_leaders(error)
                raise

        return self._ask(f"partition {partition} of topic {topic!r}", end)

    def _renew_leaders(self, error: BaseException) -> bool:
        """Ask for the topics, if a question went to a former leader; returns whether it did."""
        if not isinstance(error, KafkaException) or error.args[0].code() not in OLD_LEADER:
            return False
        with suppress(KafkaException):
            self._lookup().list_topics(timeout=_TRY_SECONDS)
        return True

    def _lookup(self) -> AdminClient:
        with self._listening:
            if self._admin is None:
                self._admin = AdminClient(self._shared, logger=_log)
            return self._admin

    def _open_consumer(self, tells_ends: bool = False) -> Consumer:
        return Consumer(
            {
                **self._shared,
                # librdkafka requires a name; nothing joins a group or commits.
                "group.id": self.client_name or "lakequeue",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",  # skip records deleted before they were read
                "isolation.level": "read_committed",
                "fetch.min.bytes": 1,
                "fetch.wait.max.ms": bounds.FETCH_WAIT_MS,
                "max.partition.fetch.bytes": bounds.FETCH_PARTITION_BYTES_MAX,
                "fetch.max.bytes": 2 * bounds.FETCH_PARTITION_BYTES_MAX,
                "fetch.error.backoff.ms": 100,
                "queued.max.messages.kbytes": 2 * bounds.FETCH_PARTITION_BYTES_MAX // 1024,
                # If its queue is full, librdkafka would look again only after 1 s: a gap in the
                # stream.
                "fetch.queue.backoff.ms": 2,
                "enable.partition.eof": tells_ends,
            },
            logger=_log,
        )

    def _all(self, topic: str, end: int) -> list[tuple[bytes | None, bytes | None]]:
        found: list[tuple[bytes | None, bytes | None]] = []
        until = time.monotonic() + bounds.ASK_SECONDS_MAX
        consumer = self._open_consumer(tells_ends=True)
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            at = 0
            while at < end:
                message = consumer.poll(max(0.0, until - time.monotonic()))
                if message is None:
                    raise no_answer(self.bootstrap, f"topic {topic!r} cannot be read")
                error = message.error()
                if error is None:
                    found.append((message.key(), message.value()))
                    at = (message.offset() or 0) + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    break  # the last record was deleted
        finally:
            consumer.close()
        return found

    def _take(self, timeout: float) -> list[Record]:
        if self._consumer is None:
            self._consumer = self._open_consumer()
        wanted = self._take_wanted()
        if wanted:
            self._next.update({(topic, partition): at for topic, partition, at in wanted})
            self._consumer.incremental_assign([TopicPartition(*place) for place in wanted])
        first = self._consumer.poll(timeout)  # consume(n) would wait for n records
        if first is None:
            self._watch()
            return []
        records: list[Record] = []
        size = _collect([first], records)
        while len(records) < bounds.POLL_RECORDS_MAX and size < bounds.POLL_BYTES_MAX:
            mean = size // (len(records) or 1) + 1
            count = min(_CHUNK_RECORDS, max(1, (bounds.POLL_BYTES_MAX - size) // mean))
            more = self._consumer.consume(count, 0)
            size += _collect(more, records)
            if len(more) < count:
                break
        # Records come in order, so the last one of a partition counts.
        self._next.update({(r.topic, r.partition): r.offset + 1 for r in records})
        return records

    def _watch(self) -> None:
        """Replace a consumer that has stalled although there is something to read.

        Seen once in 13 runs of three broker restarts, with librdkafka 2.16.0: it stopped fetching
        without an error. So a transport that has received nothing looks at the partitions' ends
        every 3 s. Records that were there at one look and have not come by the next are fetched
        with a new consumer, from the next offset. Once per end, because only transaction markers
        may be left, which no reader gets. A recreated topic, which ends before the next offset, is
        read from its beginning.
        """
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _WATCH_SECONDS
        stuck = False
        for place, answer in self._asked.items():
            key = (place.topic, place.partition)
            if not answer.done():
                continue
            if (error := answer.exception()) is not None:
                if self._renew_leaders(error):
                    break
                continue
            end, mine = answer.result().offset, self._next[key]
            if mine == self._asked_next[key] and mine != end != self._helped.get(key):
                self._helped[key] = end
                stuck = True
                if end < mine:
                    self._next[key] = 0  # the topic was deleted and recreated
        if stuck and self._consumer is not None:
            LOGGER.warning("the Kafka consumer has stalled; a new one takes over")
            self._consumer.close()
            self._consumer = self._open_consumer()
            self._consumer.incremental_assign(
                [TopicPartition(*key, offset) for key, offset in self._next.items()]
            )
        self._asked_next = dict(self._next)
        places = {TopicPartition(*key): OffsetSpec.latest() for key in self._next}
        # Not longer: for this long librdkafka retries a dead leader 4,000 times a second.
        self._asked = dict(self._lookup().list_offsets(places, request_timeout=_LOOK_SECONDS))

    def _ask(self, what: str, question: Callable[[float], _T]) -> _T:
        started = time.monotonic()
        while True:
            passed = time.monotonic() - started
            try:
                return question(max(0.1, bounds.ASK_SECONDS_MAX - passed))
            except KafkaException as error:
                code = error.args[0].code()
                passed = time.monotonic() - started
                if code in _MISSING:
                    if passed > bounds.MISSING_SECONDS_MAX:
                        raise NotConnected(
                            f"{what} does not exist in Kafka at {self.bootstrap}"
                        ) from error
                elif code in _AWAY:
                    if passed > bounds.ASK_SECONDS_MAX:
                        raise no_answer(self.bootstrap, f"{what} cannot be looked up") from error
                elif passed > bounds.ASK_SECONDS_MAX or code in _FINAL:
                    raise NotConnected(f"{what} cannot be used: {_reason_of(error)}") from error
            self._check()
            time.sleep(0.05)


def _collect(messages: list[Any], records: list[Record]) -> int:
    """Append data records; returns their bytes. Errors are logged, because librdkafka retries by
    itself."""
    size = 0
    for message in messages:
        error = message.error()
        if error is not None:
            _log.warning("%s [%s]: %s", message.topic(), message.partition(), error.str())
            continue
        key, value = message.key(), message.value()
        try:
            headers = headers_of(message)
        except ValueError as problem:  # not a record of the engine
            _log.warning("%s [%s] @ %s: %s", *_place(message), problem)
            continue
        size += 100 + (len(value) if value is not None else 0)
        pairs = [(name, content or b"") for name, content in headers]
        records.append(Record(*_place(message), message.timestamp()[1], key, value, pairs))
    return size


def _place(message: Any) -> tuple[str, int, int]:
    return message.topic(), message.partition(), message.offset()


def _serve(producer: Producer, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            producer.poll(0.2)
        except Exception:  # a callback's: this thread must go on
            LOGGER.exception("a callback for a delivered record failed")
            stop.wait(_FAILED_SECONDS)


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Call a method through a weak reference. The producer lives in a thread, and a strong
    reference would keep the transport for ever."""
    reference = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        target = reference()
        if target is not None:
            target(*arguments)

    return call


def _reason_of(error: KafkaException | KafkaError | None) -> str:
    cause = error.args[0] if isinstance(error, KafkaException) else error
    return cause.str() if isinstance(cause, KafkaError) else str(cause)
