"""Evaluates expressions on stored messages (Q6): filters of consumers, `where` of commands."""

from __future__ import annotations

from collections import deque

from ...expressions import compile_program, is_true
from ..limits import Budget
from ..queue.broker import Broker
from ..storage.row import Row


def matching(broker: Broker, rows: list[Row], text: str) -> list[bool]:
    """For each message, whether an expression is true; False if the payload is lost."""
    program = compile_program((text,))
    found: list[bool] = []
    for row in rows:
        content = broker.spool.content(row)
        found.append(
            content is not None and is_true(program.run(content[0], row.priority, content[1])[0])
        )
    return found


class Blocks:
    """Counts the blocks to be read for rows. It goes by the blocks that the rows name, not by what
    is in memory, so a replica counts the same. In priority order, each row may be in another."""

    __slots__ = ("_recent",)

    def __init__(self, broker: Broker) -> None:
        self._recent: deque[int] = deque(maxlen=broker.limits.blocks_cached)

    def opens(self, row: Row) -> bool:
        """Whether this row's block must be read after the rows before it. Counts it as read."""
        if not row.block or row.block in self._recent:
            return False
        self._recent.append(row.block)
        return True


def afforded(broker: Broker, rows: list[Row], where: str, budget: Budget) -> int:
    """How many rows have payloads that the budget can read, from the first on, at least one. Takes
    the payloads and their blocks from the budget."""
    sizes = [row.size + len(where) for row in rows]
    n, cost, blocks = 0, 0, Blocks(broker)
    for row in rows[: budget.fits(sizes)]:
        cost += 1 + broker.limits.block_rows * blocks.opens(row)
        if n and cost > budget.rows:
            break
        n += 1
    budget.take(cost - n, sum(sizes[:n]))
    return n
