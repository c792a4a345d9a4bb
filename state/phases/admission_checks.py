"""The checks that a message meets at the queues that it matches, and what follows (S3–S6).

Nothing is changed here but counters of what is refused. A message whose producer can be told is
refused by all queues if one refuses it with a nack; a plain record enters every queue that takes it
(S5).
"""

from __future__ import annotations

from typing import Protocol

from ...protocol.errors import Reason
from ...protocol.journal import JournalSegment
from ..queue.broker import Broker
from ..queue.queue import Queue
from ..rules.entry_checks import Match, refusal
from .incoming import Incoming, is_json

NACK, DISCARD = "nack", "discard"


class Answerable(Protocol):
    """Who has sent messages, and hears what became of them: a producer, or a bridge."""

    def take(self, seq: int, count: int = 1) -> None:
        """They have come."""

    def stored(self, seq: int, number: int, count: int = 1) -> None:
        """They were taken in, from this id on."""

    def discarded(self, seq: int, reason: str, queue: str) -> None:
        """A queue threw one away, which is its right (S4)."""

    def refused(self, seq: int, reason: str, queue: str, detail: str) -> None:
        """One was not taken in, by this queue."""


class CheckedMessages:
    """What becomes of messages at their matches. sizes: as quotas count them (Q8); refused: queues
    that refuse one with a nack, and why; no_json: `json` queues for which one is no JSON."""

    __slots__ = ("discards", "kept", "no_json", "refused", "size", "sizes")

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.size = sum(sizes)
        self.kept: list[Match] = []
        self.discards: list[tuple[Queue, Reason]] = []
        self.refused: list[tuple[Queue, Reason]] = []
        self.no_json: list[Queue] = []

    @property
    def is_plain(self) -> bool:
        """Whether all get in everywhere, and there is nothing to say of them."""
        return not (self.refused or self.discards or self.no_json)


def judge(broker: Broker, vpn: str, matches: list[Match], messages: Incoming) -> CheckedMessages:
    """Look at messages with the eyes of all their matches. Of several it is said what becomes of
    all together."""
    payloads, sizes = messages.payloads, messages.sizes()
    judged = CheckedMessages(sizes)
    reason = of_broker(broker, vpn, judged.size, messages.largest())
    priority = messages.header.priority
    valid: bool | None = None
    for one in matches:
        queue = one.queue
        why = reason or refusal(queue, sizes, judged.size, priority)
        d = queue.header.definition
        if why is None and d.message_type != "json":  # most often
            judged.kept.append(one)
            continue
        if d.message_type == "json":
            if valid is None:
                valid = all(map(is_json, payloads))
            if not valid:
                judged.no_json.append(queue)
                if why is None and d.on_invalid == NACK:
                    judged.refused.append((queue, Reason.MALFORMED))
                    continue
        if why is None:
            judged.kept.append(one)
        elif outcome(queue) == DISCARD:
            judged.discards.append((queue, why))
        else:
            judged.refused.append((queue, why))
    return judged


def no_files(matches: list[Match]) -> CheckedMessages:
    """What becomes of a message where there is no room for another spool file (S8)."""
    judged = CheckedMessages([])
    judged.refused = [(one.queue, Reason.SPOOL_FILES) for one in matches]
    return judged


def of_broker(broker: Broker, vpn: str, size: int, whole: int) -> Reason | None:
    """The first check of S3 that is no queue's own. whole: bytes that one delivery would have."""
    spool = broker.spool
    if spool.bytes + size > broker.header.system.max_spool_usage:
        return Reason.BROKER_QUOTA
    limits = broker.header.vpn_limits.get(vpn)
    if limits is not None and limits.max_spool_usage is not None:
        used = spool.vpn_bytes.get(broker.vpn_number(vpn), 0)
        if used + size > limits.max_spool_usage:
            return Reason.VPN_QUOTA
    return Reason.MESSAGE_TOO_LARGE if whole > broker.limits.message_bytes else None


def outcome(queue: Queue) -> str:
    """What a failed check leads to (S4)."""
    policy = queue.definition.reject_msg_to_sender_on_discard
    if policy == "never" or (policy == "when-queue-enabled" and not queue.header.ingress):
        return DISCARD
    return NACK


# ---------------------------------------------------------------- what follows


def count_no_json(
    broker: Broker, vpn: str, judged: CheckedMessages, topic: str, told: set[int]
) -> None:
    """What is no JSON in a `json` queue is counted, and an event tells of it. told: the queues of
    which one has in this step."""
    for queue in judged.no_json:
        queue.header.invalid += 1
        broker.touch(queue)
        if queue.number not in told:
            told.add(queue.number)
            invalid = queue.header.invalid
            broker.event("invalid_json", vpn, queue.definition.name, topic=topic, invalid=invalid)


def count_discarded(broker: Broker, queue: Queue, reason: Reason) -> None:
    """A queue has thrown a message away (S4)."""
    queue.count("discarded")
    discarded = queue.header.discarded
    discarded[reason.value] = discarded.get(reason.value, 0) + 1
    broker.touch(queue)


def discard(broker: Broker, vpn: str, queue: Queue, reason: Reason, record: Incoming) -> None:
    """A queue throws a message away (S4)."""
    count_discarded(broker, queue, reason)
    _journal(broker, "discarded", vpn, queue.definition.name, reason, record)


def refuse(
    broker: Broker, vpn: str, seq: int, producer: Answerable | None, queue: Queue,
    reason: Reason, record: Incoming,
) -> None:  # fmt: skip
    """A queue refuses a message, and with it all that would take it."""
    name = queue.header.stands_for or queue.definition.name
    rejected = queue.header.rejected
    rejected[reason.value] = rejected.get(reason.value, 0) + 1
    broker.touch(queue)
    _journal(broker, "rejected", vpn, name, reason, record)
    if producer:
        producer.refused(seq, reason.value, name, "")


def turn_away(broker: Broker, vpn: str, judged: CheckedMessages, record: Incoming) -> None:
    """Whoever wrote a plain record cannot be told that a queue refuses it, so the others keep it
    (S5). Each queue that does not counts it; an event tells of the first of a row."""
    for queue, reason in judged.refused:
        refuse(broker, vpn, 0, None, queue, reason, record)
    for queue, reason in judged.refused + judged.discards:
        if not queue.header.refuses_plain:
            queue.header.refuses_plain = True
            broker.event(
                "plain_record_refused", vpn, queue.definition.name, topic=record.topic,
                reason=reason.value,
            )  # fmt: skip
    for one in judged.kept:
        one.queue.header.refuses_plain = False


def refuse_of_vpn(
    broker: Broker, vpn: str, seq: int, producer: Answerable | None,
    why: tuple[Reason, str], record: Incoming,
) -> None:  # fmt: skip
    """Refuse a message on behalf of no queue."""
    reason, detail = why
    _journal(broker, "rejected", vpn, "", reason, record)
    broker.count_refused(vpn, reason.value)
    if producer:
        producer.refused(seq, reason.value, "", detail)


def discard_of_vpn(broker: Broker, vpn: str, reason: Reason, record: Incoming) -> None:
    """No queue is there to throw it away (S6)."""
    _journal(broker, "discarded", vpn, "", reason, record)
    broker.count_refused(vpn, reason.value)


def _journal(
    broker: Broker, event: str, vpn: str, queue: str, reason: Reason, record: Incoming
) -> None:
    broker.journal.segments.append(
        JournalSegment(
            event, vpn, queue, reason=reason.value, topic=record.topic,
            partitions=record.partitions, offsets=record.offsets, items=record.items,
        )
    )  # fmt: skip
