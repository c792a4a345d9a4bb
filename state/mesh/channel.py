"""The channel between two brokers: numbers on one side, and on the other what was heard is dropped.

What is said is an output of the step, and goes to a Kafka topic of the other broker's; so it comes
at least once and in order, and what comes again has a number that was heard. Both numbers stand in
the states of the two brokers, which are snapshots of their logs: so what one says is heard exactly
once, whoever dies when (`tests/rules/test_mesh_channel.py`). Nothing is sent again, nothing waits
for time.

A missing number means that Kafka lost records. That is said (event ``mesh_gap``) and counted, and
the channel goes on behind it. A record that cannot be understood, or whose handler fails, is
refused as any other record is (`isolation`); it has been heard all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...definitions import DEFAULT_VPN
from ...protocol import mesh, topics
from ...protocol.errors import LakequeueError
from ...protocol.home_bridges import COPIER_PREFIX
from ...protocol.messages import Records
from ..bridges import copied, home_door
from ..rejection import count_of_vpn, reject_record
from .kinds import KINDS, REFUSED
from .peer import Peer
from .peers import check_name
from .rejoining import is_lost, next_word

if TYPE_CHECKING:
    from ..broker import Broker
    from ..isolation import Refusals


def hear(broker: Broker, records: Records, refused: Refusals) -> None:
    """Hear what other brokers have said since the last step, in the order of the topic."""
    vpn = next(iter(broker.header.vpns), DEFAULT_VPN)  # where what is refused is told
    for at in range(len(records)):
        place = records.topics[at], records.partitions[at], records.offsets[at]
        broker.at = place
        if _is_of_homes(place[0], records.keys[at]):
            _hear_homes(broker, vpn, records, at, refused)
            continue
        new = None  # what is heard for the first time
        try:
            envelope = mesh.decode(records.values[at])
            if envelope.epoch != broker.header.epoch:
                count_of_vpn(broker, vpn, "other_home")
                continue
            if envelope.sender in broker.header.removed:  # it died, and said its last words again
                continue
            if not _is_new(broker, vpn, envelope):
                continue
            new = envelope
            if place in refused.records:
                raise ValueError(f"it failed: {refused.records[place]}")
            _handle(broker, envelope)
        except (LakequeueError, ValueError) as error:
            why = str(error)
            broker.event("mesh_refused", vpn, why=why)
            reject_record(broker, vpn, *place, records.keys[at], records.values[at], why)
            if new is not None:
                _answer_refused(broker, new)
    broker.at = None


def _is_of_homes(topic: str, key: bytes | None) -> bool:
    """Whether a record is about a bridge between homes: of another home, or copied from there."""
    return topic.endswith(f".{topics.BRIDGE_IN}") or (key or b"").startswith(COPIER_PREFIX)


def _hear_homes(broker: Broker, vpn: str, records: Records, at: int, refused: Refusals) -> None:
    """Hear what concerns a bridge between homes."""
    place = records.topics[at], records.partitions[at], records.offsets[at]
    key, value = records.keys[at], records.values[at]
    failed = refused.records.get(place, "")
    kind = topics.split(place[0])
    try:
        if kind is not None and kind[1] == topics.BRIDGE_IN:
            vpn = kind[0]
            home_door.hear(broker, vpn, place[1], value, failed)
        elif failed:
            raise ValueError(f"it failed: {failed}")
        else:
            copied.hear(broker, key or b"", value)
    except (LakequeueError, ValueError) as error:
        broker.event("bridge_refused", vpn, why=str(error))
        reject_record(broker, vpn, *place, key, value, str(error))


def _is_new(broker: Broker, vpn: str, envelope: mesh.Envelope) -> bool:
    """Count the record of its channel; whether it comes for the first time."""
    peers, number = broker.header.peers, envelope.sender
    check_name(broker, number, envelope.name)
    peer = peers.get(number)
    if peer is None:
        peer = peers[number] = Peer(envelope.name)
    if envelope.number <= peer.heard or is_lost(peer, envelope.number):
        peer.repeated += 1
        return False
    missing = envelope.number - next_word(peer)
    if missing:
        peer.lost += missing
        broker.event("mesh_gap", vpn, broker=peer.name, records=missing)
    peer.heard = envelope.number
    if peer.lost_words and peer.lost_words[0][1] < peer.heard:
        del peer.lost_words[0]
    return True


def _answer_refused(broker: Broker, envelope: mesh.Envelope) -> None:
    """Tell who said it that it was refused, where somebody waits for an answer."""
    found = REFUSED.get(envelope.kind)
    if found is None:
        return
    kind, handler = found
    try:
        said = mesh.decode_body(envelope, kind)
    except ValueError:
        return  # nobody knows what it was about
    handler(broker, envelope.sender, said)


def _handle(broker: Broker, envelope: mesh.Envelope) -> None:
    found = KINDS.get(envelope.kind)
    if found is None:
        raise ValueError(f"kind: {envelope.kind!r} – allowed are {', '.join(sorted(KINDS))}")
    kind, handler = found
    handler(broker, envelope.sender, mesh.decode_body(envelope, kind))
