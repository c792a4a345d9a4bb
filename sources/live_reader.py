"""One Kafka consumer with a thread that reads ahead into memory, up to a limit.

`read_ahead` decides the order in which steps get the records. Partitions that must not be fetched
yet are paused in Kafka's client: topics that wait for others, partitions with much in memory while
there is no room, and slow ones (`input_pace`) with enough in memory.

Only the reader's own thread calls Kafka's client, since a call may block for ever while another
thread polls (librdkafka 2.16). So this thread also checks a partition that has changed (`_doubts`),
and `same_topic` decides where it continues.

In a recreated topic Kafka's client silently continues at the old offset. Other programs recreate
their topics as they like, so their records are taken in only once the topic's id, asked for after
they came, is still the known one (`_prove`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from ..protocol.once_a_minute import OnceAMinute
from .read_ahead import ReadAhead
from .same_topic import Found, Start, go_on
from .step_batch import PartitionId, size_of

log = logging.getLogger("lakequeue.loop")

CHUNK_RECORDS = 500
# The bytes of a fetch from each partition, and of the consumer's own queue. Small, because that
# queue is in order of arrival, and `ReadAhead` should decide the order.
FETCH_BYTES = 1_000_000
POLL_S = 1.0
HOLDING_S = 0.02  # a reader notices within this time that paused partitions are wanted
# after this time without room, partitions with much in memory are paused, and others continue
FULL_S = 0.1
SLOW_SHARE = 4  # slow partitions together get one part in this many of the room
DOUBT_S, DRAINED_S = 1.0, 0.05  # between two checks of a partition in doubt
PROVE_S, PROVE_AGAIN_S = 0.005, 0.1  # between two looks at topics' ids; after one without an answer
_AWAY = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT)

# Kafka has no such offset or topic: retention deleted the records, or the topic was deleted,
# created again or truncated.
_DOUBTS = (
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError._LOG_TRUNCATION,
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError.INCONSISTENT_TOPIC_ID,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)
Look = Callable[[list[PartitionId]], dict[PartitionId, Found]]
IdsNow = Callable[[Collection[str]], Mapping[str, str]]


@dataclass(frozen=True)
class InputLimits:
    """The limits of a step in records and bytes, for commands and messages each; for captured
    records see `live.CAPTURED_SHARE`."""

    records: int = 2_000
    bytes: int = 4_000_000


def consumer_settings(kafka: dict[str, Any]) -> dict[str, Any]:
    """The settings that all consumers of the loop share. kafka: the connection settings."""
    return {
        **kafka,
        "group.id": "lakequeue-engine",  # required by the client, but not used
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "fetch.min.bytes": 1,
        "fetch.wait.max.ms": 100,
        # By default it fetches again only 1 s after its queue was full, and 0.5 s after an error.
        "fetch.queue.backoff.ms": 2,
        "fetch.error.backoff.ms": 50,
        "queued.max.messages.kbytes": FETCH_BYTES // 1_000,
        "max.partition.fetch.bytes": FETCH_BYTES,
        "fetch.max.bytes": 4 * FETCH_BYTES,
        "enable.partition.eof": True,  # see `Reader.at_end`
    }


class Reader(threading.Thread):
    """Reads ahead with one consumer, up to the limits of two steps. arrived: set when there are
    records; look, ids_now: return the present state of partitions in Kafka, and topics' ids; raise
    KafkaException while it is unreachable. ids_now: only if other programs may recreate the topics.
    """

    def __init__(
        self, name: str, settings: dict[str, Any], arrived: threading.Event, limits: InputLimits,
        look: Look, ids_now: IdsNow | None = None,
    ) -> None:  # fmt: skip
        super().__init__(daemon=True, name=f"lakequeue-{name}")
        self._settings = consumer_settings(settings) | {"auto.offset.reset": "error"}
        self._look, self._ids_now = look, ids_now
        # records that came and are not taken in yet, and the errors that came with them
        self._fetched: tuple[dict[PartitionId, list[Any]], list[Any]] | None = None
        self._rests_until = 0.0  # before the next fetch
        self._missing: set[str] = set()  # topics that Kafka did not know then
        self._ids: dict[PartitionId, str] = {}  # ids of the topics to which the offsets belong
        self._told_doubts: deque[PartitionId] = deque()
        # Partitions that are not read, and when to check them again.
        self._doubts: dict[PartitionId, float] = {}
        # partitions that now continue at another offset or topic
        self.starts: deque[tuple[PartitionId, Start]] = deque()
        self._consumer: Consumer
        self._arrived = arrived
        self._max = 2 * limits.bytes
        self._room = threading.Event()
        self._closing = False
        self._more: deque[TopicPartition] = deque()
        self._holding: set[PartitionId] = set()  # assigned in Kafka's client but not read yet
        self._wanted: deque[PartitionId] = deque()
        self.ahead: ReadAhead[Any] = ReadAhead(size_of, limits.records, limits.bytes)
        self.failure: BaseException | None = None
        self.looked = time.monotonic()
        self._next: dict[PartitionId, int] = {}  # the next offset of each partition
        self._seen: dict[PartitionId, int] = {}  # the same at the last call of `watch`
        self._helped: dict[PartitionId, int] = {}
        self._anew = False
        self._reports = OnceAMinute()
        self._held: set[PartitionId] = set()  # partitions that are paused
        # slow partitions that are paused because enough of their records are in memory
        self._enough: set[PartitionId] = set()
        self.at_end: set[PartitionId] = set()  # partitions that were read to their end once

    def assign(
        self, places: dict[PartitionId, int], ids: Mapping[PartitionId, str] = MappingProxyType({})
    ) -> None:
        """Read these partitions too, from these offsets on, of topics with these ids. Before the
        start, or from any thread."""
        self._ids |= ids
        self._more.extend(TopicPartition(*place, at) for place, at in places.items())

    def assign_paused(
        self, places: dict[PartitionId, int], ids: Mapping[PartitionId, str] = MappingProxyType({})
    ) -> None:
        """Like `assign`, but paused until `want`. Kafka's client needs up to a second to find a
        topic's leader, and does that while the partition is paused."""
        self._holding.update(places)
        self.assign(places, ids)

    def compare(self, ids: Mapping[str, str]) -> None:
        """Compare the current ids of topics, and check the partitions of those that changed or are
        missing: they may have been recreated. From any thread, but one at a time."""
        self._ids |= {
            place: ids[place[0]]
            for place in list(self._next)
            if place[0] in ids and not self._ids.get(place)
        }
        self._told_doubts.extend(
            place
            for place, known in list(self._ids.items())
            if known and known != ids.get(place[0], "") and ids.get(place[0]) != ""
        )

    def want(self, places: Collection[PartitionId]) -> None:
        """Read the partitions that `assign_paused` added."""
        self._wanted.extend(places)

    def passed(self, place: PartitionId) -> int:
        """Every record before this offset was taken or is invisible to readers; 0 if untaken
        records are in memory. Any thread may call it."""
        return 0 if place in self.ahead.next_of_each() else self._next.get(place, 0)

    def take(
        self, most: int | None, slow_part: float | None = None
    ) -> tuple[dict[PartitionId, list[Any]], int]:
        """Remove one step's records, see `ReadAhead.take`; returns them and their bytes."""
        found, size = self.ahead.take(most, slow_part)
        if not self._room.is_set() and self.ahead.bytes < self._max:
            self._room.set()
        return found, size

    def start(self) -> None:
        """Start the thread. The consumer is created only now: one that connects before it has a
        partition to read needs a second longer to find it."""
        self._consumer = Consumer(self._settings)
        super().start()

    def run(self) -> None:
        try:
            while not self._closing:
                self.looked = time.monotonic()
                self._read()
        except BaseException as error:  # `LiveInputs.take` raises it in the loop
            self.failure = error
            self._arrived.set()
        finally:
            self._consumer.close()

    def watch(self, ends: dict[PartitionId, int]) -> None:
        """Replace a consumer that fetches nothing although there are records, as librdkafka 2.16.0
        does after some restarts of a Kafka broker, without an error. If records that existed at one
        call have not arrived by the next, a new consumer fetches them; once for each end, since the
        rest may be transaction markers."""
        now = dict(self._next)
        for place, at in now.items():
            end = ends.get(place, 0)
            stands = at == self._seen.get(place) and place not in self._enough
            if stands and at < end != self._helped.get(place):
                self._helped[place] = end
                self._anew = self._anew or not self.ahead.has_others()
        self._seen = now

    def _read(self) -> None:
        if self._anew:
            self._anew = False
            log.warning("%s: the consumer has stopped reading, and is replaced", self.name)
            self._consumer.close()
            self._consumer = Consumer(self._settings)
            self._held.clear()
            self._enough.clear()
            self._fetched = None
            self._more.extend(
                TopicPartition(*place, at)
                for place, at in self._next.items()
                if place not in self._doubts
            )
        self._assign()
        self._settle_doubts()
        self._hold_slow()
        if not self._has_room():
            return
        if self._fetched is None:
            time.sleep(max(0.0, self._rests_until - time.monotonic()))
            self._fetched = self._fetch()
        if self._fetched is None:
            return
        lanes, errors = self._fetched
        if not self._prove(lanes):
            return
        self._fetched = None
        for place, messages in lanes.items():
            if messages[0].offset() < self._next.get(place, 0):  # fetched again after a pause
                messages = [m for m in messages if m.offset() >= self._next[place]]
                if not messages:
                    continue
            self._next[place] = messages[-1].offset() + 1
            self.ahead.put(place, messages)
        ended = self._hear(errors)  # only now: a partition's end comes after its messages
        if lanes or ended:
            self._arrived.set()

    def _fetch(self) -> tuple[dict[PartitionId, list[Any]], list[Any]] | None:
        """The next records of each partition, and errors; None if nothing came."""
        shortly = self._held or self._enough or self._doubts
        wait_s = HOLDING_S if self._holding else FULL_S if shortly else POLL_S
        first = self._consumer.poll(wait_s)  # `consume(n)` waits for n
        if first is None:
            return None
        found: list[Any] = [first, *self._consumer.consume(CHUNK_RECORDS, 0)]
        lanes: dict[PartitionId, list[Any]] = {}
        errors = []
        for m in found:
            if m.error() is None:
                lanes.setdefault((m.topic(), m.partition()), []).append(m)
            else:
                errors.append(m)
        return lanes, errors

    def _prove(self, lanes: dict[PartitionId, list[Any]]) -> bool:
        """Drop records that came after their topic was recreated, or may have. False: nobody knows
        yet; a topic that Kafka misses twice is gone, and its last records count."""
        if self._ids_now is None or not lanes:
            return True
        names = {topic for topic, _ in lanes}
        try:
            ids = self._ids_now(names)
        except KafkaException as error:
            log.info("%s: cannot look up topics' ids: %s", self.name, error)
            time.sleep(PROVE_AGAIN_S)
            return False
        if sum(map(len, lanes.values())) < CHUNK_RECORDS:  # let more come, for fewer looks
            self._rests_until = time.monotonic() + PROVE_S
        missing, self._missing = self._missing, names - ids.keys()
        if self._missing - missing:
            time.sleep(PROVE_AGAIN_S)
            return False
        for place in [*lanes]:
            now, known = ids.get(place[0], ""), self._ids.get(place)
            if not known:
                self._ids[place] = now
            elif now and now != known:
                del lanes[place]
                self._told_doubts.append(place)
        return True

    def _assign(self) -> None:
        if self._more:
            places = [self._more.popleft() for _ in range(len(self._more))]
            self._next |= {(p.topic, p.partition): p.offset for p in places}
            self._consumer.incremental_assign(places)
            self._consumer.pause([p for p in places if (p.topic, p.partition) in self._holding])
        if self._wanted:
            wanted = [self._wanted.popleft() for _ in range(len(self._wanted))]
            self._consumer.resume([TopicPartition(*place) for place in wanted])
            self._holding.difference_update(wanted)

    def _has_room(self) -> bool:
        """Whether to continue reading. Between two batches steps may have no room for large
        records. Then partitions with much in memory are paused, since others wait behind them."""
        ahead, most = self.ahead.bytes, self._max
        if ahead < most // 2 and self._held:
            self._consumer.resume([TopicPartition(*place) for place in self._held])
            self._held.clear()
        if ahead < most:
            return True
        self._room.clear()
        if self.ahead.bytes < most:  # a step may just have taken records
            return True
        wait_s = POLL_S if ahead >= 2 * most else 0.0 if self._held else FULL_S
        if self._room.wait(wait_s):
            return False
        paused = self._held | self._enough
        much = [place for place in self.ahead.holding(FETCH_BYTES) if place not in paused]
        if much:
            self._consumer.pause([TopicPartition(*place) for place in much])
            self._held.update(much)
        return ahead < 2 * most

    def _hold_slow(self) -> None:
        """Pause slow partitions with enough records in memory. The rest waits in Kafka until it is
        wanted."""
        slow = self.ahead.slow
        if not slow and not self._enough:
            return
        most = self._max // SLOW_SHARE // max(1, len(slow))
        full = {*self.ahead.holding(most)}.intersection(slow) - self._enough - self._held
        wanted = self._enough.difference(slow) | self._enough.difference(
            self.ahead.holding(most // 2)
        )
        if full:
            self._consumer.pause([TopicPartition(*place) for place in full])
        if wanted:
            self._consumer.resume([TopicPartition(*place) for place in wanted])
        self._enough = (self._enough | full) - wanted

    def _hear(self, errors: list[Any]) -> bool:
        """Handle errors and the ends of partitions. Returns whether a partition was read to its end
        for the first time."""
        before = len(self.at_end)
        for m in errors:
            error, place = m.error(), (m.topic(), m.partition())
            if error.code() == KafkaError._PARTITION_EOF:
                self.at_end.add(place)
                if place in self._next:  # transaction markers may precede the end
                    self._next[place] = max(self._next[place], m.offset())
            elif error.code() in _DOUBTS and place in self._next:
                self._told_doubts.append(place)
            elif error.code() not in _AWAY and self._reports.first((place, error.code())):
                log.warning("%s [%s]: %s", m.topic(), m.partition(), error.str())
        return len(self.at_end) > before

    # ------------------------------------------------------------ doubts

    def _settle_doubts(self) -> None:
        """Check partitions that have changed. Until then they are not read; then they continue at
        the offset from `same_topic.go_on`. Steps take all earlier records first, since no step has
        offsets of two topics."""
        while self._told_doubts:
            place = self._told_doubts.popleft()
            if place in self._next and place not in self._doubts:
                self._consumer.incremental_unassign([TopicPartition(*place)])
                if self._fetched is not None:
                    self._fetched[0].pop(place, None)
                self._held.discard(place)
                self._enough.discard(place)
                self._doubts[place] = 0.0
        now = time.monotonic()
        due = [place for place, at in self._doubts.items() if at <= now]
        if not due:
            return
        drained = self.ahead.next_of_each().keys()
        self._doubts |= {place: now + DRAINED_S for place in due if place in drained}
        asked = [place for place in due if place not in drained]
        if not asked:
            return
        try:
            found = self._look(asked)
        except KafkaException as error:
            log.info("%s: cannot look up partitions: %s", self.name, error)
            found = {}
        self._doubts |= dict.fromkeys(asked, time.monotonic() + DOUBT_S)
        for place, one in found.items():
            self._begin(place, go_on(self._next[place], self._ids.get(place, ""), one))

    def _begin(self, place: PartitionId, start: Start) -> None:
        del self._doubts[place]
        self._ids[place] = start.topic_id
        self.starts.append((place, start))  # before any record of it is read
        self.assign({place: start.at})
        self._assign()

    def close(self) -> None:
        """End the thread, within a second."""
        self._closing = True
        self._room.set()
