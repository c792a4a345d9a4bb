"""Limits repeated log lines, such as one problem shared by many records or an unreachable Kafka."""

from __future__ import annotations

import time
from collections.abc import Hashable

MINUTE_S = 60.0
THINGS_MAX = 1_000


class OnceAMinute:
    """Lets each thing pass once a minute, and at most `THINGS_MAX` different things, because
    clients can name any number of topics that do not exist."""

    def __init__(self) -> None:
        self._until: dict[Hashable, float] = {}

    def first(self, thing: Hashable) -> bool:
        """Record an occurrence; returns whether to report it."""
        now = time.monotonic()
        if now < self._until.get(thing, 0.0):
            return False
        if len(self._until) >= THINGS_MAX:
            self._until = {one: at for one, at in self._until.items() if at > now}
        if len(self._until) >= THINGS_MAX:
            return False
        self._until[thing] = now + MINUTE_S
        return True
