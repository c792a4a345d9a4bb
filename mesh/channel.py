"""The channel between two brokers: reliable and in order; and how rebuilt brokers take it up again.

The sender numbers its records, and keeps each until the other broker confirms it. Every record
confirms what its sender has received; if there is nothing to say, a `Sync` does, within a second,
or in the same step for a change of the directory, whose client waits for it.
The receiver takes the numbers one after the other and drops repeated ones. If one is missing, Kafka
has lost it or it cannot be read: the receiver drops what comes behind it and asks for it once
(`mesh_gap`), and the sender repeats everything unconfirmed. A sender whose records stay unconfirmed
asks what has arrived, so that the loss of its last record, or of a question, shows too. So nothing
above the channel knows of lost records.

A message may be about a queue that the receiver does not know yet: the keeper's change of the
directory, which the sender knows, comes over another channel. Such a message counts as missing
until the change has come (`ask_for_early`). So nothing above knows of early messages either.

A record is kept without its queue's messages: these are in transit until the other broker has
answered, so the queue still has them (`Mesh._repeat`).

A broker's messages to itself are not written: it reads them in its next step.

A channel at which a step fails because of a bug stops until the engine begins (`stop_failed`). The
broker reads nothing from the other one, and repeats and confirms nothing. Nothing is lost, since
both keep what is unconfirmed.

Rebuilt brokers (R3). Each is rebuilt as of some step. Its later steps are lost, though others may
have received their records. Two things must hold before the brokers continue:

- *No broker depends on a lost step.* A broker that has received more than the sender, as rebuilt,
  has sent, or whose records were confirmed by a lost step, goes back to an earlier step, until this
  holds for all (`agree`).
- *Records of lost steps are skipped.* They are in Kafka too. So a broker continues its numbers far
  ahead, and the others drop what comes under lower ones (`skip_lost_steps`).

Then all repeat what is unconfirmed, since the new Kafka may not have it, and continue as after any
crash.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..protocol import mesh_messages
from ..protocol.mesh_messages import Come, Entries, HandOver, MeshMessage, Room, Sync
from ..protocol.outputs import MeshRecord
from ..state.limits import Budget
from ..state.queue.broker import Broker
from ..state.queue.broker_facts import RecordPosition
from ..state.storage.row import NEVER
from .facts import MeshFacts, Peer, Sent

CHANNEL = "#channel"  # in a failure's position instead of a topic; beside it, the other's number
CONFIRM_MS = 1_000  # a confirmation waits so long for a record that carries it
CONFIRM_RECORDS = 100  # or for so many records
SYNC_MS = 10_000  # between two questions for the same records


def say(
    broker: Broker, facts: MeshFacts, to: int, message: MeshMessage, ids: Sequence[int] = ()
) -> None:
    """Send a message to another broker; or to itself, which reads it in its next step. ids: of the
    queue's messages in it."""
    peer = facts.peers.get(to)
    if peer is None:
        peer = facts.peers[to] = Peer(broker.header.name)
    peer.said += 1
    body = mesh_messages.encode_body(message.without_messages())
    peer.unconfirmed.append(Sent(peer.said, message.kind, body, list(ids)))
    if to == broker.header.number:
        return
    peer.probe_at = min(peer.probe_at, broker.now + SYNC_MS)
    if not peer.repeat_from:  # else it is repeated, behind earlier records
        _emit(broker, peer, peer.said, message)


def say_again(broker: Broker, facts: MeshFacts, to: int, sent: Sent) -> None:
    """Send a record under a new number, as a repetition."""
    peer = facts.peers[to]
    if to != broker.header.number:
        peer.repeat_from = peer.repeat_from or peer.said + 1
    say(broker, facts, to, mesh_messages.decode_body(sent.kind, sent.body), sent.ids)


def stop_failed(
    broker: Broker, facts: MeshFacts, vpn: str, skipped: Mapping[RecordPosition, str]
) -> None:
    """Stop the channels that failed in an earlier attempt at this step. vpn: gets the events."""
    for (topic, number, _), why in sorted(skipped.items()):
        if topic == CHANNEL:
            peer = facts.peers[number]
            peer.is_stopped = True
            text = f"the channel to broker {peer.name!r} stops until the engine begins: {why}"
            broker.event("mesh_refused", vpn, why=text)


def sender_of(value: bytes | None) -> int:
    """The broker that sent a record; -1 if it cannot be read."""
    try:
        return mesh_messages.decode(value).sender
    except ValueError:
        return -1


def _emit(broker: Broker, peer: Peer, number: int, message: MeshMessage) -> None:
    header = broker.header
    own = header.number, header.name, header.epoch
    broker.emit(MeshRecord(peer.name, *own, number, message, peer.heard))
    peer.told, peer.confirm_at = peer.heard, NEVER


