"""The far end of a bridge: accepts senders, and stores their messages lane by lane (H1–H3, C4, X4).

Senders. A record of `<vpn>.bridge-in` is from a broker of another home and is not trusted. It can
only bring messages over a bridge that is defined here (with an address as its `from`), for that
bridge's subscriptions, into the VPN of the topic. The home of the first sender owns the bridge:
others are refused until it is deleted and defined again, and the near end shows why. If the owner
recreates its end, the new link has a higher number, and the old one is ignored. Records may be
repeated, and one may be missing for a while (`protocol.home_bridges`), so numbers are accepted one
after the other. A repeated record is answered again, since its answer may be lost. A deleted bridge
keeps its numbers, so no message is ever stored twice. Messages from another VPN of this home need a
bridge too.

Storing. Each message meets the checks of any publish (S3–S6), under the rules of this broker. If
one is refused, nothing behind it in its lane is stored, which keeps the lane's order. The receipt
says how far each lane came, and which queue stopped it. A discarded message counts as stored, as
for a producer (S4). A message without a matching queue is refused while `on_no_match` is `nack`, so
it waits at the near end. A message that all filters refuse is counted and accepted, because it
would hold its lane for ever.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from crc32c import crc32c

from ...definitions.bridge import BridgeDefinition, far_address, is_vpn, parse_bridge
from ...protocol import topics
from ...protocol.errors import Reason
from ...protocol.home_bridges import (
    WAITING,
    CopierState,
    HomeAnswer,
    HomeSend,
    answers_key,
    decode_send,
)
from ...protocol.mesh_messages import BridgeReceipt, BridgeSend
from ...protocol.messages import PublishHeader
from ...protocol.outputs import HomeRecord
from ...state.phases.admission import Admission
from ...state.phases.incoming import Incoming
from ...state.queue.broker import Broker
from ...state.queue.broker_facts import RecordPosition
from ...state.queue.queue import Queue
from ...state.rules.routing import queues_of_destination
from .bridge_facts import Arrival, BridgeFacts, HeardHome

HOMES_MAX = 8  # homes whose numbers a bridge remembers
FAILED_MAX = 100  # failed messages that it remembers, since each failure costs a replay


def open_arrival(
    broker: Broker, facts: BridgeFacts, bridge: BridgeDefinition, born: int
) -> None:  # fmt: skip
    """Open a bridge that is defined here, or defined again."""
    existing = facts.arrival(bridge.vpn, bridge.name)
    arrival = existing or Arrival(bridge.name, bridge.origin, bridge.subscriptions)
    again = existing is not None and existing.is_open
    arrival.origin, arrival.subscriptions = bridge.origin, bridge.subscriptions
    arrival.is_open, arrival.failed, arrival.born = True, [], born
    facts.arrivals.setdefault(bridge.vpn, {})[bridge.name] = arrival
    broker.event("bridge_made", bridge.vpn, bridge=bridge.name, to=bridge.to, again=again)


def close_arrival(broker: Broker, vpn: str, arrival: Arrival) -> None:
    """Close a deleted bridge; its numbers stay."""
    arrival.is_open, arrival.peer = False, None
    broker.event("bridge_deleted", vpn, bridge=arrival.name, messages=0)


def bring_across(broker: Broker, facts: BridgeFacts, sent: BridgeSend) -> BridgeReceipt:
    """Store messages from another VPN of this home, if a bridge allows it; returns the receipt.
    After ValueError, `across_failed` makes the receipt."""
    arrival = facts.arrival(sent.vpn, sent.bridge)
    if arrival is None or not arrival.is_open or not _is_from(arrival.origin, sent.came_from):
        return all_refused(sent, Reason.PERMISSION_DENIED)
    return _take(broker, arrival, sent)


def across_failed(facts: BridgeFacts, sent: BridgeSend) -> BridgeReceipt:
    """The receipt after a failure, which holds all lanes. A message that fails alone is remembered,
    and not tried again."""
    arrival = facts.arrival(sent.vpn, sent.bridge)
    if arrival is not None:
        _remember(arrival, sent)
    return all_refused(sent)


def _answered(home: HeardHome, sent: BridgeSend) -> BridgeReceipt | None:
    """The earlier answer to a repeated record, or None."""
    if sent.link != home.link or sent.number not in home.refused:
        return None
    return BridgeReceipt(sent.link, sent.number, home.refused[sent.number])


def _remember(arrival: Arrival, sent: BridgeSend) -> None:
    if len(sent.payloads) == 1:
        arrival.failed = [*arrival.failed, _digest(sent)][-FAILED_MAX:]


def _is_from(origin: str, vpn: str) -> bool:
    return is_vpn(origin) and far_address(origin).place == vpn


def _take(broker: Broker, arrival: Arrival, sent: BridgeSend) -> BridgeReceipt:
    _check(sent)
    arrival.last = broker.now
    if len(sent.payloads) == 1 and _digest(sent) in arrival.failed:
        return all_refused(sent)
    answer = store_messages(broker, sent, arrival.may_bring)
    back = sum(sent.lanes[lane] - before for lane, before, _, _ in answer.refused)
    arrival.taken += len(sent.payloads) - back
    arrival.refused += len(answer.refused)
    return answer


def receive(
    broker: Broker, facts: BridgeFacts, vpn: str, partition: int, value: bytes | None, failed: str
) -> None:
    """Handle one record. failed: why it must be skipped, or empty. Raises ValueError for a refused
    record, which changes nothing but may have been answered."""
    message = decode_send(value)
    name = message.send.bridge
    arrival = facts.arrival(vpn, name)
    if arrival is None or not arrival.is_open or is_vpn(arrival.origin):
        raise _refusal(broker, vpn, partition, message, _why_not_here(facts, vpn, name))
    owner, _ = arrival.peer = arrival.peer or (message.epoch, message.broker)
    if owner != message.epoch:
        why = f"is for home {owner}; to admit another home, delete it here and define it again"
        raise _refusal(broker, vpn, partition, message, why)
    is_next = _accept_number(broker, vpn, arrival, message)
    home = arrival.homes[message.epoch]
    if not is_next:
        earlier = _answered(home, message.send)
        if earlier is not None:
            _answer(broker, vpn, partition, message, HomeAnswer(earlier))
        return
    sent = msgspec.structs.replace(message.send, vpn=vpn)
    try:
        if failed:
            _check(sent)
            _remember(arrival, sent)
            raise ValueError(f"it failed: {failed}")
        receipt = _take(broker, arrival, sent)
    except ValueError:
        arrival.last = broker.now
        _answer_first(broker, vpn, partition, message, home, all_refused(sent))
        raise
    _answer_first(broker, vpn, partition, message, home, receipt)


def _why_not_here(facts: BridgeFacts, vpn: str, name: str) -> str:
    """Why a bridge does not arrive at this broker."""
    defined = facts.definitions.get(vpn, {}).get(name)
    bridge = None if defined is None else parse_bridge(defined)
    if bridge is None or not bridge.expects_home:
        return "no bridge of this name arrives here"
    to = bridge.to
    return f"arrives at broker {to!r} here: put ?broker={to} into its `to`"


def _digest(sent: BridgeSend) -> int:
    """The digest of a record's only message."""
    return crc32c(sent.payloads[0], crc32c(sent.destinations[0].encode()))


