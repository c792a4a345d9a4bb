"""One queue as people want to see it: what `describe` says, and why it does not move."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from ..protocol import LakequeueError
from .reasons import LOOKED_AT, Reason, reasons


def why(admin: Any, queue: dict[str, Any], now: datetime | None = None) -> list[Reason]:
    """Asks for the first messages, if there are any, and says why the queue does not move.

    now: the engine's time; this machine's when it is not given.
    """
    messages = []
    if queue["depth"]:
        try:
            messages = admin.browse(queue["name"], limit=LOOKED_AT)
        except LakequeueError:  # it may be gone by now: what is known is said
            messages = []
    return reasons(queue, messages, now or datetime.now(UTC))


def described(admin: Any, name: str, now: datetime | None = None) -> dict[str, Any]:
    """`describe`, with `why`: a list of `code`, `text`, `stuck` and `side`."""
    queue = admin.describe(name)
    return queue | {"why": [asdict(reason) for reason in why(admin, queue, now)]}
