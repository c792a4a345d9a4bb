"""One queue as people want to see it: what `describe` says, why it does not move, what is first.

Looking must not be work for the engine: only the first messages are asked for, and fewer of them
where they are large.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from ..client.message import BrowsedMessage
from ..protocol import LakequeueError
from .reasons import LOOKED_AT, reasons

LOOKED_AT_BYTES = 1_000_000


def described(
    admin: Any, name: str, now: datetime | None = None
) -> tuple[dict[str, Any], list[BrowsedMessage]]:
    """`describe`, with `why`: a list of `code`, `text`, `stuck` and `side`; and the first messages.

    now: the engine's time; this machine's when it is not given.
    """
    queue = admin.describe(name)
    messages: list[BrowsedMessage] = []
    if queue["depth"]:
        try:
            messages = admin.browse(name, limit=_worth(queue))
        except LakequeueError:  # it may be gone by now: what is known is said
            messages = []
    found = reasons(queue, messages, now or datetime.now(UTC))
    return queue | {"why": [asdict(reason) for reason in found]}, messages


def _worth(queue: dict[str, Any]) -> int:
    """How many messages to look at."""
    usual = max(1, queue["spool_bytes"] // queue["depth"])
    return max(1, min(LOOKED_AT, LOOKED_AT_BYTES // usual))
