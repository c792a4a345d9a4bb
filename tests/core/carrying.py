"""A broker in memory that changes over to the live core in the middle of its life."""

from __future__ import annotations

from typing import Any

from lakequeue.core import Limits as LiveLimits
from lakequeue.memory.live_broker import LiveBroker
from lakequeue.memory.memory_broker import MemoryBroker
from lakequeue.state import DictStore
from lakequeue.streaming.carried_over import carry_over


class CarriedBroker(MemoryBroker):
    """On the earlier core, until `carry` is called, or for so many steps (`after`)."""

    after = 1 << 62

    def __init__(self, home: Any, limits: Any) -> None:
        self.live: LiveBroker | None = None
        self._taken = 0
        super().__init__(home, limits)

    def carry(self) -> None:
        """Go on on the live core."""
        if self.live is not None or not self.store.pages:
            return
        live = LiveBroker(self.home, self._limits)
        assert isinstance(live._limits, LiveLimits)
        pages = DictStore(self.store.pages)
        found = carry_over(pages, pages.pages, self.home, live._limits, self._limits)
        live.store = found
        live.deadline = self.deadline
        self.live = live

    def take(self, batch: Any, now: int) -> list[Any]:
        self._taken += 1
        if self._taken > self.after:
            self.carry()
        if self.live is None:
            return super().take(batch, now)
        outputs = self.live.take(batch, now)
        self.deadline = self.live.deadline
        return outputs

    def check(self, now: int) -> None:
        if self.live is None:
            super().check(now)
        else:
            self.live.check(now)
