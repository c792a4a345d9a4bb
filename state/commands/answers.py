"""What a command is answered: its result, or a sentence that says what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...protocol.commands import Command
from ...protocol.errors import ConfigError, Moved, PermissionDenied
from ...protocol.outputs import Reply
from ..queue.broker import Broker

Problems = list[tuple[str, str, str | int | float | None, str]] | None


@dataclass(slots=True)
class PartialAnswer:
    """A part of a long answer; more: where the next one begins, None where this is the last."""

    result: Any
    more: int | str | None


def answer(broker: Broker, command: Command, result: Any) -> None:
    """Answer, if an answer is wanted."""
    to, more = command.reply, None
    if to is None:
        return
    if isinstance(result, PartialAnswer):
        result, more = result.result, result.more
    epoch = broker.header.epoch
    broker.emit(Reply(to.topic, to.partition, to.request, result, more=more, epoch=epoch))


def refuse(broker: Broker, vpn: str, command: Command, error: Exception) -> None:
    """Say what is wrong: to whoever asked, and in the events."""
    text = str(error)
    to = command.reply
    if isinstance(error, Moved):  # no mistake: its sender asks there
        if to is not None:
            hosts = {"hosts": error.hosts}
            broker.emit(Reply(to.topic, to.partition, to.request, hosts, text, "Moved"))
        return
    kind, problems = what_is_wrong(error)
    broker.in_vain()
    if isinstance(error, PermissionDenied):
        broker.count_refused(vpn, error.reason)
    name = getattr(command, "queue", "")
    broker.event("command_refused", vpn, name, command=type(command).__name__, why=text)
    if to is not None:
        broker.emit(Reply(to.topic, to.partition, to.request, None, text, kind, problems))


def what_is_wrong(error: Exception) -> tuple[str, Problems]:
    """The kind of an error and its problems, as a reply says them."""
    if isinstance(error, PermissionDenied):
        return type(error).__name__, None
    kind = "ConfigError" if isinstance(error, ValueError) else "LakequeueError"
    if not isinstance(error, ConfigError):
        return kind, None
    return kind, [(p.where, p.key, _plain(p.value), p.allowed) for p in error.problems]


def _plain(value: object) -> str | int | float | None:
    return value if isinstance(value, str | int | float | None) else repr(value)
