"""Admission of incoming records (Q2–Q4, Q6, S1, S3–S6, S8, P1, L9, L12).

The queues that capture a record's topic evaluate their filter, priority and barrier expressions
now, and never again (Q6). Then come the checks of S3, in order; S8 is the first: without room for
another spool file, every publisher gets a nack, whatever its queues' policy. Nothing changes before
all checks are done. A message is stored once with all its matches, or not at all if any queue
refuses it with a nack (S5).
"""

from __future__ import annotations

from functools import lru_cache

from msgspec.structs import replace

from ...protocol import topics
from ...protocol.bounds import within_calendar
from ...protocol.errors import Reason
from ...protocol.ids import make_id
from ...protocol.journal import JournalSegment
from ...protocol.messages import (
    PLAIN,
    PublishHeader,
    Records,
    Sender,
    decode_publish_header,
    sender_of,
)
from ...protocol.outputs import Receipts
from ..commands.answers import reject_record
from ..queue.broker import Broker
from ..queue.broker_facts import ONE_OF_SEVERAL, RecordPosition
from ..queue.change import enter
from ..queue.producers import ProducerHistory, answering_broker, histories_at
from ..queue.queue import Queue
from ..rules.after_entry import apply_early_ack, keep_last, will_leave
from ..rules.durable import DELTA, answer, refusal_of_tables
from ..rules.entry_checks import Match, expires_at, match, plain_match, program_of, recovers
from ..rules.routing import queues_of_destination, queues_of_record
from ..storage.row import NEVER, READY, Row
from .admission_checks import (
    NACK,
    CheckedMessages,
    check_messages,
    count_no_json,
    count_refusal,
    discard,
    no_files,
    refuse,
    refuse_plain,
)
from .incoming import Incoming, alike

DETAIL_CHARACTERS_MAX = 500  # of a reason in a receipt; `<vpn>.rejected` has the whole text


def admit(broker: Broker, records: Records, skipped: dict[RecordPosition, str]) -> None:
    """Take in the publishes of a step. skipped: records that failed in an earlier attempt, and
    why."""
    admission = Admission(broker)
    at, end = 0, len(records.topics)
    while at < end:
        at = admission.take(records, at, skipped)
    broker.at = None
    for producer in broker.receipts.values():
        answer(broker, producer)
    admission.close()


@lru_cache(maxsize=10_000)
def _vpn_of(topic: str) -> str | None:
    """The VPN of a publish topic; None for any other topic."""
    own = topics.split(topic)
    return own[0] if own and own[1] == topics.PUBLISH else None


