"""The pure-Python transport: kafka-python.

The library's producer has no bound, so this module keeps one. Its consumer belongs to one thread at
a time, so `listen` looks up the end with the admin client and leaves the rest to `poll`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka import errors as kafka_errors
from kafka.admin import OffsetSpec
from kafka.record import util as record_util

from ...protocol.errors import NotConnected
from ...protocol.kafka_settings import authenticated, encrypted, for_kafka_python, kafka_settings
from ..session.transport import Acked, Headers, Record
from . import kafka_bounds as bounds
from .base import LOGGER, KafkaTransport, LibraryLog, no_answer, no_kafka, reach, refused, too_large

_T = TypeVar("_T")
_BATCH_BYTES = 256 * 1024
_FOREVER_MS = 2**31 - 1
_UNKNOWN_TOPIC_CODE = 3
ADMIN_MS_MAX = 10_000
# In pure Python the checksum costs more than everything else (5,000 records/s of 1 KB); with the
# package `crc32c` it costs nothing. A producer must send it; a consumer may rely on TCP's.
_FAST_CHECKSUM = getattr(record_util, "crc32c_c", None) is not None


class KafkaPythonTransport(KafkaTransport):
    """`Transport` on kafka-python. Raises NotConnected (in about 5 s) without Kafka."""

    def __init__(self, bootstrap: str, client_name: str) -> None:
        _quiet()
        deadline = time.monotonic() + bounds.OPEN_SECONDS_MAX
        bootstrap = reach(bootstrap)
        self._shared: dict[str, Any] = {
            **for_kafka_python(kafka_settings()),
            "bootstrap_servers": bootstrap.split(","),
            "client_id": client_name,
            "reconnect_backoff_ms": 50,
            "reconnect_backoff_max_ms": bounds.RECONNECT_MS_MAX,
            "retry_backoff_ms": 100,
        }
        self._room = threading.Condition()
        self._waiting_records = 0
        self._waiting_bytes = 0
        self._full_at = 0.0  # when there was no room, if Kafka has taken nothing since
        self._asking = threading.Lock()
        try:
            with refusals_told(bootstrap):
                self._producer = KafkaProducer(
                    **self._shared,
                    bootstrap_timeout_ms=max(500, int((deadline - time.monotonic()) * 1000)),
                    acks="all",
                    enable_idempotence=True,
                    linger_ms=bounds.LINGER_MS,
                    batch_size=_BATCH_BYTES,
                    compression_type=None,
                    max_request_size=bounds.MESSAGE_BYTES_MAX,
                    max_block_ms=int(bounds.FULL_SECONDS_MAX * 1000),
                    # While Kafka is away no record is given up: the buffer is the bound, not time.
                    delivery_timeout_ms=_FOREVER_MS,
                    allow_auto_create_topics=False,
                    metrics_enabled=False,
                )
        except kafka_errors.KafkaError as error:
            raise no_kafka(bootstrap, _reason_of(error)) from error
        super().__init__(bootstrap, client_name)

    def publish(
        self, topic: str, value: bytes | None, key: bytes | None, headers: Headers,
        partition: int | None = None, acked: Acked | None = None,
    ) -> None:  # fmt: skip
        self._check()
        size = len(value or b"") + 100
        if key is not None:
            size += len(key)
        for name, content in headers:
            size += len(name) + len(content)
        self._take_room(size)
        settled = functools.partial(self._settled, topic, size, acked)
        try:
            future = self._producer.send(topic, value, key, headers, partition)
        except Exception as error:  # the library also asserts; the room is free in any case
            self._give_room(size)
            raise self._refused(topic, len(value or b""), error) from error
        future.add_both(settled)

    def partitions(self, topic: str) -> int:
        self._check()

        def count(admin: Any) -> int:
            found = admin.describe_topics([topic])[0]
            if not found["partitions"]:
                raise kafka_errors.for_code(found["error_code"] or _UNKNOWN_TOPIC_CODE)()
            return len(found["partitions"])

        found = self._ask(f"topic {topic!r}", count)
        # The producer buffers records only for topics it knows. The caller is about to send, so
        # learn the topic now: sending then works even if Kafka goes away before the first record.
        with contextlib.suppress(kafka_errors.KafkaError):
            self._learn_partitions(topic, found)
        return found

    def _learn_partitions(self, topic: str, count: int) -> None:
        """Wait until the producer knows the topic's partitions. It refuses unknown ones, and asks
        Kafka again only after minutes."""
        until = time.monotonic() + bounds.MISSING_SECONDS_MAX
        while len(self._producer.partitions_for(topic)) < count and time.monotonic() < until:
            self._producer._metadata.request_update()
            time.sleep(0.05)

    def flush(self, timeout: float) -> bool:
        self._check()
        with self._room:
            done = self._room.wait_for(lambda: not self._waiting_records, max(0.0, timeout))
        self._raise_failure()
        return done

    def close(self) -> None:
        """See `Transport.close`. Logs how many records did not reach Kafka."""
        if not self._begin_close():
            return
        with self._room:
            if not self._room.wait_for(lambda: not self._waiting_records, bounds.CLOSE_SECONDS_MAX):
                LOGGER.warning(
                    "%d records did not reach Kafka before the connection closed",
                    self._waiting_records,
                )
            left = self._waiting_records
        # Its close would flush first, and if that fails raise without closing anything.
        self._producer.flush = lambda timeout=None: None
        self._producer.close(timeout=0 if left else 1)
        with self._asking:
            if self._admin is not None:
                self._admin.close()
        with self._consuming:
            if self._consumer is not None:
                self._consumer.close(autocommit=False, timeout_ms=1000)
                self._consumer = None

    def _end(self, topic: str, partition: int) -> int:
        place = TopicPartition(topic, partition)
        found = self._ask(
            f"partition {partition} of topic {topic!r}",
            lambda admin: admin.list_partition_offsets(
                {place: OffsetSpec.LATEST}, timeout_ms=int(bounds.ASK_SECONDS_MAX * 1000)
            ),
        )
        return int(found[place].offset)

    def _take_room(self, size: int) -> None:
        with self._room:
            while self._full(size) and not self._closed:
                self._full_at = self._full_at or time.monotonic()
                left_s = self._full_at + bounds.FULL_SECONDS_MAX - time.monotonic()
                if left_s <= 0:
                    raise self._no_room(self._waiting_records)
                self._room.wait(left_s)
            self._waiting_records += 1
            self._waiting_bytes += size

    def _full(self, size: int) -> bool:
        return self._waiting_records > 0 and (
            self._waiting_records >= bounds.BUFFER_RECORDS_MAX
            or self._waiting_bytes + size > bounds.BUFFER_BYTES_MAX
        )

    def _give_room(self, size: int) -> None:
        with self._room:
            full, self._full_at = self._full(0), 0.0
            self._waiting_records -= 1
            self._waiting_bytes -= size
            if full or not self._waiting_records:
                self._room.notify_all()

    def _settled(
        self, topic: str, size: int, acked: Callable[[], None] | None, outcome: object
    ) -> None:
        """Called in the producer's thread: the record was acknowledged or given up."""
        if isinstance(outcome, BaseException) and not self._closed:
            self._lost(topic, _reason_of(outcome))
        self._give_room(size)
        if acked is not None:
            acked()

    def _refused(self, topic: str, value_bytes: int, error: Exception) -> Exception:
        if isinstance(error, kafka_errors.MessageSizeTooLargeError):
            return too_large(value_bytes)
        if isinstance(error, kafka_errors.KafkaTimeoutError):
            return NotConnected(
                f"topic {topic!r} is unknown after {bounds.FULL_SECONDS_MAX:.0f} s: it does not "
                f"exist, or no Kafka broker answers at {self.bootstrap}"
            )
        if isinstance(error, kafka_errors.KafkaError | ValueError):
            return NotConnected(f"topic {topic!r} takes no record: {_reason_of(error)}")
        return error

    def _ask(self, what: str, question: Callable[[Any], _T]) -> _T:
        started = time.monotonic()
        while True:
            try:
                with self._asking:
                    self._check()
                    if self._admin is None:
                        self._admin = KafkaAdminClient(
                            **self._shared,
                            request_timeout_ms=int(bounds.ASK_SECONDS_MAX * 1000),
                            bootstrap_timeout_ms=int(bounds.ASK_SECONDS_MAX * 1000),
                        )
                    return question(self._admin)
            except kafka_errors.UnknownTopicOrPartitionError as error:
                if time.monotonic() - started > bounds.MISSING_SECONDS_MAX:
                    raise NotConnected(
                        f"{what} does not exist in Kafka at {self.bootstrap}"
                    ) from error
            except kafka_errors.KafkaError as error:
                # A new partition has no leader for a moment: broker -1.
                leaderless = isinstance(error, kafka_errors.UnknownBrokerIdError)
                if not error.retriable and not leaderless:
                    raise NotConnected(f"{what} cannot be used: {_reason_of(error)}") from error
                if time.monotonic() - started > bounds.ASK_SECONDS_MAX:
                    raise no_answer(self.bootstrap, f"{what} cannot be looked up") from error
            time.sleep(0.05)

    def _take(self, timeout: float) -> list[Record]:
        """One round of the consumer. Partitions added by `listen` are assigned first."""
        if self._consumer is None:
            self._consumer = self._open_consumer()
        wanted = self._take_wanted()
        if wanted:
            places = [TopicPartition(topic, partition) for topic, partition, _ in wanted]
            self._consumer.assign([*self._consumer.assignment(), *places])
            for place, (_, _, offset) in zip(places, wanted, strict=True):
                self._consumer.seek(place, offset)
        started = time.monotonic()
        try:
            found = self._consumer.poll(int(timeout * 1000), max_records=bounds.POLL_RECORDS_MAX)
        except kafka_errors.UnsupportedCodecError as error:
            raise NotConnected(
                "records cannot be read, their compression needs another package: "
                f"{_reason_of(error)}"
            ) from error
        except kafka_errors.KafkaError as error:
            if not error.retriable:
                raise NotConnected(f"Kafka refuses to be read: {_reason_of(error)}") from error
            # However often it fails, never return faster than asked.
            time.sleep(max(0.0, timeout - (time.monotonic() - started)))
            return []
        return [_record(one) for records in found.values() for one in records]

    def _all(self, topic: str, end: int) -> list[tuple[bytes | None, bytes | None]]:
        found: list[tuple[bytes | None, bytes | None]] = []
        until = time.monotonic() + bounds.ASK_SECONDS_MAX
        consumer, place = self._open_consumer(), TopicPartition(topic, 0)
        try:
            consumer.assign([place])
            consumer.seek(place, 0)
            while consumer.position(place) < end:
                if time.monotonic() > until:
                    raise no_answer(self.bootstrap, f"topic {topic!r} cannot be read")
                for records in consumer.poll(200).values():
                    found += [(record.key, record.value) for record in records]
        except kafka_errors.KafkaError as error:
            raise no_answer(self.bootstrap, f"topic {topic!r} cannot be read") from error
        finally:
            consumer.close(autocommit=False, timeout_ms=1000)
        return found

    def _open_consumer(self) -> Any:
        return KafkaConsumer(
            **self._shared,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",  # skip records deleted before they were read
            isolation_level="read_committed",
            fetch_min_bytes=1,
            fetch_max_wait_ms=bounds.FETCH_WAIT_MS,
            max_partition_fetch_bytes=bounds.FETCH_PARTITION_BYTES_MAX,
            # `poll` counts records only; this bounds its bytes. A larger record still comes.
            fetch_max_bytes=bounds.POLL_BYTES_MAX,
            check_crcs=_FAST_CHECKSUM,
            allow_auto_create_topics=False,
            metrics_enabled=False,
        )

    def _forget(self) -> None:
        super()._forget()
        # At the child's exit the producer would wait for records that the parent sends.
        getattr(self._producer, "_unregister_cleanup", lambda: None)()


