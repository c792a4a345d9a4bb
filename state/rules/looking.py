"""What an expression says of messages (Q6): of consumers' filters, and of what commands mean."""

from __future__ import annotations

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
