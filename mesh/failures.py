"""Records of other brokers at which a step failed, because of a bug (M2, M3, M5).

The step is repeated without the record, which counts as received and goes to `<vpn>.rejected`
(`mesh_refused`). A sender that can go on with an answer gets one: for messages, which it then sends
one by one; for a client's command; and for a move that has not begun, which ends. A change of the
directory is entered, though not carried out.

All other records are kept. They are read again when the engine begins, perhaps in a version without
the bug. Until then what they are about waits: messages stay in transit, and a queue does not finish
its move. Answers and rooms have an order, so later ones about the same queue are kept behind them.
Otherwise a refusal would take messages back that an unread answer calls stored.
"""

from __future__ import annotations

from ..protocol.mesh_messages import (
    Answer,
    BridgeSend,
    Come,
    Entries,
    Forward,
    HandOver,
    MeshMessage,
    Room,
    decode_body,
    encode_body,
)
from ..state.commands.intake import answer_malformed
from ..state.queue.broker import Broker
from . import channel, directory, handover, moves
from .bridges import far_end
from .bridges.bridge_facts import BridgeFacts
from .channel import HeardMessage
from .facts import MeshFacts, entry_of, key_of


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
        keep(facts, heard)


def _enter(broker: Broker, facts: MeshFacts, message: Entries) -> None:
    directory.enter(broker, facts, message)
    for one in message.entries:
        entry = entry_of(facts, one.vpn, one.queue)
        if entry is not None:
            moves.failed(broker, facts, one.vpn, one.queue, entry.move)


def keep(facts: MeshFacts, heard: HeardMessage) -> None:
    """Keep a record until the engine begins again."""
    sender, message = heard
    record = sender, message.kind, encode_body(message)
    facts.failed.setdefault(_about(message), []).append(record)


def must_wait(facts: MeshFacts, message: MeshMessage) -> bool:
    """Whether a record waits because an earlier one about the same was kept."""
    about = _about(message)
    return bool(about) and about in facts.failed


def _about(message: MeshMessage) -> str:
    """The queue that a record is about, if it needs the order of such records; else empty."""
    if isinstance(message, Answer | Room):
        return f"{key_of(message.vpn, message.queue)} {message.born}"
    return ""


def take_kept(facts: MeshFacts) -> list[HeardMessage]:
    """The kept records, to be read again."""
    kept = [one for records in facts.failed.values() for one in records]
    facts.failed = {}
    return [
        HeardMessage(sender, decode_body(kind, body)) for sender, kind, body in kept
        if sender not in facts.removed
    ]  # fmt: skip
