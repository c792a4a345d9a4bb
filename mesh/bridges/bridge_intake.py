"""The far end of a bridge: messages are taken in as a producer's are, lane by lane (H1–H3, X4).

Each message meets the same checks as any publish (S3–S6), under the rules of this broker. Where one
is refused, nothing behind it in its lane is taken, so the order within a lane stays; the receipt
says how far each lane came, and by which queue it was stopped. What a queue discards is taken, as
it is for a producer (S4). A message whose destination nobody has here is refused while
`on_no_match` is `nack`, so it waits at the near end; one that every filter refuses has nowhere to
go, is counted and taken, for it would hold its lane for ever.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ...protocol.bridges import BridgeReceipt, BridgeSend
from ...protocol.errors import Reason
from ...protocol.messages import PublishHeader
from ...state.phases.admission import Admission
from ...state.phases.incoming import Incoming
from ...state.queue.broker import Broker
from ...state.queue.broker_facts import RecordPosition
from ...state.queue.queue import Queue
from ...state.rules.routing import queues_of_destination

COLUMNS = ("to", "payloads", "keys", "headers", "times", "ttl_ends", "priorities", "dmq", "due")
Refused = tuple[int, str, str]  # taken before, reason, queue


class Outcome:
    """What became of messages; it hears what a producer's receipt would say."""

    refusal: tuple[str, str] | None = None

    def take(self, seq: int, count: int = 1) -> None:
        """See `Answerable`."""

    def stored(self, seq: int, number: int, count: int = 1) -> None:
        """See `Answerable`."""

    def discarded(self, seq: int, reason: str, queue: str) -> None:
        """See `Answerable`."""

    def refused(self, seq: int, reason: str, queue: str, detail: str) -> None:
        """See `Answerable`."""
        self.refusal = reason, queue


def taken(broker: Broker, sent: BridgeSend, may_bring: Callable[[str], bool]) -> BridgeReceipt:
    """Take in what a bridge brings; the answer. may_bring: of a destination, whether it may. Raises
    ValueError for columns that do not fit together, and headers that are none."""
    n = len(sent.payloads)
    if any(len(getattr(sent, name)) != n for name in COLUMNS) or sum(sent.lanes) != n:
        raise ValueError(f"bridge {sent.bridge!r}: columns of different lengths")
    if n and max(sent.to) >= len(sent.destinations):
        raise ValueError(f"bridge {sent.bridge!r}: a destination that is not named")
    for text in filter(None, sent.headers):
        msgspec.json.decode(text)  # now: in the middle of a lane it would be too late
    admission = Admission(broker)
    kept_out = {at for at, to in enumerate(sent.destinations) if not may_bring(to)}
    refused: list[tuple[int, int, str, str]] = []
    start = 0
    for lane, rows in enumerate(sent.lanes):
        stopped = _take_lane(broker, admission, sent, start, start + rows, kept_out)
        if stopped is not None:
            refused.append((lane, *stopped))
        start += rows
    admission.close()
    return BridgeReceipt(sent.link, sent.number, refused)


def all_refused(sent: BridgeSend, reason: Reason = Reason.MALFORMED) -> BridgeReceipt:
    """Something failed in this record, and nothing of it was taken: each lane is held. Held lanes
    are tried message by message, so in the end only the one that fails is."""
    refused = [(lane, 0, reason.value, "") for lane in range(len(sent.lanes))]
    return BridgeReceipt(sent.link, sent.number, refused)


def _take_lane(
    broker: Broker, admission: Admission, sent: BridgeSend, at: int, end: int, kept_out: set[int]
) -> Refused | None:
    """Take in one lane's messages until one is refused. kept_out: destinations that none may have
    from here."""
    start = at
    while at < end:
        if sent.to[at] in kept_out:
            return (at - start, Reason.PERMISSION_DENIED.value, "")
        n = _alike(sent, at, end)
        if n > 1 and admission.offer(sent.vpn, _incoming(broker, sent, at, at + n), Outcome()):
            at += n
            continue
        for row in range(at, at + n):
            outcome = Outcome()
            admission.offer(sent.vpn, _incoming(broker, sent, row, row + 1), outcome)
            if outcome.refusal is not None and not _is_kept_out(broker, sent, row, outcome):
                return (row - start, *outcome.refusal)
        at += n
    return None


def _is_kept_out(broker: Broker, sent: BridgeSend, row: int, outcome: Outcome) -> bool:
    """Whether there are queues for its destination, and their filters refuse it."""
    assert outcome.refusal is not None
    nowhere = outcome.refusal[0] == Reason.NO_MATCHING_DESTINATION
    to = sent.destinations[sent.to[row]]
    queues: list[Queue] = queues_of_destination(broker, sent.vpn, to) if nowhere else []
    return bool(queues)


def _alike(sent: BridgeSend, at: int, end: int) -> int:
    """How many messages from here on differ in payload and time only; 1 for what stands alone."""
    to, priority, dmq = sent.to[at], sent.priorities[at], sent.dmq[at]
    n = at
    while n < end and (
        sent.to[n] == to and sent.priorities[n] == priority and sent.dmq[n] == dmq
        and not sent.due[n] and not sent.ttl_ends[n]
        and sent.keys[n] is None and sent.headers[n] is None
    ):  # fmt: skip
        n += 1
    return max(n - at, 1)


def _incoming(broker: Broker, sent: BridgeSend, at: int, end: int) -> Incoming:
    """Messages as their producer said them. A time to live counts on from when one was published
    (X4)."""
    (topic, partition, offset), n = _place(broker), end - at
    ends = sent.ttl_ends[at]
    header = PublishHeader(
        to=sent.destinations[sent.to[at]], priority=sent.priorities[at], dmq=sent.dmq[at],
        ttl_ms=ends - sent.times[at] if ends else None, deliver_at=sent.due[at] or None,
    )  # fmt: skip
    texts = [None if text is None else text.decode() for text in sent.headers[at:end]]
    return Incoming(
        topic, header, 0, sent.keys[at:end], texts, sent.payloads[at:end], [partition] * n,
        [offset] * n, sent.times[at:end], list(range(at, end)),
    )  # fmt: skip


def _place(broker: Broker) -> RecordPosition:
    """Where the record stands that is being heard."""
    place = broker.at
    assert isinstance(place, tuple)
    return place
