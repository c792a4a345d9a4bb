"""The door in for commands: each is decoded with bounds before it meets a rule.

A record that is no command, or whose fields are out of bounds, changes nothing: it goes to
``<vpn>.rejected`` with the reason, and is answered where it says who asks. What is wrong for a
reason that only the rules know (no such queue, a bad expression) is answered with a sentence and
changes nothing either. Commands that stand before the beginning of this home in their topic were
for an earlier one: they are passed over and counted (see `Home`).

The engine has a door of its own, a topic that no client writes to: there it says what the limits
are, and which queues the configuration has. What only the engine may say is refused on a VPN's
topic like any other bad command, so no tenant changes what belongs to all.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from ...definitions import DEFAULT_VPN
from ...definitions.definition_values import vpn_name
from ...protocol import commands as c
from ...protocol.errors import ConfigError, LakequeueError, PermissionDenied, Reason
from ...protocol.messages import Records
from ...protocol.outputs import Reply
from ...protocol.signing import Speaker
from ...protocol.topics import is_inbox_of, is_instruction
from ..queue.broker import Broker
from ..queue.broker_facts import RecordPosition
from ..queue.mesh_interface import LATER
from ..queue.queue import Queue
from .answers import answer, kind_and_problems, refuse, reject_record
from .dispatch import INSPECTIONS, OF_BROKER, OF_QUEUE, OF_STAND_IN, TOLERANT
from .multi_step_commands import begin
from .permissions import check_permission, command_of, set_clients, speaker_of

ENGINE = "/engine"  # its door, among the VPNs that have begun: no VPN has such a name
_BEGIN = b'{"command":"begin",'


class DecodedCommand(NamedTuple):
    """A command, where it stands, and who says it."""

    vpn: str
    command: Any
    place: RecordPosition
    speaker: Speaker | None


def decoded(
    broker: Broker, records: Records, skipped: Mapping[RecordPosition, str]
) -> list[DecodedCommand]:
    """The commands of a step. skipped: records that failed before, and why."""
    given = []
    for topic, partition, offset, key, value in zip(
        records.topics, records.partitions, records.offsets, records.keys, records.values,
        strict=True,
    ):  # fmt: skip
        broker.at = place = topic, partition, offset
        one = _decoded(broker, place, key, value, skipped)
        if one is not None:
            given.append(one)
    broker.at = None
    return given


def _decoded(
    broker: Broker, place: RecordPosition, key: bytes | None, value: bytes | None,
    skipped: Mapping[RecordPosition, str],
) -> DecodedCommand | None:  # fmt: skip
    """One command; None where it is none, or for another home: then it is answered here."""
    vpn, of_engine = _door_of(place[0])
    speaker = None
    try:
        if of_engine:
            vpn = _vpn_of(key)
        if place in skipped:
            raise ValueError(f"it failed: {skipped[place]}")
        unasked = of_engine or _is_beginning(value)
        if not unasked:
            speaker, value = speaker_of(broker, vpn, value)
        command = c.decode_command(value)
        if unasked and not of_engine and not isinstance(command, c.Begin):
            raise ValueError("command: named twice")
        if command.reply is not None or type(command) is c.Subscribe:
            _check_inboxes(vpn, command)
        if not of_engine and isinstance(command, c.OF_ENGINE):
            raise ValueError(_not_the_engine(command))
    except (ValueError, PermissionDenied) as error:
        denied = isinstance(error, PermissionDenied)
        reason = Reason.PERMISSION_DENIED if denied else Reason.MALFORMED
        reject_record(broker, vpn, *place, key, value, str(error), reason)
        _answer_what_is_none(broker, vpn, value, error)
        broker.in_vain()
        return None
    if not _has_begun(broker, ENGINE if of_engine else vpn, command):
        broker.count_refused(vpn, "earlier_home")
        broker.in_vain()
        return None
    if isinstance(command, c.Named) and command.epoch not in (0, broker.header.epoch):
        broker.count_refused(vpn, "other_home")
        refuse(broker, vpn, command, LakequeueError(_other_home(broker, command)))
        return None
    if isinstance(command, c.Clients):
        set_clients(broker, command)  # now: later records of this step need it
    return DecodedCommand(vpn, command, place, speaker)


@lru_cache(maxsize=1_000)
def _door_of(topic: str) -> tuple[str, bool]:
    """The VPN whose commands stand in a topic, and whether they are the engine's."""
    of_engine = is_instruction(topic)
    return DEFAULT_VPN if of_engine else topic.rpartition(".")[0], of_engine


def _other_home(broker: Broker, command: c.Named) -> str:
    return (
        f"epoch: {command.epoch} – the messages that this command is for belong to another home "
        f"than this one, {broker.header.epoch}: subscribe or look again to learn what is here"
    )


