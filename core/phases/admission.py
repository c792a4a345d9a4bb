"""Admission: what becomes of a record that comes in (Q2–Q4, Q6, S1, S3–S6, S8, P1, L9, L12).

A record finds the queues that capture its topic; each queue's filter, priority and barrier
expressions are evaluated now and never again (Q6). Then the checks of S3, in their order. Only when
all are done is anything changed: a message is stored once, with all its matches, or with none of
them if any queue refuses with a nack (S5). Before them all comes S8: where storing would need more
spool files than there may be, every publisher is nacked, whatever its queues' policy.
"""

from __future__ import annotations

from ...protocol import topics
from ...protocol.bounds import within_calendar
from ...protocol.errors import Reason
from ...protocol.journal import Segment
from ...protocol.messages import PLAIN, PublishHeader, Records, decode_publish_header
from ..queue.broker import Broker, Place
from ..queue.change import enter
from ..queue.producers import ProducerHistory
from ..queue.queue import Queue
from ..rules.answering import reject_record
from ..rules.deferred import settle_arrival, will_leave
from ..rules.durable import DELTA, answer, refusal_of_tables
from ..rules.entering import Match, match
from ..rules.last_value import keep_last
from ..rules.lifetime import expires_at
from ..rules.recovery_points import recovers
from ..rules.routing import queues_of_destination, queues_of_record
from ..storage.row import NEVER, NO_KEY, Row
from .incoming import Incoming, payloads_of
from .judging import (
    NACK,
    Judged,
    count_no_json,
    discard,
    discard_of_vpn,
    judge,
    keep_out,
    refuse,
    refuse_of_vpn,
)


def admit(broker: Broker, records: Records, skipped: dict[Place, str]) -> None:
    """Take in the publishes of a step. skipped: records that failed in an earlier attempt, and
    why."""
    if not records:
        return
    admission = Admission(broker)
    for at in range(len(records)):
        admission.take(records, at, skipped)
    broker.at = None
    for producer in broker.receipts.values():
        answer(broker, producer)
    for queue in admission.entered.values():
        keep_last(broker, queue)
        if not queue.header.faulted:
            broker.at = queue
            queue.spill_over()


