"""The intake of commands: each is decoded and checked before a rule sees it.

A record that is not a command, or has fields out of bounds, changes nothing. It goes to
``<vpn>.rejected`` with the reason, and its sender gets an answer if the record says where. A
command that a rule refuses (no such queue, a bad expression) changes nothing either, and is
answered with a sentence. Commands before this home's `Begin` in their topic were for an earlier
home: they are skipped and counted (see `Home`).

The engine has a topic of its own, to which no client writes. There it sends limits and the queues
of the configuration. Commands that only the engine may give are refused on a VPN's topic, so no
tenant can change what concerns all.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from ...definitions import DEFAULT_VPN
from ...definitions.definition_values import vpn_name
from ...protocol import commands as c
from ...protocol.errors import ConfigError, LakequeueError, PermissionDenied, Reason, no_such_queue
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

ENGINE = "/engine"  # stands for the engine's topic in `BrokerHeader.begun`; no VPN has this name
_BEGIN = b'{"command":"begin",'  # the engine writes it unsigned into the commands topics


class DecodedCommand(msgspec.Struct):
    """A command, its record, and the client that signed it."""

    vpn: str
    command: Any
    position: RecordPosition
    speaker: Speaker | None


def decode_all(
    broker: Broker, records: Records, skipped: Mapping[RecordPosition, str]
) -> tuple[list[DecodedCommand], list[DecodedCommand]]:
    """The commands of a step, and apart from them the inspections, which come last to see the
    step's result. skipped: records that failed in an earlier attempt, and why."""
    commands: list[DecodedCommand] = []
    inspections: list[DecodedCommand] = []
    for topic, partition, offset, key, value in zip(
        records.topics, records.partitions, records.offsets, records.keys, records.values,
        strict=True,
    ):  # fmt: skip
        broker.at = position = topic, partition, offset
        one = _decoded(broker, position, key, value, skipped)
        if one is not None:
            (inspections if type(one.command) in INSPECTIONS else commands).append(one)
    broker.at = None
    return commands, inspections


def _decoded(
    broker: Broker, position: RecordPosition, key: bytes | None, value: bytes | None,
    skipped: Mapping[RecordPosition, str],
) -> DecodedCommand | None:  # fmt: skip
    """One command; None if it is malformed or for another home, which is answered here."""
    vpn, of_engine = _origin_of(position[0])
    speaker = None
    try:
        if of_engine:
            vpn = _vpn_of(key)
        if position in skipped:
            raise ValueError(f"it failed: {skipped[position]}")
        is_unsigned = of_engine or (value or b"").startswith(_BEGIN)
        if not is_unsigned:
            speaker, value = speaker_of(broker, vpn, value)
        command = c.decode_command(value)
        if is_unsigned and not of_engine and type(command) is not c.Begin:
            raise ValueError("command: named twice – a command has one name")
        if command.reply is not None or type(command) is c.Subscribe:
            _check_inboxes(vpn, command)
        if not of_engine and type(command) in c.OF_ENGINE:
            raise ValueError(
                f"command: {type(command).__struct_config__.tag!r} – only the engine may give it, "
                "on the broker's own topic, to which no client of a VPN may write"
            )
    except (ValueError, PermissionDenied) as error:
        denied = isinstance(error, PermissionDenied)
        reason = Reason.PERMISSION_DENIED if denied else Reason.MALFORMED
        reject_record(broker, vpn, *position, key, value, str(error), reason)
        answer_malformed(broker, vpn, value, error)
        broker.in_vain()
        return None
    epoch, origin = broker.header.epoch, ENGINE if of_engine else vpn
    if type(command) is c.Begin and command.epoch == epoch:
        _begin_home(broker, origin, command)
    if epoch and origin not in broker.header.begun:  # it was for an earlier home
        broker.count_refused(vpn, "earlier_home")
        broker.in_vain()
        return None
    if isinstance(command, c.Named) and command.epoch not in (0, epoch):
        broker.count_refused(vpn, "other_home")
        why = (
            f"epoch: {command.epoch} – the messages of this command belong to another home; this "
            f"one has epoch {epoch}: subscribe or browse again to get its messages"
        )
        refuse(broker, vpn, command, LakequeueError(why))
        return None
    if type(command) is c.Clients:
        set_clients(broker, command)  # now: later records of this step need it
    return DecodedCommand(vpn, command, position, speaker)


