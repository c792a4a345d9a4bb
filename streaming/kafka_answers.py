"""Tells the operator when Kafka is away, and when it is back.

Everything that needs Kafka waits for it in its own way, and for a long time in silence: clients
keep what they send, the loop waits in its log, a query that gave up is started again. This asks
Kafka every few seconds and says one sentence when it does not answer, and one when it does again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ..client.kafka.base import require_broker
from ..protocol.errors import NotConnected

log = logging.getLogger("lakequeue.engine")

EVERY_S = 5.0
ANSWER_S = 3.0


class KafkaAnswers(threading.Thread):
    """ask raises NotConnected when Kafka does not answer."""

    def __init__(
        self, bootstrap: str, every_s: float = EVERY_S, ask: Callable[[], None] | None = None
    ) -> None:
        super().__init__(daemon=True, name="lakequeue-kafka")
        self._ask = ask or (lambda: require_broker(bootstrap, ANSWER_S))
        self._every_s = every_s
        self._stopping = threading.Event()
        self._away_since: float | None = None

    def run(self) -> None:
        """The thread."""
        while not self._stopping.wait(self._every_s):
            self.look()

    def look(self) -> None:
        """Once."""
        try:
            self._ask()
        except NotConnected as error:
            if self._away_since is None:
                self._away_since = time.monotonic()
                log.error("%s; what is sent waits meanwhile, and nothing is lost", error)
            return
        if self._away_since is not None:
            away_s = time.monotonic() - self._away_since
            self._away_since = None
            log.info("Kafka answers again, after %.0f s", away_s)

    def stop(self) -> None:
        """End the thread; it may be in the middle of a question."""
        self._stopping.set()