def _emit_sync(broker: Broker, peer: Peer, again: bool = False, answer: bool = False) -> None:
    # The last record that was said in order: those from `repeat_from` on will be.
    last = peer.repeat_from - 1 if peer.repeat_from else peer.said
    _emit(broker, peer, last, Sync(again, answer))


def _first(peer: Peer) -> int:
    """The number of the first record that can be repeated, or of the next one."""
    return peer.said - len(peer.unconfirmed) + 1


class HeardMessage(NamedTuple):
    """A received record."""

    sender: int
    message: MeshMessage


def hear(broker: Broker, facts: MeshFacts, vpn: str, value: bytes | None) -> HeardMessage | None:
    """Read a record of another broker, each once, in their order. None if it was received before,
    comes too early, is from another home, or the channel is stopped. Raises ValueError if it cannot
    be read."""
    envelope = mesh_messages.decode(value)
    if envelope.epoch != broker.header.epoch:
        broker.count_refused(vpn, "other_home")
        return None
    if envelope.sender in facts.removed:  # everything it sent was read before it left
        return None
    peer = facts.peers.get(envelope.sender)
    if peer is None:
        peer = facts.peers[envelope.sender] = Peer(envelope.name)
    if peer.is_stopped:
        return None
    _forget_confirmed(broker, peer, envelope.confirms)
    if envelope.kind == Sync.kind:
        message = mesh_messages.decode_body(envelope.kind, envelope.body)
        assert isinstance(message, Sync)
        _hear_sync(broker, peer, vpn, envelope.number, message)
        return None
    if envelope.number <= peer.heard:  # the other broker does not know that it has arrived
        peer.confirm_at = min(peer.confirm_at, broker.now + CONFIRM_MS)
        return None
    if envelope.number > peer.heard + 1:
        _ask(broker, peer, vpn, envelope.number - 1)
        return None
    try:
        message = mesh_messages.decode_body(envelope.kind, envelope.body)
    except ValueError:
        _ask(broker, peer, vpn, envelope.number)
        raise
    if _edition_of(message) > facts.edition:
        peer.missed = envelope.number  # asked for when the edition has come
        return None
    peer.heard = envelope.number
    is_due = envelope.kind == Entries.kind or peer.heard - peer.told >= CONFIRM_RECORDS
    peer.confirm_at = min(peer.confirm_at, broker.now + (0 if is_due else CONFIRM_MS))
    return HeardMessage(envelope.sender, message)


def _edition_of(message: MeshMessage) -> int:
    """The directory's edition that a message is about; 0 for any."""
    if isinstance(message, HandOver | Room):
        return message.born
    return message.move if isinstance(message, Come) else 0


def _forget_confirmed(broker: Broker, peer: Peer, number: int) -> None:
    """Forget the records up to this number: the other broker has them."""
    if not peer.unconfirmed or number < _first(peer):
        return
    del peer.unconfirmed[: number - _first(peer) + 1]
    peer.probe_at = broker.now + SYNC_MS if peer.unconfirmed else NEVER


def _hear_sync(broker: Broker, peer: Peer, vpn: str, last: int, message: Sync) -> None:
    """last: the number of the other broker's last record."""
    if message.again:
        peer.repeat_from = 1
    if message.answer:
        peer.confirm_at = min(peer.confirm_at, broker.now)
    if last > peer.heard:
        _ask(broker, peer, vpn, last, once_more=message.answer)


def _ask(broker: Broker, peer: Peer, vpn: str, last: int, once_more: bool = False) -> None:
    """Ask for the missing records up to this one; once, until the sender asks what has arrived."""
    is_new = peer.missed != peer.heard + 1
    if is_new:
        broker.event("mesh_gap", vpn, broker=peer.name, records=last - peer.heard)
    if is_new or once_more:
        peer.missed = peer.heard + 1
        _emit_sync(broker, peer, again=True)


def ask_for_early(broker: Broker, facts: MeshFacts) -> None:
    """After a change of the directory, ask for the messages that came too early."""
    for _, peer in sorted(facts.peers.items()):
        if peer.missed > peer.heard:
            _emit_sync(broker, peer, again=True)


Repeat = Callable[[int, Sent, Budget], MeshMessage]


def repeat_all(broker: Broker, facts: MeshFacts, repeat: Repeat) -> None:
    """Repeat what was asked for, or may be lost after a rebuild. repeat: makes a record's message
    again, and takes its messages from the budget."""
    budget = Budget(broker.limits.again_rows, broker.limits.again_bytes)
    for number, peer in sorted(facts.peers.items()):
        if peer.repeat_from and not peer.is_stopped:
            broker.at = CHANNEL, number, 0
            _repeat(broker, number, peer, repeat, budget)
    broker.at = None


