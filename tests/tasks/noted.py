"""The effects of a test's tasks, and an engine's connections."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import lakequeue

WAIT_S = 30.0
_numbers = itertools.count(1)


class Noted:
    """An engine in the process, by its name, and a list for the tasks' notes."""

    def __init__(self, kind: str) -> None:
        self.name = f"{kind}-{next(_numbers)}"
        self.engine = lakequeue.connect(f"memory://{self.name}")
        self.admin = self.engine.admin()
        self.ran: list[Any] = []
        self._changed = threading.Condition()

    def note(self, what: Any) -> None:
        with self._changed:
            self.ran.append(what)
            self._changed.notify_all()

    def wait(self, count: int) -> list[Any]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.ran) >= count, WAIT_S), self.ran
            return list(self.ran)

    def describe(self, queue: str) -> dict[str, Any]:
        return self.admin.describe(queue)

    def queues(self) -> list[str]:
        return [queue["name"] for queue in self.admin.queues()]