def _accept_number(broker: Broker, vpn: str, arrival: Arrival, message: HomeSend) -> bool:
    """Accept a record's number if it is the next one; returns whether it is."""
    link, number = message.send.link, message.send.number
    home = arrival.homes.get(message.epoch)
    if home is None or link > home.link:
        arrival.homes.pop(message.epoch, None)
        arrival.peer = message.epoch, message.broker
        home = arrival.homes[message.epoch] = HeardHome(link, 0)
        for old in list(arrival.homes)[:-HOMES_MAX]:
            del arrival.homes[old]
    if link == home.link:  # all before `oldest` were answered, maybe by another broker of this home
        home.heard = max(home.heard, min(message.oldest, number) - 1)
        home.refused = {n: one for n, one in home.refused.items() if n >= message.oldest}
    if link < home.link or number <= home.heard:
        arrival.repeated += 1
        return False
    if number > home.heard + 1:
        if home.missed != home.heard + 1:
            home.missed = home.heard + 1
            broker.event("bridge_gap", vpn, bridge=arrival.name, number=home.missed, came=number)
            broker.count_refused(vpn, "bridge_gap")
        return False
    home.heard = number
    return True


def _answer_first(
    broker: Broker, vpn: str, partition: int, message: HomeSend, home: HeardHome,
    receipt: BridgeReceipt,
) -> None:  # fmt: skip
    """Answer a record, and remember the answer."""
    home.refused[receipt.number] = receipt.refused
    _answer(broker, vpn, partition, message, HomeAnswer(receipt))


def _answer(
    broker: Broker, vpn: str, partition: int, message: HomeSend, answer: HomeAnswer | CopierState
) -> None:
    topic = topics.topic(vpn, topics.BRIDGE_ANSWERS)
    key = answers_key(message.epoch, message.send.bridge)
    broker.emit(HomeRecord(topic, partition, key, answer))


def _refusal(
    broker: Broker, vpn: str, partition: int, message: HomeSend, why: str
) -> ValueError:  # fmt: skip
    """Tell a near end why nothing of it is accepted (H2); returns the error. Its messages stay in
    transit, and the copier brings them again."""
    sender = f"broker {message.broker!r} of home {message.epoch} sends it"
    error = f"bridge: {message.send.bridge!r} – {why}; {sender}"
    _answer(broker, vpn, partition, message, CopierState(WAITING, error))
    return ValueError(error)


