"""The far end's door: who comes in here, and what of it is heard (H1, C4).

A record of `<vpn>.bridge-in` is from a broker of another home. It is none of this home's, whatever
it says of itself: all that it may do is bring messages, over a bridge that is defined here (with an
address as its `from`), to what that bridge is for, in the VPN whose topic it is. Whoever comes
first over a bridge is who it is for; another one is refused until the bridge is deleted and defined
again.

Records may come again, and one may be missing until it does (`protocol.home_bridges`): the numbers
are taken one after the other. What comes again is answered again, since the answer may be
lost. A bridge that is deleted keeps its numbers, so that nothing that was
taken in is ever taken in again.

What comes from another VPN of this home is that VPN's to allow, in the same way.
"""

from __future__ import annotations

import msgspec
from crc32c import crc32c

from ...definitions.bridge import BridgeDefinition, bridge_to_wire
from ...definitions.far_address import far_address, is_vpn
from ...protocol import topics
from ...protocol.bridges import BridgeReceipt, BridgeSend
from ...protocol.errors import Reason
from ...protocol.home_bridges import HomeAnswer, HomeSend, answers_key, decode_send
from ...protocol.outputs import BridgeEntry, HomeRecord
from ...state.queue.broker import Broker
from .bridge_facts import Answers, Arrival, BridgeFacts, HeardHome
from .bridge_intake import all_refused, taken

HOMES_MAX = 8  # of which a bridge remembers numbers
FAILED_MAX = 100  # messages that failed; a step that fails is taken again, which costs a replay


def open_door(broker: Broker, facts: BridgeFacts, bridge: BridgeDefinition) -> None:
    """The bridge is defined here, or defined again."""
    known = facts.arrival(bridge.vpn, bridge.name)
    arrival = known or Arrival(bridge.name, bridge.origin, bridge.subscriptions)
    again = known is not None and known.is_open
    arrival.origin, arrival.subscriptions = bridge.origin, bridge.subscriptions
    arrival.is_open, arrival.failed = True, []
    facts.arrivals.setdefault(bridge.vpn, {})[bridge.name] = arrival
    if not is_vpn(bridge.origin):
        header, given = broker.header, bridge_to_wire(bridge)
        broker.emit(BridgeEntry(bridge.vpn, bridge.name, header.number, header.epoch, given))
    broker.event("bridge_made", bridge.vpn, bridge=bridge.name, to=bridge.to, again=again)


def close_door(broker: Broker, vpn: str, arrival: Arrival) -> None:
    """The bridge is deleted; its numbers stay."""
    arrival.is_open, arrival.peer = False, None
    if not is_vpn(arrival.origin):
        broker.emit(BridgeEntry(vpn, arrival.name, broker.header.number, broker.header.epoch, None))
    broker.event("bridge_deleted", vpn, bridge=arrival.name, messages=0)


def bring_across(
    broker: Broker, facts: BridgeFacts, sent: BridgeSend, sender: int | None = None
) -> BridgeReceipt:
    """Take in what another VPN of this home brings, if it may; the answer. sender: the broker that
    sends it, where that is another one. Raises ValueError, and then `across_failed` gives the
    answer."""
    arrival = facts.arrival(sent.vpn, sent.bridge)
    if arrival is None or not arrival.is_open or not _is_from(arrival.origin, sent.came_from):
        return all_refused(sent, Reason.PERMISSION_DENIED)
    if sender is None:  # of the same broker: no answer is lost
        return _take(broker, arrival, sent)
    known = _answered(arrival, f"broker {sender}", sent, sent.oldest)
    if known is not None:
        return known
    return _keep(arrival, f"broker {sender}", _take(broker, arrival, sent))


def across_failed(facts: BridgeFacts, sent: BridgeSend, sender: int) -> BridgeReceipt:
    """Taking it in failed: its lanes are held. A message that fails alone is not taken again."""
    arrival = facts.arrival(sent.vpn, sent.bridge)
    if arrival is None:
        return all_refused(sent)
    _remember(arrival, sent)
    return _keep(arrival, f"broker {sender}", all_refused(sent))


