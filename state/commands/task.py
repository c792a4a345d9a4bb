"""A command that takes its turns, as it stands between two steps; `turns` says how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Task:
    """A command on its way. cursor: where it goes on; done: what it has done so far; result: its
    answer in the end; why: what the engine itself says in a command of its own."""

    vpn: str
    command: bytes
    cursor: int = 0
    done: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    why: str = ""

    def packed(self) -> list[Any]:
        """As it stands in the queue's page of tasks."""
        return [self.vpn, self.command, self.cursor, self.done, self.result, self.why]