@lru_cache(maxsize=1_000)
def _origin_of(topic: str) -> tuple[str, bool]:
    """The VPN of a commands topic, and whether it is the engine's own."""
    of_engine = is_instruction(topic)
    return DEFAULT_VPN if of_engine else topic.rpartition(".")[0], of_engine


def _vpn_of(key: bytes | None) -> str:
    """The VPN of a command on the engine's topic."""
    try:
        return vpn_name((key or b"").decode())
    except ValueError as error:
        raise ValueError(f"key: {key!r:.200} – it is the name of the VPN and {error}") from error


def _begin_home(broker: Broker, origin: str, command: c.Begin) -> None:
    """Note this home's `Begin`. origin: the VPN of the topic, or ENGINE."""
    header = broker.header
    if origin == ENGINE:
        header.joins_homes = command.joins_homes
        broker.mesh.engine_begins()
    if header.epoch and origin not in header.begun:
        header.begun.append(origin)


def _check_inboxes(vpn: str, command: c.AnyCommand) -> None:
    """Raise ValueError for an inbox outside the VPN's own topics."""
    for name in ("reply", "inbox"):
        inbox = getattr(command, name, None)
        if inbox is not None and not is_inbox_of(vpn, inbox.topic):
            raise ValueError(
                f"{name}: topic {inbox.topic!r} – allowed are '{vpn}.deliveries' and topics whose "
                f"names begin with '{vpn}.deliveries.'"
            )


def answer_malformed(broker: Broker, vpn: str, value: bytes | None, error: Exception) -> None:
    """Answer the sender of a malformed command, if the record says where."""
    kind, _ = kind_and_problems(error)
    to = c.reply_of(command_of(value))
    if to is not None and is_inbox_of(vpn, to.topic):
        broker.emit(Reply(to.topic, to.partition, to.request, None, str(error), kind))


def carry_out_all(broker: Broker, given: list[DecodedCommand]) -> None:
    """Carry out commands in the order of their log."""
    for one in given:
        broker.at = one.position
        carry_out(broker, one.vpn, one.command, one.speaker)
    broker.at = None


def carry_out(broker: Broker, vpn: str, command: Any, speaker: Speaker | None) -> None:
    """Carry out one command, or refuse it."""
    broker.speaker = speaker
    try:
        if speaker is not None:
            check_permission(broker, vpn, command)
        _one(broker, vpn, command)
    except (LakequeueError, ValueError) as error:
        refuse(broker, vpn, command, error)
    broker.speaker = None


def _one(broker: Broker, vpn: str, command: Any) -> None:
    """Carry out one command. An error means that nothing was changed."""
    kind = type(command)
    handler = broker.mesh.commands.get(kind)
    if handler is not None:
        result = handler(vpn, command)
        if result is not LATER:
            answer(broker, command, result)
        return
    if kind in OF_BROKER:
        if kind is c.Delete and (gone := broker.find(vpn, command.queue)) is not None:
            _check_stand_in(broker, gone, kind)
        answer(broker, command, OF_BROKER[kind](broker, vpn, command))
        return
    if broker.mesh.forward_command(vpn, command):
        return
    queue = broker.find(vpn, command.queue)
    if queue is None:
        if kind not in TOLERANT:
            raise no_such_queue(command.queue, vpn)
        answer(broker, command, None)
        return
    _check_stand_in(broker, queue, kind)
    if kind in OF_QUEUE:
        answer(broker, command, OF_QUEUE[kind](broker, queue, command))
    else:
        begin(broker, queue, command)


def _check_stand_in(broker: Broker, queue: Queue, kind: type) -> None:
    """Raise ConfigError for a command that a stand-in does not support."""
    if queue.header.stands_for and kind not in OF_STAND_IN:
        raise ConfigError(
            f"queue: {queue.definition.name!r} – is {broker.mesh.of_engine(queue)}: you can "
            "browse it, purge it and shut it down; the engine removes it"
        )