class Admission:
    """The publishes of one step."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._room = broker.spool.file_room(broker.header.system.max_spool_files)
        self._told: set[int] = set()  # queues with an `invalid_json` event in this step
        self._spooled: dict[tuple[int, str], JournalSegment] = {}
        self._last_only: dict[int, Queue] = {}  # queues with quota 0 that messages have entered

    def take(self, records: Records, at: int, skipped: dict[RecordPosition, str]) -> int:
        """Admit a record and the similar ones behind it; returns the index of the next record."""
        broker = self._broker
        topic = records.topics[at]
        broker.at = place = topic, records.partitions[at], records.offsets[at]
        vpn = _vpn_of(topic)
        try:
            if place in skipped:
                raise ValueError(f"it failed: {skipped[place]}")
            meta = records.metas[at]
            header = PLAIN if meta is None else decode_publish_header(meta)
            if vpn is not None and not header.to:
                raise ValueError("header 'lq': 'to' is missing – name a queue or a topic")
            if vpn is None and header.durability == DELTA:
                raise ValueError("durability: 'delta' – allowed for messages on <vpn>.publish only")
            if vpn is None and header.to:
                header = replace(header, to="")  # its topic is its destination
            together = not skipped  # else one of several may have failed
            end = alike(records, at, header) if together and vpn is not None else at + 1
            if end > at + 1 and broker.header.speaks_for:
                end = _of_one_broker(records, at, end)
            messages = Incoming.of(records, at, end, header, broker.now)
        except ValueError as error:
            self._malformed(vpn, records, at, str(error))
            return at + 1
        if vpn is not None:
            messages.vpn = vpn
            self._take_in(queues_of_destination(broker, vpn, header.to), messages, together)
        else:
            for name, queues in self._captured(messages):
                messages.vpn = name
                for queue in queues:
                    if not queue.header.reads_plain:
                        queue.header.reads_plain = True
                        self._broker.touch(queue)
                self._take_in(queues, messages, together)
        return end

    def _captured(self, messages: Incoming) -> list[tuple[str, list[Queue]]]:
        """Per VPN, the queues that take a plain record, by topic and recovery point (R2)."""
        broker, topic, partition = self._broker, messages.topic, messages.partitions[0]
        next_id, time = make_id(broker.home.number, broker.spool.next_counter), messages.times[0]
        found = []
        for vpn, queues in queues_of_record(broker, topic):
            queues = [queue for queue in queues if not _was_read(queue, messages)]
            queues = broker.mesh.of_record(vpn, topic, partition, queues)
            found.append((vpn, [q for q in queues if recovers(q, time, next_id)]))
        return found

    def _malformed(self, vpn: str | None, records: Records, at: int, error: str) -> None:
        broker = self._broker
        topic, partition, offset = records.topics[at], records.partitions[at], records.offsets[at]
        key, value = records.keys[at], records.values[at] or b""
        names = [vpn] if vpn else [name for name, _ in queues_of_record(broker, topic)]
        for name in names:
            reject_record(broker, name, topic, partition, offset, key, value, error)
            sender = sender_of(records.metas[at])
            if sender is not None:
                why = error[:DETAIL_CHARACTERS_MAX]
                self._answer_malformed(name, sender, topic, partition, why)

    def _answer_malformed(
        self, vpn: str, sender: Sender, topic: str, partition: int, why: str
    ) -> None:
        """Nack a malformed record. The history remembers it as refused, so that messages before and
        after it are answered as usual. A producer whose name, start or sequence is out of bounds
        has no history."""
        seqs = range(sender.seq, sender.seq + sender.messages)
        broker, reason = self._broker, Reason.MALFORMED.value
        where = histories_at(vpn, broker.header.speaks_for, topic, partition)
        number = answering_broker(where, broker.home.number)[1]
        if not sender.has_history:
            nacks = [(seq, reason, "", why) for seq in seqs]
            receipt = Receipts(vpn, sender.producer, 0, sender.reply, nacks=nacks, broker=number)
            broker.emit(receipt)
            return
        producer = broker.producer(where, sender.producer)
        producer.set_sender(sender.reply, sender.start)
        for seq in (seq + producer.receipt.base for seq in seqs):
            refusal = producer.refusal(seq)
            if refusal is not None:
                producer.refused_for_good(seq, refusal, why)
            elif producer.is_new(seq):
                producer.take(seq)
                producer.refused(seq, reason, "", why)
            else:
                producer.repeat(seq)

    # ------------------------------------------------------------ together, or one by one

    def _take_in(self, queues: list[Queue], messages: Incoming, together: bool) -> None:
        """Admit messages. together: all at once if all of them can be stored."""
        producer = self._producer(messages)
        if producer is not None:  # its start numbers from there
            messages.sender, messages.seq = producer, messages.header.seq + producer.receipt.base
        if len(messages.payloads) == 1:
            self._publish(queues, messages, producer)
            return
        checked = self._check_together(queues, messages, producer) if together else None
        if checked is not None:
            broker, place = self._broker, self._broker.at
            broker.at = ONE_OF_SEVERAL
            self._finish(messages, checked)
            broker.at = place
            return
        for one in messages.each():
            self._broker.at = one.place
            self._publish(queues, one, producer)

    def _check_together(
        self, queues: list[Queue], messages: Incoming, producer: ProducerHistory | None
    ) -> CheckedMessages | None:
        """Check several messages at once. None: a queue does not store all of them, or a check
        failed; then they are checked one by one to find the one at fault."""
        broker = self._broker
        try:
            if producer is not None and (
                messages.seq <= producer.high or producer.refusal(messages.seq) is not None
            ):
                return None
            if not queues or refusal_of_tables(broker, messages.header):
                return None
            matches: list[Match] = []
            for queue in queues:
                if queue.early.ranges or program_of(queue) is not None:
                    return None
                matches.append(plain_match(queue))
            checked = check_messages(broker, matches, messages)
            if checked.refused or checked.discards or checked.no_json:
                return None
            return checked if checked.size <= self._room else None
        except Exception:  # nothing has changed
            return None

    def _producer(self, messages: Incoming) -> ProducerHistory | None:
        """The history of the producer that waits for an answer; None for a plain record."""
        header = messages.header
        if not header.producer:
            return None
        broker = self._broker
        speaks_for, partition = broker.header.speaks_for, messages.partitions[0]
        where = histories_at(messages.vpn, speaks_for, messages.topic, partition)
        producer = broker.producer(where, header.producer)
        producer.set_sender(header.reply, header.start)
        if header.durability == DELTA:
            positions = zip(messages.partitions, messages.offsets, strict=True)
            producer.needs_in_tables(messages.topic, positions)
        return producer

    def _publish(
        self, queues: list[Queue], message: Incoming, producer: ProducerHistory | None
    ) -> None:
        """Admit one message, or refuse it."""
        broker, header, seq = self._broker, message.header, message.seq
        if producer is not None:
            refusal = producer.refusal(seq)
            if refusal is not None:
                why = f"another producer with the id {header.producer[:200]!r} has started since"
                count_refusal(broker, None, refusal, message)
                producer.refused_for_good(seq, refusal, why)
                return
            if not producer.is_new(seq):
                producer.repeat(seq)
                return
            behind = refusal_of_tables(broker, header)
            if behind:
                producer.take(seq)
                refuse(broker, None, Reason.NO_TABLES, message, behind)
                return
        self._match(queues, message)

    def _match(self, queues: list[Queue], message: Incoming) -> None:
        """Admit one message to the queues that it matches, or refuse it."""
        priority = message.header.priority
        found = [match(q, message.payloads[0], priority, message.keys[0]) for q in queues]
        matches = [one for one in found if one is not None]
        if not matches:
            self._refuse_unmatched(message)
        elif self._room <= 0 or self._room < sum(message.sizes()[0]):
            self._finish(message, no_files(matches))
        else:
            self._finish(message, check_messages(self._broker, matches, message))

    # ------------------------------------------------------------ messages of a bridge

    def offer(self, messages: Incoming) -> bool:
        """Admit messages from a bridge, which gets the outcome. Several are admitted only if all
        can be stored; otherwise nothing happens and this returns False."""
        queues = queues_of_destination(self._broker, messages.vpn, messages.header.to)
        if len(messages.payloads) == 1:
            self._match(queues, messages)
            return True
        checked = self._check_together(queues, messages, None)
        if checked is not None:
            self._finish(messages, checked)
        return checked is not None

    def close(self) -> None:
        """End the admission of a step."""
        for queue in self._last_only.values():
            keep_last(self._broker, queue)

    # ------------------------------------------------------------ the outcome

    def _finish(self, messages: Incoming, checked: CheckedMessages) -> None:
        """Store checked messages in the queues that take them, and answer."""
        broker, sender, seq = self._broker, messages.sender, messages.seq
        n = len(messages.payloads)
        if sender:
            sender.take(seq, n)
        if checked.no_json:
            count_no_json(broker, checked, messages, self._told)
        if sender is None and not messages.header.to:
            refuse_plain(broker, checked, messages)
        elif checked.refused:
            refuse(broker, *checked.refused[0], messages)
            return
        for queue, reason in checked.discards:
            discard(broker, queue, reason, messages)
        number = self._store(checked, messages) if checked.kept else 0
        if sender:
            sender.stored(seq, number, n)

    def _store(self, checked: CheckedMessages, messages: Incoming) -> int:
        """Store messages with all their matches; returns the first id (S1)."""
        broker, kept, header = self._broker, checked.kept, messages.header
        vpn = kept[0].queue.header.vpn_number
        now, priority, dmq, times = broker.now, header.priority, header.dmq, messages.times
        first = broker.spool.store(vpn, messages.contents(), checked.size, len(kept))
        self._room -= checked.size
        numbers = range(first, first + len(times))
        columns = numbers, checked.sizes, times, *_lives(header, times, now)
        for queue, level, is_barrier, lane in kept:
            barrier = is_barrier and not will_leave(queue, first, now)
            definition = queue.header.definition
            rows: list[Row] = []
            before, expires = -1, NEVER
            for number, size, time, ttl_ends, until in zip(*columns, strict=True):
                if ttl_ends != before:  # most often all are equal
                    before, expires = ttl_ends, expires_at(definition, now, ttl_ends)
                rows.append(
                    Row(
                        0, number, size, now, time, ttl_ends, expires, priority, dmq, level, 0,
                        lane, barrier, READY, until, stored=number,
                    )
                )  # fmt: skip
            if queue.header.stands_for:
                broker.mesh.prepare_stand_in(queue, rows, header.to)
            self._enter(queue, rows, messages)
        return first

    def _enter(self, queue: Queue, rows: list[Row], messages: Incoming) -> None:
        broker = self._broker
        enter(broker, queue, rows)
        definition = queue.header.definition
        if not definition.max_spool_usage:
            self._last_only[queue.number] = queue
        place = queue.number, messages.topic
        segment = self._spooled.get(place)
        if segment is None:
            segment = self._spooled[place] = JournalSegment(
                "spooled", definition.vpn, definition.name, topic=messages.topic, partitions=[],
                offsets=[], items=[], until=[],
            )  # fmt: skip
            broker.journal.segments.append(segment)
        segment.ids += range(rows[0].id, rows[-1].id + 1)
        segment.partitions += messages.partitions  # type: ignore[operator]
        segment.offsets += messages.offsets  # type: ignore[operator]
        segment.items += messages.items  # type: ignore[operator]
        segment.until += [row.until for row in rows]  # type: ignore[operator]
        for row in rows if queue.early.ranges else ():
            apply_early_ack(broker, queue, row)

    def _refuse_unmatched(self, message: Incoming) -> None:
        """Refuse or discard a message that no queue takes (S6)."""
        broker, to, sender = self._broker, message.header.to, message.sender
        if not to:
            return  # a plain record, refused by filters: nobody waits for an answer
        if sender:
            sender.take(message.seq)
        reason = Reason.NO_MATCHING_DESTINATION
        if broker.header.system.on_no_match == NACK:
            refuse(broker, None, reason, message, f"no queue takes {to[:200]!r}")
            return
        discard(broker, None, reason, message)
        if sender:
            sender.stored(message.seq, 0)


def _of_one_broker(records: Records, at: int, end: int) -> int:
    """The end of the records in partitions of the same broker: producers differ per broker."""
    homes = [n // topics.PUBLISH_PARTITIONS for n in records.partitions[at:end]]
    return at + next((n for n, home in enumerate(homes) if home != homes[0]), len(homes))


def _was_read(queue: Queue, messages: Incoming) -> bool:
    """Whether another broker has already read a record for a queue (M4)."""
    floors = queue.header.floors
    if not floors:
        return False
    partition = f"{messages.topic}/{messages.partitions[0]}"
    return messages.offsets[0] < floors.get(partition, 0)


def _lives(header: PublishHeader, times: list[int], now: int) -> tuple[list[int], list[int]]:
    """For each message: the end of the publisher's TTL, and the end of its delay. times: when they
    were published."""
    ttl, delay, due = header.ttl_ms, header.delay_ms, header.deliver_at
    ttl_ends = untils = [NEVER] * len(times)
    if ttl is not None:
        ttl_ends = [within_calendar(time + ttl) for time in times]
    if due is not None or delay is not None:
        ends = [due if delay is None else time + delay for time in times]
        untils = [NEVER if at is None or at <= now else within_calendar(at) for at in ends]
    return ttl_ends, untils
