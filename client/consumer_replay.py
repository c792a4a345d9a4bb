"""A replay that a consumer asks for: `connection.consumer("orders", replay_from=…)` (R4).

It is the administrator's replay, begun behind the consumer's subscription: those messages are
published once more, to this queue alone, and come to whoever consumes it. What is asked for is
looked at before the consumer subscribes, so what is wrong with it is raised there; then it goes on
beside the consumer, who may receive at once. A consumer that subscribes again after a failure asks
for nothing again.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from datetime import datetime
from pathlib import Path
from typing import Any

from .admin import Admin
from .session import Session
from .values import time_ms


class ConsumerReplay:
    """Of one consumer. done: what became of it. Raises as `Admin.replay`."""

    def __init__(
        self, session: Session, queue: str, since: datetime | str, home: Path | str | None
    ) -> None:
        if since != "epoch" and not (isinstance(since, str) and since.isdecimal()):
            time_ms(since, "replay_from")
        self.done: Future[Any] = Future()
        self._admin = Admin(session)
        self._queue, self._since, self._home = queue, since, home
        self._waits = session.runner.waits
        found = self._run(dry_run=True)
        if found.left:
            session.report(f"replay_from {since} of queue {queue!r}: {found.left}")

    def begin(self) -> None:
        """Publish it, beside whoever calls."""
        if self._waits:
            threading.Thread(target=self._go, name="lakequeue-replay", daemon=True).start()
        else:  # in memory nobody works beside the caller
            self._go()

    def _run(self, dry_run: bool = False) -> Any:
        return self._admin.replay(self._queue, since=self._since, home=self._home, dry_run=dry_run)

    def _go(self) -> None:
        try:
            self.done.set_result(self._run())
        except Exception as error:  # the tables are altered, the connection was closed
            self.done.set_exception(error)