# ---------------------------------------------------------------- storing


COLUMNS = ("to", "payloads", "keys", "headers", "times", "ttl_ends", "priorities", "dmq", "due")
Refused = tuple[int, str, str]  # taken before, reason, queue


class Outcome:
    """The outcome of messages: the refusal, if any."""

    refusal: tuple[str, str] | None = None

    def take(self, seq: int, count: int = 1) -> None:
        """See `Answerable`."""

    def stored(self, seq: int, number: int, count: int = 1) -> None:
        """See `Answerable`."""

    def discarded(self, seq: int, reason: str, queue: str) -> None:
        """See `Answerable`."""

    def refused(self, seq: int, reason: str, queue: str, detail: str) -> None:
        """See `Answerable`. Keeps the reason and the queue."""
        self.refusal = reason, queue


def _check(sent: BridgeSend) -> None:
    """Raise ValueError for columns of different lengths, and for malformed headers: in the middle
    of a lane it would be too late."""
    n = len(sent.payloads)
    if any(len(getattr(sent, name)) != n for name in COLUMNS) or sum(sent.lanes) != n:
        raise ValueError(f"bridge {sent.bridge!r}: columns of different lengths")
    if n and max(sent.to) >= len(sent.destinations):
        raise ValueError(f"bridge {sent.bridge!r}: a destination that is not named")
    for text in filter(None, sent.headers):
        msgspec.json.decode(text)


def store_messages(
    broker: Broker, sent: BridgeSend, may_bring: Callable[[str], bool]
) -> BridgeReceipt:
    """Store a bridge's messages; returns the receipt. may_bring: whether a destination is
    allowed."""
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
    """A receipt that refuses all lanes, after a failure that stored nothing. Held lanes are then
    tried message by message, so in the end only the failing one stays held."""
    refused = [(lane, 0, reason.value, "") for lane in range(len(sent.lanes))]
    return BridgeReceipt(sent.link, sent.number, refused)


def _take_lane(
    broker: Broker, admission: Admission, sent: BridgeSend, at: int, end: int, kept_out: set[int]
) -> Refused | None:
    """Store a lane's messages until one is refused. kept_out: destinations that are not allowed."""
    start = at
    while at < end:
        if sent.to[at] in kept_out:
            return (at - start, Reason.PERMISSION_DENIED.value, "")
        n = _alike(sent, at, end)
        if n > 1 and admission.offer(_incoming(broker, sent, at, at + n, Outcome())):
            at += n
            continue
        for row in range(at, at + n):
            outcome = Outcome()
            admission.offer(_incoming(broker, sent, row, row + 1, outcome))
            if outcome.refusal is not None and not _is_kept_out(broker, sent, row, outcome):
                return (row - start, *outcome.refusal)
        at += n
    return None


def _is_kept_out(broker: Broker, sent: BridgeSend, row: int, outcome: Outcome) -> bool:
    """Whether its destination has queues, but their filters refuse it."""
    assert outcome.refusal is not None
    nowhere = outcome.refusal[0] == Reason.NO_MATCHING_DESTINATION
    to = sent.destinations[sent.to[row]]
    queues: list[Queue] = queues_of_destination(broker, sent.vpn, to) if nowhere else []
    return bool(queues)


def _alike(sent: BridgeSend, at: int, end: int) -> int:
    """How many messages from here on differ only in payload and time."""
    to, priority, dmq = sent.to[at], sent.priorities[at], sent.dmq[at]
    n = at
    while n < end and (
        sent.to[n] == to and sent.priorities[n] == priority and sent.dmq[n] == dmq
        and not sent.due[n] and not sent.ttl_ends[n]
        and sent.keys[n] is None and sent.headers[n] is None
    ):  # fmt: skip
        n += 1
    return max(n - at, 1)


def _incoming(broker: Broker, sent: BridgeSend, at: int, end: int, outcome: Outcome) -> Incoming:
    """Messages as their producer sent them. A time to live counts from the publish (X4)."""
    (topic, partition, offset), n = _position(broker), end - at
    ends = sent.ttl_ends[at]
    header = PublishHeader(
        to=sent.destinations[sent.to[at]], priority=sent.priorities[at], dmq=sent.dmq[at],
        ttl_ms=ends - sent.times[at] if ends else None, deliver_at=sent.due[at] or None,
    )  # fmt: skip
    texts = [None if text is None else text.decode() for text in sent.headers[at:end]]
    return Incoming(
        topic, header, 0, sent.keys[at:end], texts, sent.payloads[at:end], [partition] * n,
        [offset] * n, sent.times[at:end], list(range(at, end)),
        sent.vpn, outcome,
    )  # fmt: skip


def _position(broker: Broker) -> RecordPosition:
    """The record that is being handled."""
    place = broker.at
    assert isinstance(place, tuple)
    return place
