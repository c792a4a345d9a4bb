"""The administrator's face of a connection: definitions, looks, purges (R6, Q7, Q9, S7)."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..protocol import commands
from ..protocol.ids import format_ranges
from .message import moment

if TYPE_CHECKING:
    from .connection import Connection


class Admin:
    """Made by `Connection.admin`; every call waits for the engine's answer."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def define(self, definition: dict[str, Any]) -> None:
        """Define a queue, or define it again (Q9). Raises ConfigError with every problem."""
        self._connection.request(commands.Define(definition=definition))

    def delete(self, queue: str) -> None:
        """Delete a queue; its messages are gone, not delivered (S7)."""
        self._connection.request(commands.Delete(queue=queue))

    def queues(self) -> list[dict[str, Any]]:
        """All queues of the VPN, as `describe` gives them, by name."""
        return self._connection.request(commands.Queues())

    def describe(self, queue: str) -> dict[str, Any]:
        """Depth, states, consumers, why delivery waits, counters, definition."""
        return self._connection.request(commands.Describe(queue=queue))

    def events(self, limit: int = 1000) -> list[dict[str, Any]]:
        """The newest notable events, oldest first; `time` is an aware datetime."""
        events = self._connection.request(commands.Events(limit=limit))
        return [{**e, "time": moment(e["time"])} for e in events]

    def browse(
        self,
        queue: str,
        where: str | None = None,
        state: str | None = None,
        limit: int = 100,
    ) -> list[dict[str, Any]]:
        """Messages in the queue, in its order of entry, without taking them (R6).

        Each has id, state (`ready`, `leased`, `delayed`), payload (bytes), key, headers, priority,
        delivery_count, entered, expires, holder, is_barrier, dead.
        """
        rows = self._connection.request(
            commands.Browse(queue=queue, where=where, state=state, limit=limit)
        )
        return [_readable(row) for row in rows]

    def purge(
        self, queue: str, where: str | None = None, ids: list[str] | str | None = None
    ) -> int:
        """Remove messages, all or by predicate or ids; returns how many."""
        text = ids if ids is None or isinstance(ids, str) else format_ranges(map(int, ids))
        return self._connection.request(commands.Purge(queue=queue, where=where, ids=text))

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    import msgspec

    def raw(value: str | None) -> bytes | None:
        return None if value is None else base64.b64decode(value)

    def when(value: int | None) -> datetime | None:
        return None if value is None else moment(value)

    headers = raw(row["headers"])
    pairs = msgspec.json.decode(headers) if headers else []
    return row | {
        "payload": raw(row["payload"]),
        "key": raw(row["key"]),
        "headers": {
            h["key"]: base64.b64decode(h.get("value") or "").decode("utf-8", "backslashreplace")
            for h in pairs
        },
        "entered": when(row["entered"]),
        "expires": when(row["expires"]),
        "lease_until": when(row["lease_until"]),
        "ready_at": when(row["ready_at"]),
    }