def _is_beginning(value: bytes | None) -> bool:
    """The engine says where a home begins in the commands themselves; it binds nobody."""
    return value is not None and value.startswith(_BEGIN)


def _vpn_of(key: bytes | None) -> str:
    """The VPN in which an instruction of the engine's is carried out."""
    try:
        return vpn_name((key or b"").decode())
    except ValueError as error:
        raise ValueError(f"key: {key!r:.200} – names the VPN, and {error}") from error


def _not_the_engine(command: c.AnyCommand) -> str:
    """A tenant says nothing that concerns others."""
    return (
        f"command: {type(command).__struct_config__.tag!r} – only the engine says it, on the "
        "broker's own topic, which no client of a VPN may write to"
    )


def _has_begun(broker: Broker, door: str, command: c.AnyCommand) -> bool:
    """Whether this home has begun in the topic; what stands before was for an earlier one. door:
    the VPN of the topic, or ENGINE."""
    header = broker.header
    if not header.epoch:
        return True
    if isinstance(command, c.Begin) and command.epoch == header.epoch and door not in header.begun:
        header.begun.append(door)
    return door in header.begun


def _check_inboxes(vpn: str, command: c.AnyCommand) -> None:
    """A tenant hears what is said to it in its own topics only."""
    places = [("reply", command.reply)]
    if isinstance(command, c.Subscribe):
        places.append(("inbox", command.inbox))  # type: ignore[arg-type]
    for name, place in places:
        if place is not None and not is_inbox_of(vpn, place.topic):
            raise ValueError(
                f"{name}: topic {place.topic!r} – allowed are '{vpn}.deliveries' and topics whose "
                f"names begin with '{vpn}.deliveries.'"
            )


def _answer_what_is_none(broker: Broker, vpn: str, value: bytes | None, error: Exception) -> None:
    """Who asked for an answer gets one, also where the rest cannot be understood."""
    kind, _ = kind_and_problems(error)
    to = c.reply_of(command_of(value))
    if to is not None and is_inbox_of(vpn, to.topic):
        broker.emit(Reply(to.topic, to.partition, to.request, None, str(error), kind))


def carry_out_all(broker: Broker, given: list[DecodedCommand], inspect: bool) -> None:
    """Carry out commands in the order of their log. inspect: only those that look, which come last
    and see what the step has done; else all others."""
    for vpn, command, place, speaker in given:
        if (type(command) in INSPECTIONS) is inspect:
            broker.at = place
            carry_out(broker, vpn, command, speaker)
    broker.at = None


def carry_out(broker: Broker, vpn: str, command: Any, speaker: Speaker | None) -> None:
    """Carry out one command, or say what is wrong with it."""
    broker.speaker = speaker
    try:
        if speaker is not None:
            check_permission(broker, vpn, command)
        _one(broker, vpn, command)
    except (LakequeueError, ValueError) as error:
        refuse(broker, vpn, command, error)
    broker.speaker = None


def _one(broker: Broker, vpn: str, command: Any) -> None:
    """Carry out one command. Raises what is wrong with it, and has changed nothing then."""
    kind = type(command)
    if broker.mesh is not None and kind in broker.mesh.commands:
        result = broker.mesh.commands[kind](vpn, command)
        if result is not LATER:
            answer(broker, command, result)
        return
    if kind in OF_BROKER:
        if kind is c.Delete and (gone := broker.find(vpn, command.queue)) is not None:
            _check_stand_in(broker, gone, kind)
        answer(broker, command, OF_BROKER[kind](broker, vpn, command))
        return
    if broker.mesh is not None and broker.mesh.takes(vpn, command):
        return
    queue = broker.find(vpn, command.queue)
    if queue is None:
        if kind not in TOLERANT:
            raise ConfigError(f"queue: {command.queue!r} – there is no such queue in VPN {vpn!r}")
        answer(broker, command, None)
        return
    _check_stand_in(broker, queue, kind)
    if kind in OF_QUEUE:
        answer(broker, command, OF_QUEUE[kind](broker, vpn, queue, command))
    else:
        begin(broker, vpn, queue, command)


def _check_stand_in(broker: Broker, queue: Queue, kind: type) -> None:
    """Clients do not fill and empty what only the engine does. Raises ConfigError."""
    if queue.header.stands_for and kind not in OF_STAND_IN:
        assert broker.mesh is not None
        raise ConfigError(
            f"queue: {queue.definition.name!r} – is {broker.mesh.of_engine(queue)}: it can be "
            "looked at, purged, shut down, and goes by itself"
        )