def synchronize(broker: Broker, facts: MeshFacts) -> None:
    """At the end of a step, confirm, and ask what has arrived."""
    for number, peer in sorted(facts.peers.items()):
        if number == broker.header.number or peer.is_stopped:
            continue
        broker.at = CHANNEL, number, 0
        if peer.probe_at <= broker.now:
            peer.probe_at = broker.now + SYNC_MS
            _emit_sync(broker, peer, answer=True)
        if peer.confirm_at <= broker.now:
            _emit_sync(broker, peer)
    broker.at = None


def _repeat(broker: Broker, to: int, peer: Peer, repeat: Repeat, budget: Budget) -> None:
    """Repeat unconfirmed records within the budget, and the others in the next steps."""
    for sent in peer.unconfirmed:
        if sent.number < peer.repeat_from:
            continue
        if budget.spent:
            peer.repeat_from = sent.number
            broker.more_to_do = True
            return
        budget.take(1)
        _emit(broker, peer, sent.number, repeat(to, sent, budget))
    peer.repeat_from = 0


def take_own(broker: Broker, facts: MeshFacts) -> list[Sent]:
    """The messages that the broker sent to itself in its last step."""
    own = facts.peers.get(broker.header.number)
    if own is None or own.is_stopped:
        return []
    sent, own.unconfirmed = own.unconfirmed, []
    own.heard = own.said
    return sent


def deadline(broker: Broker, facts: MeshFacts) -> int:
    """When to read what it said to itself, or to synchronize, epoch ms, or NEVER."""
    peers = [peer for peer in facts.peers.values() if not peer.is_stopped]
    own = facts.peers.get(broker.header.number)
    if (own in peers and own.unconfirmed) or any(peer.repeat_from for peer in peers):
        return 1
    return min((min(peer.confirm_at, peer.probe_at) for peer in peers), default=NEVER)


# ---------------------------------------------------------------- rejoining


RECORDS_AHEAD = 1 << 32  # far more records than the lost steps can have sent


class RejoiningBroker(NamedTuple):
    """A broker as of a step. peers: the others as it knows them, by number."""

    name: str
    number: int
    peers: dict[int, Peer]


SpeakerAt = Callable[[str, int], RejoiningBroker | None]


def agree(last: dict[str, int], speaker_at: SpeakerAt) -> dict[str, int]:
    """The latest step of each broker such that no broker has received a record of another's later
    steps. last: the last known step of each; speaker_at: a broker after a step, None for steps
    before the first known one. Raises LookupError if no known steps fit together."""
    steps = dict(last)
    while True:
        speakers = {name: _speaker_at(speaker_at, name, step) for name, step in steps.items()}
        ahead = next((s for s in speakers.values() if _depends_on_lost(s, speakers)), None)
        if ahead is None:
            return steps
        steps[ahead.name] = _earlier(ahead.name, steps[ahead.name], speakers, speaker_at)


def _speaker_at(speaker_at: SpeakerAt, name: str, step: int) -> RejoiningBroker:
    speaker = speaker_at(name, step)
    if speaker is None:
        raise LookupError(f"broker {name!r}: no known step of it fits the other brokers")
    return speaker


def _depends_on_lost(own: RejoiningBroker, speakers: dict[str, RejoiningBroker]) -> bool:
    for other in speakers.values():
        peer, there = own.peers.get(other.number), other.peers.get(own.number) or Peer(own.name)
        if peer is None or other.number == own.number:
            continue
        if peer.heard > there.said or _first(peer) > there.heard + 1:
            return True
    return False


def _earlier(
    name: str, step: int, speakers: dict[str, RejoiningBroker], speaker_at: SpeakerAt
) -> int:
    """The last step before this one at which a broker does not depend on lost steps. The numbers
    only grow, so this is a binary search."""

    def fits(at: int) -> bool:
        return not _depends_on_lost(_speaker_at(speaker_at, name, at), speakers)

    back = 1
    while not fits(max(step - back, 1)):
        if step - back <= 1:
            raise LookupError(f"broker {name!r}: no known step of it fits the other brokers")
        back *= 2
    low = max(step - back, 1)
    return low + bisect_left(range(low, step), True, key=lambda at: not fits(at)) - 1


def skip_lost_steps(speakers: Iterable[RejoiningBroker]) -> None:
    """Number the unconfirmed records of all brokers anew, far ahead, so that the others drop the
    records of lost steps."""
    everybody = list(speakers)
    for one in everybody:
        for other in everybody:
            peer = one.peers.get(other.number)
            if peer is None or other.number == one.number:
                continue
            hearer = other.peers.setdefault(one.number, Peer(one.name))
            left = [sent for sent in peer.unconfirmed if sent.number > hearer.heard]
            peer.said += RECORDS_AHEAD
            for number, sent in enumerate(left, peer.said - len(left) + 1):
                sent.number = number
            peer.unconfirmed, peer.repeat_from = left, 1
            hearer.heard = hearer.told = peer.said - len(left)
