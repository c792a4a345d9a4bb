"""What an expression says of messages (Q6): of consumers' filters, and of what commands mean."""

from __future__ import annotations

from collections import deque

from ...expressions import compile_program, is_true
from ..queue.broker import Broker
from ..storage.row import Row


def matching(broker: Broker, rows: list[Row], text: str) -> list[bool]:
    """Which of these messages an expression is true for; false where a payload is lost."""
    program = compile_program((text,))
    found: list[bool] = []
    for row in rows:
        content = broker.spool.content(row)
        found.append(
            content is not None and is_true(program.run(content[0], row.priority, content[1])[0])
        )
    return found


class Blocks:
    """Counts the blocks that are read for rows, by what the rows name and not by what is in memory:
    a replica comes to the same. In order of priority each row may lie in another one."""

    __slots__ = ("_recent",)

    def __init__(self, broker: Broker) -> None:
        self._recent: deque[int] = deque(maxlen=broker.limits.blocks_cached)

    def opens(self, row: Row) -> bool:
        """Whether a block is read for this row, after those before it."""
        if not row.block or row.block in self._recent:
            return False
        self._recent.append(row.block)
        return True