@contextlib.contextmanager
def admin_client(bootstrap: str, client_id: str) -> Iterator[Any]:
    """Kafka's administration, closed afterwards. Raises NotConnected if no broker answers."""
    try:
        with refusals_told(bootstrap):
            admin = KafkaAdminClient(
                bootstrap_servers=bootstrap, client_id=client_id,
                bootstrap_timeout_ms=ADMIN_MS_MAX, **for_kafka_python(kafka_settings()),
            )  # fmt: skip
    except kafka_errors.KafkaError as error:
        raise NotConnected(
            f"no Kafka broker answers at {bootstrap} – start it, or name another with --bootstrap"
        ) from error
    try:
        yield admin
    finally:
        admin.close()


@contextlib.contextmanager
def refusals_told(bootstrap: str) -> Iterator[None]:
    """Wraps the making of a kafka-python client: raise NotConnected with the reason if Kafka
    refuses the credentials. The library would retry for its whole timeout and give the reason only
    in its log."""
    heard = _Refusals(logging.WARNING)
    log = logging.getLogger("kafka.net.manager")
    log.addHandler(heard)
    try:
        yield
    except kafka_errors.KafkaError as error:
        settings = kafka_settings()
        if heard.why is None and heard.hung_up and authenticated(settings):
            # Kafka gives the reason, then hangs up, and the library may see the end first. `reach`
            # has checked that it speaks Kafka, unless the connection is encrypted.
            heard.why = None if encrypted(settings) else "it hangs up after receiving them"
        if heard.why is not None:
            raise refused(bootstrap, heard.why) from error
        raise
    finally:
        log.removeHandler(heard)


class _Refusals(logging.Handler):
    """Reads in the library's log why Kafka refuses the credentials."""

    why: str | None = None
    hung_up = False

    def emit(self, record: logging.LogRecord) -> None:
        for part in record.args or ():
            self.hung_up |= isinstance(part, kafka_errors.KafkaConnectionError)
            if isinstance(part, kafka_errors.SaslAuthenticationFailedError):
                self.why = _reason_of(part).rpartition("SaslAuthenticationFailedError: ")[2]


def _record(one: Any) -> Record:
    headers = [(name, content or b"") for name, content in one.headers]
    return Record(
        one.topic, one.partition, one.offset, one.timestamp, one.key, one.value, headers
    )  # fmt: skip


def _reason_of(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__


def _quiet() -> None:
    """Take over kafka-python's log lines, unless the application has set them up itself."""
    log = logging.getLogger("kafka")
    taken = any(not isinstance(handler, logging.NullHandler) for handler in log.handlers)
    if not taken and log.level == logging.NOTSET:
        log.addHandler(LibraryLog())
        log.setLevel(logging.WARNING)
        log.propagate = False
