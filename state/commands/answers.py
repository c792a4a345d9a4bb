"""What a command is answered: its result, or a sentence that says what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...protocol.commands import Command
from ...protocol.errors import ConfigError
from ...protocol.outputs import Reply
from ..broker import Broker


@dataclass(slots=True)
class PartialAnswer:
    """A part of a long answer; more: where the next one begins, None where this is the last."""

    result: Any
    more: int | str | None


class _Elsewhere:
    """What another broker answers."""


ELSEWHERE = _Elsewhere()


def answer(broker: Broker, command: Command, result: Any) -> None:
    """Answer, if an answer is wanted."""
    to, more = command.reply, None
    if isinstance(result, PartialAnswer):
        result, more = result.result, result.more
    if to is not None and result is not ELSEWHERE:
        epoch = broker.header.epoch
        broker.emit(Reply(to.topic, to.partition, to.request, result, more=more, epoch=epoch))


def refuse(broker: Broker, vpn: str, command: Command, error: Exception) -> None:
    """Say what is wrong: to who asked, and to the events."""
    text = str(error)
    kind = "ConfigError" if isinstance(error, ValueError) else "LakequeueError"
    problems = None
    if isinstance(error, ConfigError):
        problems = [(p.where, p.key, _plain(p.value), p.allowed) for p in error.problems]
    name = getattr(command, "queue", "")
    broker.event("command_refused", vpn, name, command=type(command).__name__, why=text)
    to = command.reply
    if to is not None:
        broker.emit(Reply(to.topic, to.partition, to.request, None, text, kind, problems))


def _plain(value: object) -> object:
    return value if isinstance(value, str | int | float | None) else repr(value)
