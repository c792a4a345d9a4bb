"""Limits what is logged again and again, such as one problem of many records or of a Kafka that is
away."""

from __future__ import annotations

import time
from collections.abc import Hashable

MINUTE_S = 60.0
THINGS_MAX = 1_000


class OnceAMinute:
    """Lets each thing pass once a minute, and at most `THINGS_MAX` things: clients may name many
    times a topic that does not exist."""

    def __init__(self) -> None:
        self._until: dict[Hashable, float] = {}

    def first(self, thing: Hashable) -> bool:
        """Note that it happened; returns whether to report it."""
        now = time.monotonic()
        if now < self._until.get(thing, 0.0):
            return False
        if len(self._until) >= THINGS_MAX:
            self._until = {one: at for one, at in self._until.items() if at > now}
        if len(self._until) >= THINGS_MAX:
            return False
        self._until[thing] = now + MINUTE_S
        return True
