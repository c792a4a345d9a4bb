"""The checks that a message meets at the queues that it matches, and what follows (S3–S5).

The same for what is published here, what a bridge brings, and what another broker offers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...protocol.errors import Reason
from ...protocol.messages import PublishHeader
from ..rules.entering import Match, refusal
from .incoming import Incoming, delivered_bytes, headers_size, is_json

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue

NACK, DISCARD = "nack", "discard"


@dataclass(slots=True)
class Judged:
    """What becomes of a message at its matches. size: as quotas count it (Q8); refusals: the queues
    that refuse it with a nack, and why: then no queue keeps it, but for a plain record (S5)."""

    size: int
    kept: list[Match] = field(default_factory=list)
    discards: list[tuple[Queue, Reason]] = field(default_factory=list)
    refusals: list[tuple[Queue, Reason]] = field(default_factory=list)

    @property
    def refused(self) -> tuple[Queue, Reason] | None:
        """The first queue that refuses it, and why."""
        return self.refusals[0] if self.refusals else None


def judge(
    broker: Broker, vpn: str, header: PublishHeader, matches: list[Match], record: Incoming,
    told: set[int],
) -> Judged:  # fmt: skip
    """Look at a message with the eyes of all its matches; nothing but what is no JSON is counted.
    told: the queues of which an event has told that."""
    text = record.headers
    size = len(record.value) + (headers_size(text) if text else 0)
    whole = delivered_bytes(record.value, record.key, text)
    reasons = [reason_of(broker, vpn, m.queue, header, size, whole) for m in matches]
    _check_json(broker, vpn, matches, reasons, record, told)
    judged = Judged(size)
    for one, reason in zip(matches, reasons, strict=True):
        if reason is None:
            judged.kept.append(one)
        elif _outcome(one.queue, reason) == DISCARD:
            judged.discards.append((one.queue, reason))
        else:
            judged.refusals.append((one.queue, reason))
    return judged


def no_files(matches: list[Match]) -> Judged:
    """What becomes of a message where there is no room for another spool file (S8)."""
    return Judged(0, refusals=[(one.queue, Reason.SPOOL_FILES) for one in matches])


def reason_of(
    broker: Broker, vpn: str, queue: Queue, header: PublishHeader, size: int, whole: int = 0
) -> Reason | None:
    """The first check of S3 that fails. whole: bytes that one delivery of it would have."""
    spool, system = broker.spool.header, broker.header.system
    limits = broker.header.vpn_limits.get(vpn)
    if spool.bytes + size > system.max_spool_usage:
        return Reason.BROKER_QUOTA
    if limits is not None and limits.max_spool_usage is not None:
        used = spool.vpn_bytes.get(queue.header.vpn_number, 0)
        if used + size > limits.max_spool_usage:
            return Reason.VPN_QUOTA
    if whole > broker.limits.message_bytes:
        return Reason.MESSAGE_TOO_LARGE
    return refusal(queue, size, header.priority)


def _check_json(
    broker: Broker, vpn: str, matches: list[Match], reasons: list[Reason | None],
    record: Incoming, told: set[int],
) -> None:  # fmt: skip
    """What is no JSON in a `json` queue is counted and told, and refused where the queue's
    `on_invalid` says so."""
    kinds = [m.queue.definition.message_type == "json" for m in matches]
    if not any(kinds) or is_json(record.value):
        return
    for at, one in enumerate(matches):
        queue = one.queue
        if not kinds[at]:
            continue
        queue.header.invalid += 1
        if queue.number not in told:
            told.add(queue.number)
            name, invalid = queue.definition.name, queue.header.invalid
            broker.event("invalid_json", vpn, name, topic=record.topic, invalid=invalid)
        if queue.definition.on_invalid == NACK and reasons[at] is None:
            reasons[at] = Reason.MALFORMED


def _outcome(queue: Queue, reason: Reason) -> str:
    """What a failed check leads to (S4)."""
    if reason is Reason.MALFORMED:
        return NACK  # only where the queue asks for it
    policy = queue.definition.reject_msg_to_sender_on_discard
    if policy == "never" or (policy == "when-queue-enabled" and not queue.header.ingress):
        return DISCARD
    return NACK
