"""Failures because of a bug, at records of other brokers and while writing to them (M2, M3, M5).

*A record fails.* The step is repeated without it. The record counts as received and goes to
`<vpn>.rejected` (`mesh_refused`). A sender that can go on with an answer gets one: for messages,
which it then sends one by one; for a client's command; and for a move that has not begun, which
ends. A change of the directory is entered, though not carried out.

All other records are kept. They are read again when the engine begins, perhaps in a version without
the bug. Until then what they are about waits: messages stay in transit, and a queue does not finish
its move, whose caller is told so. Answers and rooms have an order, so later ones about the same
queue are kept behind them. Otherwise a refusal would take messages back that an unread answer calls
stored. Another home repeats its answers; a kept one is not kept twice.

*A queue fails* while its messages are written. It is out of service, as after any failure. Records
with its messages are left out: records of nothing take their numbers. Once the queue is back, they
are sent behind all others, in their order. A stand-in is back when its far queue is defined again,
or the engine begins.

*A channel fails*: its records cannot be repeated or confirmed, or a failure cannot be handled. It
stops until the engine begins (`channel.stop_failed`).
"""

from __future__ import annotations

import msgspec

from ..definitions import DEFAULT_VPN
from ..protocol.mesh_messages import (
    NO_ROWS,
    Answer,
    BridgeReceipt,
    BridgeSend,
    Come,
    Entries,
    Forward,
    HandOver,
    HasMoved,
    MeshMessage,
    Room,
    decode_body,
    encode_body,
)
from ..state.commands.intake import answer_malformed
from ..state.queue.broker import Broker
from ..state.queue.queue import Queue
from . import channel, directory, handover, moves, stand_ins
from .bridges import far_end
from .bridges.bridge_facts import BridgeFacts
from .channel import HeardMessage
from .facts import MeshFacts, Sent, entry_of, key_of

NOTHING = HandOver(DEFAULT_VPN, "#nothing", False, 0, None, NO_ROWS, [])


def handle(
    broker: Broker, facts: MeshFacts, bridges: BridgeFacts, heard: HeardMessage, error: Exception
) -> None:
    """Answer a record that failed, or keep it."""
    sender, message = heard
    if isinstance(message, HandOver) and not message.whole:
        handover.failed(broker, facts, sender, message)
    elif isinstance(message, BridgeSend):
        channel.say(broker, facts, sender, far_end.across_failed(bridges, message))
    elif isinstance(message, Forward):
        answer_malformed(broker, message.vpn, message.command, error)
    elif isinstance(message, Come):
        moves.failed(broker, facts, message.vpn, message.queue, message.move)
    else:
        if isinstance(message, Entries) and message.edition > facts.edition:
            _enter(broker, facts, message)
        keep(broker, facts, heard, str(error))


def _enter(broker: Broker, facts: MeshFacts, message: Entries) -> None:
    directory.enter(broker, facts, message)
    for one in message.entries:
        entry = entry_of(facts, one.vpn, one.queue)
        if entry is not None:
            moves.failed(broker, facts, one.vpn, one.queue, entry.move)


def keep(broker: Broker, facts: MeshFacts, heard: HeardMessage, why: str) -> None:
    """Keep a record until the engine begins again."""
    sender, message = heard
    record = sender, message.kind, encode_body(message)
    records = facts.failed.setdefault(_about(message), [])
    if record not in records:
        records.append(record)
    if isinstance(message, Answer | Room | HandOver | HasMoved):
        moves.tell_kept(broker, facts, message, why)


def must_wait(facts: MeshFacts, message: MeshMessage) -> bool:
    """Whether a record waits because an earlier one about the same was kept."""
    about = _about(message)
    return bool(about) and about in facts.failed


def _about(message: MeshMessage) -> str:
    """The queue that a record is about, if it needs the order of such records; or the record that a
    bridge's receipt is about; else empty."""
    if isinstance(message, Answer | Room):
        return f"{key_of(message.vpn, message.queue)} {message.born}"
    return f"{message.link} {message.number}" if isinstance(message, BridgeReceipt) else ""


def begin_again(broker: Broker, facts: MeshFacts) -> list[HeardMessage]:
    """The engine begins: let stopped channels and failed stand-ins go on. Returns the kept records,
    to be read again."""
    for peer in facts.peers.values():
        peer.is_stopped = False
    for number in facts.lanes:
        stand_ins.put_back(broker, facts, broker.queues[number])
    kept = [one for records in facts.failed.values() for one in records]
    facts.failed = {}
    return [
        HeardMessage(sender, decode_body(kind, body)) for sender, kind, body in kept
        if sender not in facts.removed
    ]  # fmt: skip


def leave_out(facts: MeshFacts, queue: Queue, to: int, sent: Sent) -> MeshMessage:
    """Leave out a record with messages of a queue that failed; returns what takes its number."""
    facts.left_out.setdefault(queue.number, []).append((to, msgspec.structs.replace(sent)))
    sent.kind, sent.body, sent.ids = NOTHING.kind, encode_body(NOTHING), []
    return NOTHING


def send_left_out(broker: Broker, facts: MeshFacts) -> None:
    """Send the records that were left out, if their queue is back, behind all that is repeated."""
    busy = {number for number, peer in facts.peers.items() if peer.repeat_from}
    for number, records in list(facts.left_out.items()):
        queue = broker.queue(number)
        if queue is not None and (queue.header.faulted or busy & {to for to, _ in records}):
            continue
        del facts.left_out[number]
        for to, sent in records if queue is not None else ():
            channel.say_again(broker, facts, to, sent)
