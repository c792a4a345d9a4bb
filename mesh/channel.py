"""The channel between two brokers: numbers on one side, and on the other what was heard is dropped.

What is said is an output of the step, and Kafka keeps its order; so it comes at least once, and
what comes again has a number that was heard. Both numbers stand in the states of the two brokers,
which are snapshots of their logs. Nothing is sent again, nothing waits for time.

A missing number means that Kafka lost records: that is said (event ``mesh_gap``), both sides say
again what they have under way, and the channel goes on behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..definitions import DEFAULT_VPN
from ..protocol import mesh_envelope
from ..protocol.errors import LakequeueError
from ..protocol.mesh_envelope import MeshMessage
from ..protocol.mesh_messages import WORDS
from ..protocol.messages import Records
from ..protocol.outputs import MeshRecord
from ..state.commands.answers import reject_record
from ..state.queue.broker import Broker
from ..state.queue.broker_facts import RecordPosition
from .facts import MeshFacts, Peer
from .rejoining import is_lost, next_word

Handlers = Mapping[str, Callable[[int, Any], None]]


def say(broker: Broker, facts: MeshFacts, to: int, said: MeshMessage) -> None:
    """Say something to another broker; or to itself, which then hears it as from others."""
    header = broker.header
    peer = facts.peers.get(to)
    if peer is None:
        peer = facts.peers[to] = Peer(header.name)
    peer.said += 1
    broker.emit(MeshRecord(peer.name, header.number, header.name, header.epoch, peer.said, said))


def hear(
    broker: Broker,
    facts: MeshFacts,
    records: Records,
    skipped: Mapping[RecordPosition, str],
    handlers: Handlers,
    failures: Handlers,
    missed: Callable[[int, int], None],
) -> None:
    """Hear what others have said since the last step, each thing once, in their order. failures:
    what is done where a handler fails, so that nothing is on its way for ever; missed: the same,
    where records were lost: from whom, and the number of the last."""
    vpn = next(iter(broker.header.vpns), DEFAULT_VPN)  # where what is refused is told
    for at in range(len(records)):
        broker.at = place = records.topics[at], records.partitions[at], records.offsets[at]
        heard = None
        try:
            heard = _heard(broker, facts, vpn, records.values[at])
            if heard is not None:
                if heard[2]:
                    missed(heard[0], heard[2])
                if place in skipped:
                    raise ValueError(f"it failed: {skipped[place]}")
                handlers[heard[1].kind](*heard[:2])
        except (LakequeueError, ValueError) as error:
            broker.event("mesh_refused", vpn, why=str(error))
            reject_record(broker, vpn, *place, records.keys[at], records.values[at], str(error))
            if heard is not None and heard[1].kind in failures:
                failures[heard[1].kind](*heard[:2])
    broker.at = None


def _heard(
    broker: Broker, facts: MeshFacts, vpn: str, value: bytes | None
) -> tuple[int, MeshMessage, int] | None:
    """Who says it, what a record says, and the number of the last record that was lost before it,
    0 for none; None where it was heard before, or is another home's. Raises ValueError."""
    envelope = mesh_envelope.decode(value)
    if envelope.epoch != broker.header.epoch:
        broker.count_refused(vpn, "other_home")
        return None
    if envelope.sender in facts.removed:  # all that it said was heard before it left
        return None
    peer = facts.peers.get(envelope.sender)
    if peer is None:
        peer = facts.peers[envelope.sender] = Peer(envelope.name)
    if envelope.number <= peer.heard or is_lost(peer, envelope.number):
        return None
    missing = envelope.number - next_word(peer)
    if missing > 0:
        known = [b - a + 1 for a, b in peer.lost_words if peer.heard < a and b < envelope.number]
        broker.event("mesh_gap", vpn, broker=peer.name, records=missing - sum(known))
    peer.heard = envelope.number
    if peer.lost_words and peer.lost_words[0][1] < peer.heard:
        del peer.lost_words[0]
    word = WORDS.get(envelope.kind)
    if word is None:
        raise ValueError(f"kind: {envelope.kind!r} – allowed are {', '.join(sorted(WORDS))}")
    lost = envelope.number - 1 if missing > 0 else 0
    return envelope.sender, mesh_envelope.decode_body(envelope, word), lost
