"""The Kafka of the home at the other end of a bridge: its topics, its answers, its identity (H1).

Each problem is reported in one sentence: Kafka does not answer or refuses the credentials, the home
there does not expect the bridge, or it is this home itself.
"""

from __future__ import annotations

import json
import time
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from ...client.kafka.confluent import Refusal, first_error
from ...definitions.bridge import BridgeDefinition, FarAddress
from ...protocol import NotConnected, topics
from ...protocol.bounds import RECORD_BYTES_MAX

_AWAY = (
    KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT,
    KafkaError._PARTITION_EOF,
)  # fmt: skip
READER = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "fetch.wait.max.ms": 100,
    "fetch.message.max.bytes": 1_000_000,
    "queued.max.messages.kbytes": 16_000,
}
WRITER = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 1,
    "message.max.bytes": RECORD_BYTES_MAX,
}
WAIT_S = 0.02
CHUNK = 500
ANSWER_S_MAX = 10.0
SENT_MS_MAX = 30_000
BROKER_PREFIX = b"broker/"


class FarHome:
    """One attempt of a bridge to reach the other home. kafka: how to reach its Kafka. epoch: the
    near home's. number: the far broker's, in its home."""

    def __init__(
        self, kafka: dict[str, Any], bridge: BridgeDefinition, address: FarAddress, epoch: int
    ) -> None:
        self._refusal = Refusal()
        self._kafka = {**kafka, "error_cb": self._refusal}
        self._bridge, self._address, self._epoch = bridge, address, epoch
        self._vpn = address.vpn or bridge.vpn
        self._lost: list[KafkaError] = []
        self.number = 0

    def __enter__(self) -> FarHome:
        given = {**self._kafka, **WRITER, "message.timeout.ms": SENT_MS_MAX}
        self._writer = Producer(given)
        self._reader: Consumer | None = None
        try:
            self._require_answer()
            group = "lakequeue-bridge"  # asked for, and not used
            self._reader = Consumer({**self._kafka, **READER, "group.id": group})
            self._look()
        except BaseException:  # else the clients' threads live on
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.purge()
        if self._reader is not None:
            self._reader.close()
        # they hold a reference to us (`_delivered`), so their threads would live on
        del self._writer, self._reader

    def _error(self, why: str) -> NotConnected:
        return NotConnected(f"{self._bridge.to}: {why}")

    def _require_answer(self) -> None:
        error = first_error(self._writer, self._refusal, time.monotonic() + ANSWER_S_MAX)
        if error is None:
            return
        name, why = self._bridge.credentials, self._refusal.why
        if why:
            what = f"refuses the credentials {name!r}" if name else "asks for credentials"
            raise self._error(f"{what} – {why}") from error
        asks = "" if name else ", or it asks for credentials"
        raise self._error(f"no Kafka answers there{asks} ({error.args[0].str()})") from error

    def _look(self) -> None:
        """Find out which home it is, and whether it has the bridge's topics."""
        known = self._brokers()
        if self._vpn == self._bridge.vpn and any(
            about.get("epoch") == self._epoch for about in known.values()
        ):
            raise self._error("is this home itself")
        if self._address.broker is not None:
            if self._address.broker not in known:
                there = ", ".join(map(repr, sorted(known))) or "none"
                raise self._error(f"has no broker {self._address.broker!r}; it has {there}")
            self.number = int(known[self._address.broker]["number"])
        self._topic_in = topics.topic(self._vpn, topics.BRIDGE_IN)
        self._place = topics.bridge_partition(self.number)
        self._answers = topics.topic(self._vpn, topics.BRIDGE_ANSWERS)
        for name in (self._topic_in, self._answers):
            there = self._writer.list_topics(name, timeout=ANSWER_S_MAX).topics[name]
            if there.error is not None or len(there.partitions) <= self._place:
                raise self._error(
                    f"has no topic {name!r} for us: define bridge {self._bridge.name!r} there, "
                    "with an address as its `from`, and let these credentials see the topic"
                )

    def _brokers(self) -> dict[str, dict[str, Any]]:
        """The far home's brokers, from its directory; none if reading it is not allowed."""
        assert self._reader is not None
        place = TopicPartition(topics.topic(self._vpn, topics.DIRECTORY), 0)
        found: dict[str, dict[str, Any]] = {}
        try:
            end = self._reader.get_watermark_offsets(place, ANSWER_S_MAX)[1]
            place.offset = OFFSET_BEGINNING
            self._reader.assign([place])
            until = time.monotonic() + ANSWER_S_MAX
            while time.monotonic() < until:
                (at,) = self._reader.position([place])
                if at.offset >= end or end == 0:
                    break
                message = self._reader.poll(WAIT_S)
                if message is None:
                    continue
                if message.error() is not None:
                    raise KafkaException(message.error())
                key, value = message.key() or b"", message.value()
                if key.startswith(BROKER_PREFIX) and value:
                    found[key.removeprefix(BROKER_PREFIX).decode()] = json.loads(value)
        except KafkaException:
            if self._address.broker is not None:
                raise
        return found

    # ------------------------------------------------------------ records

    def listen(self, offset: int) -> None:
        """Read answers from here on."""
        assert self._reader is not None
        self._reader.assign([TopicPartition(self._answers, self._place, offset)])

    def bring(self, value: bytes) -> None:
        """Send a record to the far end."""
        key = self._bridge.name.encode()
        while True:
            try:
                self._writer.produce(self._topic_in, value, key, self._place,
                                     on_delivery=self._delivered)  # fmt: skip
                return
            except BufferError:
                self._writer.poll(WAIT_S)
                self.poll()

    def answers(self) -> list[Any]:
        """The records that have come."""
        assert self._reader is not None
        return taken(self._reader)

    def poll(self) -> None:
        """Raise KafkaException or LakequeueError if a record did not arrive."""
        self._writer.poll(0)
        if self._lost:
            raise self._error(f"took no record ({self._lost[0].str()}); all are copied again")

    def _delivered(self, error: KafkaError | None, _: Any) -> None:
        if error is not None:
            self._lost.append(error)


def taken(consumer: Consumer, wait_s: float = WAIT_S) -> list[Any]:
    """The records that came, or none after a while. Raises KafkaException for a lasting error."""
    first = consumer.poll(wait_s)
    if first is None:
        return []
    found = [first, *consumer.consume(CHUNK, 0)]
    for message in found:
        error = message.error()
        if error is not None and error.code() not in _AWAY:
            raise KafkaException(error)
    return [message for message in found if message.error() is None]
