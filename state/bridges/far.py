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
from typing import TYPE_CHECKING, Any

import msgspec

from ...protocol.bridges import BridgeReceipt, BridgeSend
from ...protocol.errors import Reason
from ...protocol.messages import QUEUE_ALONE, PublishHeader, Records
from ..isolation import Refusals
from ..mesh.known_places import is_moving
from ..mesh.saying import say
from ..phases.admission import Admission
from ..phases.incoming import Incoming, Span

if TYPE_CHECKING:
    from ..broker import Broker

COLUMNS = ("to", "payloads", "keys", "headers", "times", "ttl_ends", "priorities", "dmq", "due")
Refused = tuple[int, str, str]  # taken before, reason, queue


class Outcome:
    """What became of one message; it hears what a producer's receipt would say."""

    refusal: tuple[str, str] | None = None

    def stored(self, seq: int, number: int, count: int = 1) -> None:
        """It was taken."""

    def discarded(self, seq: int, reason: str, queue: str) -> None:
        """A queue threw it away, which is its right (S4)."""

    def refused(self, seq: int, reason: str, queue: str, detail: str) -> None:
        """It was not taken, by this queue."""
        self.refusal = reason, queue


def taken(
    broker: Broker, sent: BridgeSend, may_bring: Callable[[str], bool] = lambda to: True
) -> BridgeReceipt:
    """Take in what a bridge brings; the answer. may_bring: of a destination, whether it may. Raises
    ValueError for columns that do not fit together, and headers that are none."""
    n = len(sent.payloads)
    if any(len(getattr(sent, name)) != n for name in COLUMNS) or sum(sent.lanes) != n:
        raise ValueError(f"bridge {sent.bridge!r}: columns of different lengths")
    if n and max(sent.to) >= len(sent.destinations):
        raise ValueError(f"bridge {sent.bridge!r}: a destination that is not named")
    for text in filter(None, sent.headers):
        msgspec.json.decode(text)  # now: in the middle of a lane it would be too late
    admission = Admission(broker, Refusals())
    admission.look_at_files(_records(sent))
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


def refuse_all(broker: Broker, sender: int, sent: BridgeSend) -> None:
    """See `all_refused`."""
    say(broker, sender, all_refused(sent))


def all_refused(sent: BridgeSend, reason: Reason = Reason.MALFORMED) -> BridgeReceipt:
    """Something failed in this record, and nothing of it was taken: each lane is held. Held lanes
    are tried message by message, so in the end only the one that fails is."""
    refused = [(lane, 0, reason.value, "") for lane in range(len(sent.lanes))]
    return BridgeReceipt(sent.link, sent.number, refused)


def _records(sent: BridgeSend) -> Records:
    """What counts against spool files."""
    n = len(sent.payloads)
    texts = [None if h is None else h.decode("utf-8", "replace") for h in sent.headers]
    return Records([""] * n, [0] * n, [0] * n, sent.times, sent.keys, list(sent.payloads),
                   [None] * n, texts)  # fmt: skip


def _take_lane(
    broker: Broker, admission: Admission, sent: BridgeSend, at: int, end: int, kept_out: set[int]
) -> Refused | None:
    """Take in one lane's messages until one is refused. kept_out: destinations that none may have
    from here."""
    start = at
    away = _is_away(broker, sent, at)
    if away is not None:
        return (0, Reason.MOVED.value, away)
    while at < end:
        if sent.to[at] in kept_out:
            return (at - start, Reason.PERMISSION_DENIED.value, "")
        alike = _alike(sent, at, end)
        if alike > 1 and _take_together(broker, admission, sent, at, alike):
            at += alike
            continue
        for row in range(at, at + alike):
            outcome = Outcome()
            header, record = _header(sent, row), _record(broker, sent, row)
            admission.offer(sent.vpn, header, record, outcome)
            if outcome.refusal is not None and not _is_kept_out(admission, sent, row, outcome):
                return (row - start, *outcome.refusal)
        at += alike
    return None


def _is_away(broker: Broker, sent: BridgeSend, at: int) -> str | None:
    """The queue that a trail follows, where it is not here, or not yet; None: it is here, or no
    trail says this."""
    to = sent.destinations[sent.to[at]]
    if not to.startswith(QUEUE_ALONE):
        return None
    name = to.removeprefix(QUEUE_ALONE)
    queue = broker.find(sent.vpn, name)
    return name if queue is None or is_moving(queue) else None


def _is_kept_out(admission: Admission, sent: BridgeSend, row: int, outcome: Outcome) -> bool:
    """Whether there are queues for its destination, and their filters refuse it."""
    assert outcome.refusal is not None
    nowhere = outcome.refusal[0] == Reason.NO_MATCHING_DESTINATION
    return nowhere and admission.has_queues(sent.vpn, sent.destinations[sent.to[row]])


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


def _take_together(broker: Broker, admission: Admission, sent: BridgeSend, at: int, n: int) -> bool:
    _, partition, offset = _place(broker)
    rows = slice(at, at + n)
    span = Span(sent.payloads[rows], 1, sent.times[rows], [partition] * n, [offset] * n,
                list(range(at, at + n)))  # fmt: skip
    return admission.offer_all(sent.vpn, _header(sent, at), _record(broker, sent, at), span)


def _header(sent: BridgeSend, row: int) -> PublishHeader:
    """As its producer said it. Its time to live counts on from when it was published (X4)."""
    ends = sent.ttl_ends[row]
    return PublishHeader(
        to=sent.destinations[sent.to[row]], priority=sent.priorities[row], dmq=sent.dmq[row],
        ttl_ms=ends - sent.times[row] if ends else None, deliver_at=sent.due[row] or None,
    )  # fmt: skip


def _record(broker: Broker, sent: BridgeSend, row: int) -> Incoming:
    text = sent.headers[row]
    return Incoming(
        *_place(broker), sent.times[row], sent.keys[row], sent.payloads[row], None,
        None if text is None else text.decode(), row,
    )  # fmt: skip


def _place(broker: Broker) -> tuple[str, int, int]:
    """Where the record stands that is being heard."""
    place: Any = broker.at
    assert isinstance(place, tuple)
    return place
