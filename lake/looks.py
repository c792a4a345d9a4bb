"""Questions to a moment of the past, by the commands that clients ask a running engine (R1, R6).

A moment answers with the code of the engine's own inspections, straight from the pages: no step is
taken, so nothing is due, delivered or written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec

from ..client.admin import Admin
from ..client.session import Session
from ..protocol import commands, wire
from ..protocol.errors import ConfigError
from ..protocol.outputs import Reply
from ..state import Limits
from ..state.broker import Broker
from ..state.commands.answers import PartialAnswer
from ..state.commands.dispatch import INSPECTIONS, OF_BROKER, OF_QUEUE
from .past import Moment


class _Asked:
    """The face of a session that `Admin` uses, for inspections."""

    def __init__(self, moment: Moment, vpn: str) -> None:
        self._moment, self._vpn = moment, vpn
        self.epoch = moment.home.epoch

    def request(self, command: commands.Command, broker: int | None = None) -> Any:
        """As `Session.request`."""
        return self._answer(command)["result"]

    def request_each(self, command: commands.Command) -> dict[str, Any]:
        """As `Session.request_each`: a moment is one broker's."""
        return {"": self.request(command)}

    def request_of_each(self, ask: Callable[[int], list[Any]]) -> list[Any]:
        """As `Session.request_of_each`."""
        return ask(self._moment.home.number)

    def request_list(
        self, command: Any, place: str, count: str | None = None, broker: int | None = None
    ) -> list[Any]:
        """As `Session.request_list`."""
        rows: list[Any] = []
        while True:
            answer = self._answer(command)
            rows += answer["result"]
            if answer["more"] is None:
                return rows
            changes = {place: answer["more"]}
            if count is not None:
                changes[count] = getattr(command, count) - len(answer["result"])
            command = msgspec.structs.replace(command, **changes)

    def _answer(self, command: Any) -> Any:
        kind, moment = type(command), self._moment
        if kind not in INSPECTIONS:
            raise ConfigError(f"{kind.__name__}: the past can only be looked at")
        broker = Broker.load(moment.store, moment.home, moment.now, Limits(), first=False)
        if kind in OF_BROKER:
            result = OF_BROKER[kind](broker, self._vpn, command)
        else:
            queue = broker.find(self._vpn, command.queue)
            if queue is None:
                raise ConfigError(
                    f"queue: {command.queue!r} – there was no such queue in VPN {self._vpn!r}"
                )
            result = OF_QUEUE[kind](broker, self._vpn, queue, command)
        more = None
        if isinstance(result, PartialAnswer):
            result, more = result.result, result.more
        (record,) = wire.encode([Reply("", 0, "", result, more=more)])
        answer = msgspec.json.decode(record.value or b"")
        if answer["error"] is not None:
            raise ConfigError(answer["error"])
        return answer


def admin_of(moment: Moment, vpn: str = "default") -> Admin:
    """An administrator who looks at a moment: `queues`, `describe`, `browse`, `usage`, `events`."""
    return Admin(cast(Session, _Asked(moment, vpn)))
