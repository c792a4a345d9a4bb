"""Drops repeated log lines: a lost broker or a missing topic would repeat them endlessly."""

from __future__ import annotations

import re
from time import monotonic

REPEAT_S = 30.0
_KINDS_MOST = 500


class Repeats:
    """The same text, numbers aside, is news once in 30 s. Any thread may ask."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}

    def is_news(self, text: str) -> bool:
        """Whether to log this text now."""
        kind = re.sub(r"\d+", "#", text)[:200]
        now = monotonic()
        if now - self._told.get(kind, -REPEAT_S) < REPEAT_S:
            return False
        if len(self._told) > _KINDS_MOST:
            self._told.clear()
        self._told[kind] = now
        return True
