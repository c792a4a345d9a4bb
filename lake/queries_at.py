"""Queries a past moment, with the commands that clients send to a running engine (R1, R6).

The engine's own inspections read the pages directly. No step runs, so nothing expires, is delivered
or is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec

from ..client.admin import Admin
from ..client.session.requests import all_parts
from ..client.session.session import Session
from ..protocol import commands, wire
from ..protocol.errors import ConfigError
from ..protocol.outputs import Reply
from ..state.commands import dispatch
from ..state.commands.answers import PartialAnswer
from .past import Moment
from .past_replica import load


class _PastSession:
    """The part of a session's interface that `Admin` needs for inspections, over moments of one or
    several brokers."""

    def __init__(self, moments: list[Moment], vpn: str) -> None:
        self._moments, self._vpn = moments, vpn
        self.epoch = moments[0].home.epoch

    def request(self, command: commands.Command, broker: int | None = None) -> Any:
        return self._answer(command, broker)["result"]

    def each_host(self, queue: str, ask: Callable[[int | None], Any]) -> dict[str, Any]:
        hosts = self._hosts(queue)
        if len(self._moments) == 1:
            return {"": ask(None)}
        return {m.broker: ask(m.home.number) for m in hosts}

    def request_of_each(self, ask: Callable[[int], list[Any]]) -> list[Any]:
        return [row for m in self._moments for row in ask(m.home.number)]

    def request_list(
        self, command: Any, place: str, count: str | None = None, broker: int | None = None
    ) -> list[Any]:
        return all_parts(command, place, count, lambda c: self._answer(c, broker))

    def _hosts(self, name: str | None) -> list[Moment]:
        """The brokers that had a queue; all if no queue is named."""
        if name is None:
            return self._moments
        found = [m for m in self._moments if load(m.home, m.store).find(self._vpn, name)]
        if not found:
            raise ConfigError(f"queue: {name!r} – there was no such queue in VPN {self._vpn!r}")
        return found

    def _answer(self, command: Any, number: int | None) -> Any:
        if type(command) not in dispatch.INSPECTIONS:
            raise ConfigError(f"{type(command).__name__}: the past is read-only")
        hosts = self._hosts(getattr(command, "queue", None))
        moment = next((m for m in hosts if m.home.number == number), hosts[0])
        try:
            result, more = self._ask(moment, command)
        except ValueError as error:  # a wrong `where`; a running engine answers with the same text
            raise ConfigError(str(error)) from error
        (record,) = wire.encode([Reply("", 0, "", result, more=more)])
        answer = msgspec.json.decode(record.value or b"")
        if answer["error"] is not None:
            raise ConfigError(answer["error"])
        return answer

    def _ask(self, moment: Moment, command: Any) -> tuple[Any, int | str | None]:
        """The result of an inspection, and where its next part begins."""
        kind, vpn, broker = type(command), self._vpn, load(moment.home, moment.store)
        broker.begin(moment.now)
        result: Any
        if (own := broker.mesh.commands.get(kind)) is not None:
            result = own(vpn, command)
        elif (of_broker := dispatch.OF_BROKER.get(kind)) is not None:
            result = of_broker(broker, vpn, command)
        else:
            result = dispatch.OF_QUEUE[kind](broker, broker.find(vpn, command.queue), command)
        if isinstance(result, PartialAnswer):
            return result.result, result.more
        return result, None


def admin_of(*moments: Moment, vpn: str = "default") -> Admin:
    """An administrator for inspections of past moments of one or several brokers: `queues`,
    `describe`, `browse`, `usage`, `events`."""
    return Admin(cast(Session, _PastSession(list(moments), vpn)))
