"""The checks of a message at the queues that it matches, and their outcome (S3–S6).

Nothing changes here except counters of refused messages. If a producer waits for an answer and one
queue refuses with a nack, no queue stores the message. A plain record enters every queue that takes
it (S5).
"""

from __future__ import annotations

import msgspec

from ...protocol.errors import Reason
from ...protocol.journal import JournalSegment
from ..queue.broker import Broker
from ..queue.queue import Queue
from ..rules.entry_checks import Match, refusal
from .incoming import Incoming, is_json

NACK, DISCARD = "nack", "discard"


class CheckedMessages(msgspec.Struct):
    """The outcome for messages at their queues. sizes: as quotas count them (Q8); size: their sum;
    refused: queues that refuse a message with a nack, and why; no_json: `json` queues that got a
    message that is not JSON."""

    sizes: list[int] = []
    size: int = 0
    kept: list[Match] = []
    discards: list[tuple[Queue, Reason]] = []
    refused: list[tuple[Queue, Reason]] = []
    no_json: list[Queue] = []


def check_messages(broker: Broker, matches: list[Match], messages: Incoming) -> CheckedMessages:
    """Check messages for all queues that they match. Several messages get one outcome."""
    payloads, (sizes, largest) = messages.payloads, messages.sizes()
    checked = CheckedMessages(sizes, sum(sizes))
    reason = of_broker(broker, messages.vpn, checked.size, largest)
    priority = messages.header.priority
    valid: bool | None = None
    for one in matches:
        queue = one.queue
        why = reason or refusal(queue, sizes, checked.size, priority)
        d = queue.header.definition
        if why is None and d.message_type != "json":  # most often
            checked.kept.append(one)
            continue
        if d.message_type == "json":
            if valid is None:
                valid = all(map(is_json, payloads))
            if not valid:
                checked.no_json.append(queue)
                if why is None and d.on_invalid == NACK:
                    checked.refused.append((queue, Reason.MALFORMED))
                    continue
        if why is None:
            checked.kept.append(one)
        elif outcome(queue) == DISCARD:
            checked.discards.append((queue, why))
        else:
            checked.refused.append((queue, why))
    return checked


def no_files(matches: list[Match]) -> CheckedMessages:
    """The outcome if there is no room for another spool file (S8)."""
    return CheckedMessages(refused=[(one.queue, Reason.SPOOL_FILES) for one in matches])


def of_broker(broker: Broker, vpn: str, size: int, whole: int) -> Reason | None:
    """The first limit of the broker or the VPN in S3 that is exceeded. whole: the bytes of the
    largest delivery."""
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
    """Whether a failed check leads to a nack or a discard (S4)."""
    policy = queue.definition.reject_msg_to_sender_on_discard
    if policy == "never" or (policy == "when-queue-enabled" and not queue.header.ingress):
        return DISCARD
    return NACK


# ---------------------------------------------------------------- consequences


def told_name(queue: Queue | None) -> str:
    """The name in answers to clients: a stand-in has that of its queue."""
    return "" if queue is None else queue.header.stands_for or queue.definition.name


def count_no_json(
    broker: Broker, checked: CheckedMessages, messages: Incoming, reported: set[int]
) -> None:
    """Count messages that are not JSON in `json` queues, with one event per queue and step.
    reported: the queues that had theirs."""
    for queue in checked.no_json:
        queue.header.invalid += 1
        broker.touch(queue)
        if queue.number not in reported:
            reported.add(queue.number)
            broker.queue_event(
                queue, "invalid_json", topic=messages.topic, invalid=queue.header.invalid
            )


def count_discarded(broker: Broker, queue: Queue, reason: Reason) -> None:
    """Count a message that a queue discards (S4)."""
    queue.count("discarded")
    discarded = queue.header.discarded
    discarded[reason.value] = discarded.get(reason.value, 0) + 1
    broker.touch(queue)


def discard(broker: Broker, queue: Queue | None, reason: Reason, message: Incoming) -> None:
    """Discard a message for one queue (S4). Without a queue: it matches none (S6)."""
    if queue is None:
        broker.count_refused(message.vpn, reason.value)
    else:
        count_discarded(broker, queue, reason)
    _journal(broker, "discarded", queue, reason, message)
    if message.sender:
        message.sender.discarded(message.seq, reason.value, told_name(queue))


def refuse(
    broker: Broker, queue: Queue | None, reason: Reason, message: Incoming, detail: str = ""
) -> None:
    """Refuse a message because of one queue, or for a reason that concerns none. No queue stores
    it."""
    count_refusal(broker, queue, reason, message)
    if message.sender:
        message.sender.refused(message.seq, reason.value, told_name(queue), detail)


def count_refusal(broker: Broker, queue: Queue | None, reason: Reason, message: Incoming) -> None:
    """Count and journal a refusal."""
    if queue is None:
        broker.count_refused(message.vpn, reason.value)
    else:
        rejected = queue.header.rejected
        rejected[reason.value] = rejected.get(reason.value, 0) + 1
        broker.touch(queue)
    _journal(broker, "rejected", queue, reason, message)


def refuse_plain(broker: Broker, checked: CheckedMessages, record: Incoming) -> None:
    """Handle queues that refuse a plain record. Its writer gets no answer, so the other queues keep
    it (S5). The queue counts each one, and writes an event for the first in a row."""
    for queue, reason in checked.refused:
        refuse(broker, queue, reason, record)
    for queue, reason in checked.refused + checked.discards:
        if not queue.header.refuses_plain:
            queue.header.refuses_plain = True
            broker.event(
                "plain_record_refused", record.vpn, told_name(queue), topic=record.topic,
                reason=reason.value,
            )  # fmt: skip
    for one in checked.kept:
        one.queue.header.refuses_plain = False


def _journal(
    broker: Broker, event: str, queue: Queue | None, reason: Reason, message: Incoming
) -> None:
    broker.journal.segments.append(
        JournalSegment(
            event, message.vpn, told_name(queue), reason=reason.value, topic=message.topic,
            partitions=message.partitions, offsets=message.offsets, items=message.items,
        )
    )  # fmt: skip