class Admission:
    """The publishes of one step."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._vpn_of: dict[str, str | None] = {}  # of publish topics; None: it is none
        self._room = broker.spool.file_room(broker.header.system.max_spool_files)
        self._told: set[int] = set()  # queues of which an event tells that something is no JSON
        self._spooled: dict[tuple[int, str], Segment] = {}
        self.entered: dict[int, Queue] = {}

    def take(self, records: Records, at: int, skipped: dict[Place, str]) -> None:
        """Take in one record."""
        broker = self._broker
        record = Incoming.of(records, at, broker.now)
        topic = record.topic
        broker.at = place = topic, record.partition, record.offset
        if topic in self._vpn_of:
            vpn = self._vpn_of[topic]
        else:
            own = topics.split(topic)
            vpn = self._vpn_of[topic] = own[0] if own and own[1] == topics.PUBLISH else None
        try:
            if place in skipped:
                raise ValueError(f"it failed: {skipped[place]}")
            meta = records.metas[at]
            header = PLAIN if meta is None else decode_publish_header(meta)
            if vpn is not None and not header.to:
                raise ValueError("header 'lq' names no destination: 'to' is missing")
            if vpn is None and header.durability == DELTA:
                raise ValueError("durability 'delta' is for messages on <vpn>.publish")
            payloads = payloads_of(header, record)
        except ValueError as error:
            self._malformed(vpn, record, str(error))
            return
        if vpn is not None:
            matched = [(vpn, queues_of_destination(broker, vpn, header.to))]
        else:
            matched = self._captured(record)
        for name, queues in matched:
            if not header.count:
                self._publish(name, header, header.seq, queues, record)
                continue
            for item, payload in enumerate(payloads):
                one = record._replace(value=payload, item=item)
                self._publish(name, header, header.seq + item, queues, one)

    def _captured(self, record: Incoming) -> list[tuple[str, list[Queue]]]:
        """Per VPN the queues that take a plain record: not from before their recovery points
        (R2)."""
        broker = self._broker
        counter = broker.spool.next_counter
        return [
            (vpn, [q for q in queues if recovers(q, record.time, counter)])
            for vpn, queues in queues_of_record(broker, record.topic)
        ]

    def _malformed(self, vpn: str | None, record: Incoming, error: str) -> None:
        broker = self._broker
        names = [vpn] if vpn else [name for name, _ in queues_of_record(broker, record.topic)]
        for name in names:
            reject_record(broker, name, *record[:3], record.key, record.value, error)

    # ------------------------------------------------------------ one message

    def _publish(
        self, vpn: str, header: PublishHeader, seq: int, queues: list[Queue], record: Incoming
    ) -> None:
        broker = self._broker
        producer = None
        if header.producer:
            producer = broker.producer(vpn, header.producer)
            producer.receipt.partition = header.reply
            place = [(record.partition, record.offset)]
            producer.wants(record.topic, place, header.durability == DELTA)
            if not producer.is_new(seq):
                producer.repeat(seq)
                return
            producer.take(seq)
            behind = refusal_of_tables(broker, header)
            if behind:
                refuse_of_vpn(broker, vpn, seq, producer, (Reason.NO_TABLES, behind), record)
                return
        matches = []
        for queue in queues:
            found = match(queue, record.value, header.priority, record.key)
            if found is not None:
                matches.append(found)
        if not matches:
            self._nowhere(vpn, header, seq, producer, record)
            return
        if self._room <= 0:
            refuse(broker, vpn, seq, producer, matches[0].queue, Reason.SPOOL_FILES, record)
            return
        judged = judge(broker, vpn, matches, header.priority, record)
        if judged.no_json:
            count_no_json(broker, vpn, judged, record.topic, self._told)
        if judged.refused and header.to:
            refuse(broker, vpn, seq, producer, *judged.refused[0], record)
            return
        for queue, reason in judged.refused:
            keep_out(broker, vpn, queue, reason, record)
        for queue, reason in judged.discards:
            discard(broker, vpn, queue, reason, record)
            if producer:
                producer.discarded(seq, reason.value, queue.definition.name)
        number = self._store(header, judged, record) if judged.kept else 0
        if producer:
            producer.stored(seq, number)

    def _store(self, header: PublishHeader, judged: Judged, record: Incoming) -> int:
        """Store a message with all its matches; returns its id (S1)."""
        broker, kept = self._broker, judged.kept
        payload, key, text = record.value, record.key, record.headers
        headers = text.encode() if text else None
        vpn = kept[0].queue.header.vpn_number
        number = broker.spool.store(vpn, (payload, key, headers), judged.size, len(kept))
        self._room -= judged.size
        ttl_ends = NEVER if header.ttl_ms is None else within_calendar(record.time + header.ttl_ms)
        at = header.deliver_at if header.delay_ms is None else record.time + header.delay_ms
        until = NEVER if at is None or at <= broker.now else within_calendar(at)
        for one in kept:
            queue = one.queue
            barrier = one.barrier and not will_leave(queue, number, broker.now)
            row = Row(
                0, number, judged.size, 0, record.time, ttl_ends,
                expires_at(queue.header.definition, broker.now, ttl_ends), header.priority,
                header.dmq, one.level, 0, one.lane, barrier,
            )  # fmt: skip
            row.until = until
            row.length = len(payload)
            row.key_length = NO_KEY if key is None else len(key)
            row.header_length = len(headers) if headers else 0
            self._enter(one, row, record)
        return number

    def _enter(self, one: Match, row: Row, record: Incoming) -> None:
        broker, queue = self._broker, one.queue
        enter(broker, queue, row)
        self.entered[queue.number] = queue
        segment = self._spooled.get((queue.number, record.topic))
        if segment is None:
            segment = self._spooled[queue.number, record.topic] = Segment(
                "spooled", broker.vpn_of(queue), queue.definition.name, topic=record.topic,
                partitions=[], offsets=[], items=[], until=[],
            )  # fmt: skip
            broker.journal.segments.append(segment)
        segment.ids.append(row.id)
        segment.partitions.append(record.partition)  # type: ignore[union-attr]
        segment.offsets.append(record.offset)  # type: ignore[union-attr]
        segment.items.append(record.item)  # type: ignore[union-attr]
        segment.until.append(row.until)  # type: ignore[union-attr]
        settle_arrival(broker, queue, row)

    def _nowhere(
        self, vpn: str, header: PublishHeader, seq: int, producer: ProducerHistory | None,
        record: Incoming,
    ) -> None:  # fmt: skip
        """S6: no queue takes it."""
        if not header.to:
            return  # a plain record that a filter refused: nobody waits for an answer
        reason = Reason.NO_MATCHING_DESTINATION
        if self._broker.header.system.on_no_match == NACK:
            why = f"no queue takes {header.to[:200]!r}"
            refuse_of_vpn(self._broker, vpn, seq, producer, (reason, why), record)
            return
        discard_of_vpn(self._broker, vpn, reason, record)
        if producer:
            producer.stored(seq, 0)
            producer.discarded(seq, reason.value, "")
