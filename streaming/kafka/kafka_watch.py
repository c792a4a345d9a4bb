"""Restarts a dead embedded Kafka, and reports to the operator when Kafka does not answer.

`KafkaWatch`: the embedded broker is a separate process, which may run out of memory or be killed.
It comes back at the same address with the same data; clients and Spark wait for it.

`KafkaAnswers`: all parts wait for Kafka, often silently. This thread asks Kafka every few seconds,
and logs a line when it stops answering and when it answers again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ...client.kafka.base import require_broker
from ...protocol.errors import LakequeueError, NotConnected
from ..restarts import Restarts
from ..watch_thread import WatchThread
from .embedded_kafka import STOP_SECONDS_MAX, EmbeddedKafka

LOOK_S = 0.25


class KafkaWatch(WatchThread):
    """Restarts a broker that died by itself. say: called with each message about it. If restarting
    does not help, ``failure`` is set and the watch ends.
    """

    def __init__(self, kafka: EmbeddedKafka, say: Callable[[str], None]) -> None:
        super().__init__("kafka-watch")
        self._kafka = kafka
        self._say = say
        self._restarts = Restarts(self._stopping, say)
        self.failure: LakequeueError | None = None

    def stop(self, seconds: float = STOP_SECONDS_MAX) -> None:
        """End the watch and stop the broker, cleanly if that takes at most this many seconds."""
        super().stop()
        while self.is_alive():  # it may be starting the broker; `abort` makes that fail
            self._kafka.abort()
            self.join(0.1)
        self._kafka.stop(seconds)

    def run(self) -> None:
        try:
            while not self._stopping.wait(LOOK_S):
                if not self._kafka.running:
                    self._start_again()
        except LakequeueError as error:
            self.failure = error

    def _start_again(self) -> None:
        why = self._kafka.ended
        while not self._stopping.is_set():
            self._restarts.again("Kafka", why, str(self._kafka.log))
            if self._stopping.is_set():
                return
            self._kafka.stop()  # frees the home
            try:
                self._kafka.start()
            except LakequeueError as error:
                why = str(error)
                continue
            self._say("Kafka runs again")
            return


log = logging.getLogger("lakequeue.engine")

EVERY_S = 5.0
ANSWER_S = 3.0


class KafkaAnswers(WatchThread):
    """Logs when Kafka stops answering, and when it answers again."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__("lakequeue-kafka")
        self._address = bootstrap
        self._away_since: float | None = None

    def run(self) -> None:
        self.repeat(EVERY_S, self.look)

    def look(self) -> None:
        """Ask Kafka once."""
        try:
            require_broker(self._address, ANSWER_S)
        except NotConnected as error:
            if self._away_since is None:
                self._away_since = time.monotonic()
                log.error("%s; messages wait meanwhile, and nothing is lost", error)
            return
        if self._away_since is not None:
            away_s = time.monotonic() - self._away_since
            self._away_since = None
            log.info("Kafka answers again, after %.0f s", away_s)
