"""The channel between two brokers, and how rebuilt brokers take it up again.

The sender numbers its records, and the receiver drops numbers that it has had. Records are outputs
of a step, and Kafka keeps their order, so each arrives at least once. Both numbers are part of the
brokers' states. The channel repeats nothing by itself and depends on no time.

A missing number means that Kafka lost records. The receiver writes the event ``mesh_gap``, both
sides repeat everything unconfirmed, and the channel continues behind the gap. An unreadable record
counts as lost too. Its repetition may be unreadable again, so the receiver asks for it once a
minute (`ASK_AGAIN_MS`). Meanwhile it skips what the same lane has behind it (`handover`).

Rebuilt brokers (R3). Each is rebuilt as of some step. Its later steps are lost, though others may
have received their records. Two things must hold before the brokers continue:

- *No broker has received a record of a lost step.* A broker that has received more than the sender,
  as rebuilt, has sent goes back to an earlier step, until this holds for all (`agree`). Records
  that were sent and not received are still in Kafka, and are read later.
- *Records of lost steps are skipped.* They are in Kafka too. A broker continues its numbers far
  ahead, and the others know the range of numbers that belongs to lost steps (`skip_lost_steps`).

On another Kafka, records that were sent and not received are lost too. So each broker greets the
others. A broker that misses numbers says so, and both repeat everything unconfirmed
(`Mesh._repeat_all`). Receivers recognise repeated messages by their ids, as far as a queue
remembers them.

Then no broker depends on a lost step, and all continue as after any crash.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..protocol import mesh_messages
from ..protocol.mesh_messages import MeshMessage
from ..protocol.outputs import MeshRecord
from ..state.queue.broker import Broker
from .facts import MeshFacts, Peer


def say(broker: Broker, facts: MeshFacts, to: int, message: MeshMessage) -> None:
    """Send a message to another broker; or to itself, which reads it like any other."""
    header = broker.header
    peer = facts.peers.get(to)
    if peer is None:
        peer = facts.peers[to] = Peer(header.name)
    peer.said += 1
    broker.emit(MeshRecord(peer.name, header.number, header.name, header.epoch, peer.said, message))


ASK_AGAIN_MS = 60_000


class HeardMessage(NamedTuple):
    """A received record. message: None if it cannot be read; why: the reason; lost: the number of
    the last record lost before it (0: none)."""

    sender: int
    message: MeshMessage | None
    lost: int
    why: str = ""


def hear(broker: Broker, facts: MeshFacts, vpn: str, value: bytes | None) -> HeardMessage | None:
    """Read a record of another broker, each once, in their order. None if it was received before or
    is from another home. Raises ValueError."""
    envelope = mesh_messages.decode(value)
    if envelope.epoch != broker.header.epoch:
        broker.count_refused(vpn, "other_home")
        return None
    if envelope.sender in facts.removed:  # everything it sent was read before it left
        return None
    peer = facts.peers.get(envelope.sender)
    if peer is None:
        peer = facts.peers[envelope.sender] = Peer(envelope.name, confirmed=facts.edition)
    if envelope.number <= peer.heard or is_lost(peer, envelope.number):
        return None
    missing = envelope.number - next_word(peer)
    if missing > 0:
        skipped = [b - a + 1 for a, b in peer.lost_words if peer.heard < a and b < envelope.number]
        broker.event("mesh_gap", vpn, broker=peer.name, records=missing - sum(skipped))
    peer.heard = envelope.number
    if peer.lost_words and peer.lost_words[0][1] < peer.heard:
        del peer.lost_words[0]
    lost = envelope.number - 1 if missing > 0 else 0
    try:
        return HeardMessage(envelope.sender, mesh_messages.decode_body(envelope), lost)
    except ValueError as error:
        peer.skipped.append(envelope.number)
        return HeardMessage(envelope.sender, None, lost, str(error))


# ---------------------------------------------------------------- rejoining


WORDS_AHEAD = 1 << 32  # far more records than the lost steps can have sent


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
        ahead = next((s for s in speakers.values() if _has_received_too_much(s, speakers)), None)
        if ahead is None:
            return steps
        steps[ahead.name] = _earlier(ahead.name, steps[ahead.name], speakers, speaker_at)


def _speaker_at(speaker_at: SpeakerAt, name: str, step: int) -> RejoiningBroker:
    speaker = speaker_at(name, step)
    if speaker is None:
        raise LookupError(f"broker {name!r}: no known step of it fits the other brokers")
    return speaker


def _has_received_too_much(own: RejoiningBroker, speakers: dict[str, RejoiningBroker]) -> bool:
    for other in speakers.values():
        heard, sent = own.peers.get(other.number), other.peers.get(own.number)
        if heard is not None and heard.heard > (0 if sent is None else sent.said):
            return True
    return False


def _earlier(
    name: str, step: int, speakers: dict[str, RejoiningBroker], speaker_at: SpeakerAt
) -> int:
    """The last step before this one at which a broker has not received too much. The numbers that
    it has received only grow, so this is a binary search."""

    def fits(at: int) -> bool:
        return not _has_received_too_much(_speaker_at(speaker_at, name, at), speakers)

    back = 1
    while not fits(max(step - back, 1)):
        if step - back <= 1:
            raise LookupError(f"broker {name!r}: no known step of it fits the other brokers")
        back *= 2
    low = max(step - back, 1)
    return low + bisect_left(range(low, step), True, key=lambda at: not fits(at)) - 1


def skip_lost_steps(speakers: Iterable[RejoiningBroker]) -> None:
    """Let all brokers skip the records of each other's lost steps."""
    everybody = list(speakers)
    for one in everybody:
        for other in everybody:
            peer = one.peers.get(other.number)
            if peer is not None:
                hearer = other.peers.setdefault(one.number, Peer(one.name))
                hearer.lost_words.append([peer.said + 1, peer.said + WORDS_AHEAD])
                peer.said += WORDS_AHEAD


def next_word(peer: Peer) -> int:
    """The number of the next record from a broker."""
    number = peer.heard + 1
    for first, last in peer.lost_words:
        if first <= number <= last:
            number = last + 1
    return number


def is_lost(peer: Peer, number: int) -> bool:
    """Whether this number belongs to a lost step."""
    return any(first <= number <= last for first, last in peer.lost_words)