def _answered(arrival: Arrival, sender: str, sent: BridgeSend, oldest: int) -> BridgeReceipt | None:
    """What was answered to this number, which comes again since the answer may be lost."""
    answers = arrival.answers.get(sender)
    if answers is None or answers.link < sent.link:
        arrival.answers.pop(sender, None)
        answers = arrival.answers[sender] = Answers(sent.link)
        for old in list(arrival.answers)[:-HOMES_MAX]:
            del arrival.answers[old]
    for number in [number for number in answers.refused if number < oldest]:
        del answers.refused[number]
    if sent.link != answers.link or sent.number not in answers.refused:
        return None
    return BridgeReceipt(sent.link, sent.number, answers.refused[sent.number])


def _keep(arrival: Arrival, sender: str, answer: BridgeReceipt) -> BridgeReceipt:
    """Remember an answer."""
    answers = arrival.answers.get(sender)
    if answers is not None and answers.link == answer.link:
        answers.refused[answer.number] = answer.refused
    return answer


def _remember(arrival: Arrival, sent: BridgeSend) -> None:
    if len(sent.payloads) == 1:
        arrival.failed = [*arrival.failed, _digest(sent)][-FAILED_MAX:]


def _is_from(origin: str, vpn: str) -> bool:
    return is_vpn(origin) and far_address(origin).place == vpn


def _take(broker: Broker, arrival: Arrival, sent: BridgeSend) -> BridgeReceipt:
    arrival.last = broker.now
    if len(sent.payloads) == 1 and _digest(sent) in arrival.failed:
        return all_refused(sent)
    answer = taken(broker, sent, arrival.may_bring)
    back = sum(sent.lanes[lane] - before for lane, before, _, _ in answer.refused)
    arrival.taken += len(sent.payloads) - back
    arrival.refused += len(answer.refused)
    return answer


def hear(
    broker: Broker, facts: BridgeFacts, vpn: str, partition: int, value: bytes | None, failed: str
) -> None:
    """One record. failed: why it must not be taken in, empty where it may. Raises ValueError for
    what is refused, and nothing has changed then but what was answered."""
    said = decode_send(value)
    name = said.send.bridge
    arrival = facts.arrival(vpn, name)
    who = f"broker {said.broker!r} of home {said.epoch}"
    if arrival is None or not arrival.is_open or is_vpn(arrival.origin):
        raise ValueError(f"bridge: {name!r} – no bridge of this name arrives here; {who} sends it")
    peer = arrival.peer = arrival.peer or (said.epoch, said.broker)
    if peer != (said.epoch, said.broker):
        theirs = f"broker {peer[1]!r} of home {peer[0]}"
        raise ValueError(f"bridge: {name!r} – is for {theirs}; {who} sends it")
    home = f"home {said.epoch}"
    known = _answered(arrival, home, said.send, said.oldest)
    if not _is_next(broker, vpn, arrival, said):
        if known is not None:
            _answer(broker, vpn, partition, said, known)
        return
    sent = msgspec.structs.replace(said.send, vpn=vpn)
    try:
        if failed:
            _remember(arrival, sent)
            raise ValueError(f"it failed: {failed}")
        answer = _take(broker, arrival, sent)
    except ValueError:
        arrival.last = broker.now
        _answer(broker, vpn, partition, said, _keep(arrival, home, all_refused(sent)))
        raise
    _answer(broker, vpn, partition, said, _keep(arrival, home, answer))


def _digest(sent: BridgeSend) -> int:
    """Of a message alone."""
    return crc32c(sent.payloads[0], crc32c(sent.destinations[0].encode()))


def _is_next(broker: Broker, vpn: str, arrival: Arrival, said: HomeSend) -> bool:
    """Whether this is the next number, which counts as heard then."""
    link, number = said.send.link, said.send.number
    home = arrival.homes.get(said.epoch)
    if home is None or link > home.link:
        arrival.homes.pop(said.epoch, None)
        home = arrival.homes[said.epoch] = HeardHome(link, min(said.oldest, number) - 1)
        for old in list(arrival.homes)[:-HOMES_MAX]:
            del arrival.homes[old]
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


def _answer(
    broker: Broker, vpn: str, partition: int, said: HomeSend, receipt: BridgeReceipt
) -> None:
    topic = topics.topic(vpn, topics.BRIDGE_ANSWERS)
    key = answers_key(said.epoch, said.send.bridge)
    broker.emit(HomeRecord(topic, partition, key, HomeAnswer(receipt)))
