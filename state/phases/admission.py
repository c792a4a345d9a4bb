"""Admission: what becomes of a record that comes in (Q2–Q4, Q6, S1, S3–S6, P1, L9, L12).

A record finds the queues that capture its topic; each queue's filter, priority and barrier
expressions are evaluated now and never again (Q6). Then the checks of S3, in their order. A message
is stored once, with all its matches, or with none of them if any queue refuses with a nack (S5).
Before them all comes S8: where storing would need more spool files than there may be, every
publisher is nacked, whatever its queues' policy. Quota 0 is no quota: see `last_value` (S10).
"""

from __future__ import annotations

from msgspec.structs import replace

from ...expressions import Program
from ...protocol import topics
from ...protocol.bounds import RECORD_BYTES_MAX
from ...protocol.errors import Reason
from ...protocol.messages import (
    PLAIN,
    PublishHeader,
    Records,
    decode_publish_header,
    sender_of,
)
from ..bridges.bases import is_based_at
from ..broker import Broker
from ..durable import DELTA, answer, refusal_of_tables
from ..isolation import Refusals
from ..mesh import positions
from ..mesh.known_places import is_moving
from ..mesh.topic_routes import NOBODY
from ..message import enter
from ..producers import Answered, ProducerHistory, home_of
from ..queue import Queue
from ..rejection import reject_record
from ..routing import Routes
from ..rules.deferred import settle_arrivals
from ..rules.entering import Match, match, program_of
from . import elsewhere
from .incoming import (
    Incoming,
    Span,
    delivered_bytes,
    headers_size,
    is_json,
    payloads_of,
    span_from,
)
from .judging import NACK, Judged, judge, no_files, reason_of
from .plain_records import captured, entered, turn_away
from .refusing import answer_malformed, discard, discard_of_vpn, refuse, refuse_of_vpn
from .spreading import Spreading, Way
from .storing import Storing

NOWHERE_ELSE = Way("", *NOBODY)


def admit(
    broker: Broker, records: Records, refused: Refusals, only: tuple[str, str] | None = None
) -> None:
    """Take in the publishes of a step. only: the VPN and queue that plain records
    among them are for."""
    if records:
        admission = Admission(broker, refused, only, spread=True)
        admission.take(records)
        admission.close()


