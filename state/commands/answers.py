"""Answers to commands: the result, or a sentence that says what is wrong. Unreadable records go to
`<vpn>.rejected`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...protocol.commands import Command
from ...protocol.errors import ConfigError, Moved, PermissionDenied, Reason
from ...protocol.journal import JournalSegment
from ...protocol.outputs import RejectedRecord, Reply
from ..queue.broker import Broker

Problems = list[tuple[str, str, str | int | float | None, str]] | None


@dataclass(slots=True)
class PartialAnswer:
    """A part of a long answer. more: where the next part begins; None in the last part."""

    result: Any
    more: int | str | None


def answer(broker: Broker, command: Command, result: Any) -> None:
    """Answer a command, if its sender wants an answer."""
    to, more = command.reply, None
    if to is None:
        return
    if isinstance(result, PartialAnswer):
        result, more = result.result, result.more
    epoch = broker.header.epoch
    broker.emit(Reply(to.topic, to.partition, to.request, result, more=more, epoch=epoch))


def refuse(broker: Broker, vpn: str, command: Command, error: Exception) -> None:
    """Tell the sender what is wrong, and write an event."""
    text = str(error)
    to = command.reply
    if isinstance(error, Moved):  # not an error: the sender asks the other broker
        if to is not None:
            hosts = {"hosts": error.hosts}
            broker.emit(Reply(to.topic, to.partition, to.request, hosts, text, "Moved"))
        return
    kind, problems = kind_and_problems(error)
    broker.in_vain()
    if isinstance(error, PermissionDenied):
        broker.count_refused(vpn, error.reason)
    name = getattr(command, "queue", "")
    broker.event("command_refused", vpn, name, command=type(command).__name__, why=text)
    if to is not None:
        broker.emit(Reply(to.topic, to.partition, to.request, None, text, kind, problems))


def kind_and_problems(error: Exception) -> tuple[str, Problems]:
    """The kind of an error and its problems, as a reply carries them."""
    if isinstance(error, PermissionDenied):
        return type(error).__name__, None
    kind = "ConfigError" if isinstance(error, ValueError) else "LakequeueError"
    if not isinstance(error, ConfigError):
        return kind, None
    return kind, [(p.where, p.key, _plain(p.value), p.allowed) for p in error.problems]


def _plain(value: object) -> str | int | float | None:
    return value if isinstance(value, str | int | float | None) else repr(value)


# ---------------------------------------------------------------- rejected records


def reject_record(
    broker: Broker, vpn: str, topic: str, partition: int, offset: int, key: bytes | None,
    value: bytes | None, error: str, reason: Reason = Reason.MALFORMED,
) -> None:  # fmt: skip
    """Send a record to ``<vpn>.rejected``, count it and journal it."""
    broker.count_refused(vpn, reason.value)
    broker.journal.segments.append(
        JournalSegment(
            "rejected", vpn, reason=reason.value, topic=topic, partitions=[partition],
            offsets=[offset], items=[0],
        )
    )  # fmt: skip
    broker.emit(RejectedRecord(vpn, topic, partition, offset, key, value, error))