class Admission:
    """The publishes of one step."""

    def __init__(
        self, broker: Broker, refused: Refusals, only: tuple[str, str] | None = None,
        spread: bool = False,
    ) -> None:  # fmt: skip
        self._broker = broker
        self._only = only  # the queue that plain records are for, where another broker sent them
        self._refused = refused.records
        self._routes = Routes(broker)
        self._spreading: Spreading | None = None  # None: nobody else is offered anything
        if spread and broker.header.peers:
            self._spreading = Spreading(broker, self._routes)
        self._producers: dict[tuple[str, str], ProducerHistory] = {}
        self._programs: dict[int, Program | None] = {}
        self._storing = Storing(broker, self._routes)
        self._told: set[int] = set()  # queues that an event tells of
        self._alone = False  # records are taken in one by one: together they did not get in
        self._file_room: int | None = None  # bytes; None: all of this step fits (S8)

    def take(self, records: Records) -> None:
        """Take in records, in their order."""
        self.look_at_files(records)
        sources: dict[str, str | None] = {}
        behind = 0  # records before this one are taken in
        for at in range(len(records)):
            if at < behind:
                continue
            record = Incoming.of(records, at)
            topic = record.topic
            if topic not in sources:
                own = topics.split(topic)
                sources[topic] = own[0] if own and own[1] == topics.PUBLISH else None
            vpn = sources[topic]
            meta = record.meta
            self._broker.at = place = (topic, record.partition, record.offset)
            try:
                if place in self._refused:
                    raise ValueError(f"it failed: {self._refused[place]}")
                header = PLAIN if meta is None else decode_publish_header(meta)
                if vpn is not None and not header.to:
                    raise ValueError("header 'lq' names no destination: 'to' is missing")
                if vpn is None and header.durability == DELTA:
                    raise ValueError("durability 'delta' is for messages on <vpn>.publish")
                if vpn is None and header.to:
                    header = replace(header, to="")  # its topic says where it goes
                payloads = payloads_of(header, record)
            except ValueError as error:
                self._malformed(vpn, record, str(error))
                continue
            if vpn is not None:
                matched = [(vpn, self._routes.of_destination(vpn, header.to))]
            else:
                matched = captured(self._broker, self._routes, record, self._only)
            for name, queues in matched:
                if vpn is None:
                    queues = entered(self._broker, name, header, record, queues)
                elif self._spreading is not None:
                    queues = self._not_led(name, header, queues)
                said = header
                if header.producer and header.start:
                    header = self.producer(name, said, record).numbered(said)
                if vpn is not None and self._may_be_joined(header, record):
                    until = self._block_end(records, at) if header.producer else None
                    span = span_from(records, at, said, payloads, self._broker.now, until)
                    if span is not None:
                        self._broker.at = None  # if it fails, nobody knows by whom
                    if span is not None and self._take_all(
                        name, header, queues, span.payloads, record, span
                    ):
                        behind = at + span.records
                        continue
                    self._alone = span is not None or self._alone
                    self._broker.at = place
                if self._take_all(name, header, queues, payloads, record):
                    continue
                for item, payload in enumerate(payloads):
                    one = record._replace(value=payload, item=item)
                    self._publish(name, header, header.seq + item, queues, one)
                header = said
        self._broker.at = None

    def _may_be_joined(self, header: PublishHeader, record: Incoming) -> bool:
        """Whether a record's messages can be taken in together with those of the next records."""
        plain = record.key is None and record.headers is None and header.ttl_ms is None
        plain = plain and header.delay_ms is None
        return plain and not self._alone and not self._refused

    def _block_end(self, records: Records, at: int) -> int | None:
        """Where the partitions end that were the same broker's as this record's; None: nobody was
        removed, all are of this one. A producer counts for each broker by itself."""
        if not self._broker.header.heirs:
            return None
        block = records.partitions[at] // topics.PUBLISH_PARTITIONS
        end = topics.PUBLISH_PARTITIONS * (block + 1)
        return next((i for i in range(at, len(records)) if records.partitions[i] >= end), None)

    def look_at_files(self, records: Records) -> None:
        """Count bytes against spool files only where this step may reach the limit."""
        room = self._broker.spool.file_room(self._broker.header.system.max_spool_files)
        room -= sum(self._broker.header.undecided.kept.values())
        if len(records) * RECORD_BYTES_MAX < room:
            return
        sizes = (sum(map(len, filter(None, c))) for c in (records.values, records.keys))
        if sum(sizes) + sum(map(len, filter(None, records.headers))) * 4 >= room:
            self._file_room = room

    def _malformed(self, vpn: str | None, record: Incoming, error: str) -> None:
        topic, partition, offset, _, key, value, *_ = record
        names = (
            [vpn]
            if vpn
            else [name for name, _ in captured(self._broker, self._routes, record, self._only)]
        )
        sender = sender_of(record.meta)
        for name in names:
            reject_record(self._broker, name, topic, partition, offset, key, value, error)
            if sender is not None:
                answer_malformed(self._broker, self.producer, name, sender, record, error)

    def _take_all(
        self, vpn: str, header: PublishHeader, queues: list[Queue], payloads: list[bytes],
        record: Incoming, span: Span | None = None,
    ) -> bool:  # fmt: skip
        """Take in a record's messages, or a span's, at once, where it is plain that each gets in
        everywhere and as it is; else False: then one after the other."""
        if not queues or self._file_room is not None or refusal_of_tables(self._broker, header):
            return False
        producer = self.producer(vpn, header, record) if header.producer else None
        if producer is not None and (
            header.seq != producer.high + 1
            or header.to in producer.moved
            or producer.is_superseded(header.seq)
        ):
            return False
        if self._spreading is not None and header.to:
            way = self._way(vpn, header, queues)
            numbers = [queue.number for queue in queues]
            if way.others or self._spreading.must_wait(vpn, producer, record.partition, numbers):
                return False
        for queue in queues:
            d = queue.definition
            if is_moving(queue):
                return False
            counts = d.max_spool_messages is not None or d.reject_low_priority_msg_limit is not None
            if queue.header.refuses_plain and not header.to:
                return False  # it takes them again: that is noted
            if counts or queue.early or self._program(queue) is not None:
                return False
            if d.message_type == "json" and not all(map(is_json, payloads)):
                return False
        text = record.headers
        own = headers_size(text) if text else 0
        sizes = [len(payload) + own for payload in payloads]
        size = sum(sizes)
        # Of several together each has at most what their record has.
        whole = delivered_bytes(record.value, record.key, text)
        if any(reason_of(self._broker, vpn, q, header, size, whole) is not None for q in queues):
            return False
        matches = [Match(queue, 0, False) for queue in queues]
        number = self._storing.store_all(vpn, header, matches, payloads, sizes, record, span)
        if producer is not None:
            where = [(record.partition, record.offset)]
            if span is not None:
                where = list(zip(span.partitions, span.offsets, strict=True))
            producer.wants(record.topic, where, header.durability == DELTA)
            producer.high += len(payloads)
            producer.stored(header.seq, number, len(payloads))
        return True

    def producer(self, vpn: str, header: PublishHeader, record: Incoming) -> ProducerHistory:
        """The history of the producer that a record's header names."""
        home = home_of(self._broker, vpn, record.topic, record.partition)
        known = self._producers.get((home, header.producer))
        if known is None:
            known = ProducerHistory(self._broker.values, vpn, header.producer, home)
            self._producers[home, header.producer] = known
        known.listens(header.reply, header.start)
        return known

    def _publish(
        self, vpn: str, header: PublishHeader, seq: int, queues: list[Queue], record: Incoming
    ) -> None:
        """Take in one message: a record's columns, and its place in the record."""
        producer = None
        if header.producer:
            producer = self.producer(vpn, header, record)
            if producer.is_superseded(seq):
                self._supersede(vpn, header, seq, producer, record)
                return
            if producer.is_held(seq):
                return  # it is answered when it is decided
            where = [(record.partition, record.offset)]
            producer.wants(record.topic, where, header.durability == DELTA)
            if not producer.is_new(seq):
                producer.repeat(seq)
                return
            if elsewhere.stands_behind(self._broker, vpn, header, seq, producer):
                return
        self._take_in(vpn, header, seq, producer, queues, record)

    def _supersede(
        self, vpn: str, header: PublishHeader, seq: int, producer: ProducerHistory, record: Incoming
    ) -> None:
        """Refuse a message: its producer's name is another start's now (P1)."""
        why = f"another producer with the id {header.producer[:200]!r} has started since"
        reason = Reason.MALFORMED if producer.has_used_up(seq) else Reason.SUPERSEDED
        refuse_of_vpn(self._broker, vpn, seq, None, (reason, why), record)
        producer.refused_as_superseded(seq, why)

    def offer(self, vpn: str, header: PublishHeader, record: Incoming, answer: Answered) -> None:
        """Take in one message that another broker brings; ``answer`` hears what became of it."""
        queues = self._routes.of_bridge(vpn, header.to)
        self._take_in(vpn, header, 0, answer, queues, record)

    def offer_all(self, vpn: str, header: PublishHeader, record: Incoming, span: Span) -> bool:
        """As `offer`, for messages that differ in payload and time only, where it is plain that all
        get in; else False, and nothing was done."""
        queues = self._routes.of_bridge(vpn, header.to)
        return self._take_all(vpn, header, queues, span.payloads, record, span)

    def has_queues(self, vpn: str, to: str) -> bool:
        """Whether there are queues for a destination, whatever their filters say."""
        return bool(self._routes.of_bridge(vpn, to))

    def _take_in(
        self, vpn: str, header: PublishHeader, seq: int, producer: Answered | None,
        queues: list[Queue], record: Incoming,
    ) -> None:  # fmt: skip
        """Take in one message that was not seen before."""
        behind = refusal_of_tables(self._broker, header)
        if producer and behind:
            refuse_of_vpn(self._broker, vpn, seq, producer, (Reason.NO_TABLES, behind), record)
            return
        matches = self._matches(queues, header, record)
        way = self._way(vpn, header, queues)
        if not matches and not (
            way.others and not elsewhere.is_there(self._broker, vpn, header, producer)
        ):
            self._nowhere(vpn, header, seq, producer, record)
            return
        going = next((m.queue for m in matches if is_moving(m.queue)), None)
        if going is not None and elsewhere.will_take(
            self._broker, vpn, header, seq, producer, record, going
        ):
            return
        full = matches and self._file_room is not None and self._file_room <= 0
        if full:
            judged = no_files(matches)
        else:
            judged = judge(self._broker, vpn, header, matches, record, self._told)
        if producer is None and not header.to:
            turn_away(self._broker, vpn, judged, record)
        elif judged.refused is not None:
            refuse(self._broker, vpn, seq, producer, *judged.refused, record)
            return
        if self._spreading is not None:
            held = self._spreading.hold(vpn, header, seq, producer, record, way, judged)
            if held is None:
                refuse_of_vpn(self._broker, vpn, seq, producer, self._spreading.why_full(), record)
            if held is not False:
                return
        self._settle(vpn, header, seq, producer, record, judged)

    def _settle(
        self, vpn: str, header: PublishHeader, seq: int, producer: Answered | None,
        record: Incoming, judged: Judged,
    ) -> None:  # fmt: skip
        """Store a message where it is kept, and answer."""
        kept = judged.kept
        for queue, reason in judged.discards:
            discard(self._broker, vpn, queue, reason, record)
            if producer:
                producer.discarded(seq, reason.value, queue.definition.name)
        number = self._storing.store(vpn, header, kept, judged.size, record) if kept else 0
        if producer:
            producer.stored(seq, number)
        if kept and self._file_room is not None:
            text = record.headers
            texts = (record.key, record.value, text.encode() if text else None)
            self._file_room -= sum(len(t) for t in texts if t)

    # ------------------------------------------------------------ other brokers (S5)

    def _way(self, vpn: str, header: PublishHeader, queues: list[Queue]) -> Way:
        """Which other brokers a message is offered to."""
        if self._spreading is None or not header.to:
            return NOWHERE_ELSE
        return self._spreading.way(vpn, header.to, queues)

    def _not_led(self, vpn: str, header: PublishHeader, queues: list[Queue]) -> list[Queue]:
        """Of the queues here, those that do not get it over a bridge that begins here: whose base a
        bridge leads to, they get it from there."""
        led = self._way(vpn, header, queues).led
        return [q for q in queues if not is_based_at(self._broker, q, led)] if led else queues

    # ------------------------------------------------------------ matching

    def _matches(self, queues: list[Queue], header: PublishHeader, record: Incoming) -> list[Match]:
        matches = []
        for queue in queues:
            found = match(queue, self._program(queue), record.value, header.priority, record.key)
            if found is not None:
                matches.append(found)
        return matches

    def _program(self, queue: Queue) -> Program | None:
        number = queue.number
        if number not in self._programs:
            self._programs[number] = program_of(queue)
        return self._programs[number]

    def _nowhere(
        self, vpn: str, header: PublishHeader, seq: int, producer: Answered | None,
        record: Incoming,
    ) -> None:  # fmt: skip
        """S6: no queue takes it."""
        if not header.to:
            return  # a plain record that a filter refused: nobody waits for an answer
        if elsewhere.takes(self._broker, vpn, header, seq, producer, record):
            return
        reason = Reason.NO_MATCHING_DESTINATION
        if self._broker.header.system.on_no_match == NACK:
            why = f"no queue takes {header.to[:200]!r}"
            refuse_of_vpn(self._broker, vpn, seq, producer, (reason, why), record)
            return
        discard_of_vpn(self._broker, vpn, reason, record)
        if producer:
            producer.stored(seq, 0)
            producer.discarded(seq, reason.value, "")

    # ------------------------------------------------------------ end

    def close(self) -> None:
        """Give arrivals their rows, remove what was acknowledged early, answer producers."""
        broker = self._broker
        positions.keep(broker)
        if self._spreading is not None:
            self._spreading.close()
        broker.spool.settle_staged()
        for queue in broker.touched():
            if queue.arrivals.ids:
                enter(broker, queue)
                broker.arrived_in.append(queue)
        settle_arrivals(broker)
        for _, producer in sorted(self._producers.items()):
            answer(broker, producer)
