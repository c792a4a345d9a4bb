"""Keeps an embedded Kafka alive while an engine runs on it.

The broker is a process of its own and may die alone: out of memory, or killed by somebody. Clients
and Spark wait for it meanwhile, and it comes back at the same address with the same data.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..protocol.errors import LakequeueError
from .kafka_broker import EmbeddedKafka
from .supervision import Restarts

LOOK_S = 0.25


class KafkaWatch:
    """Starts a broker again that died by itself; say gets each sentence about it.

    ``failure`` is set, and the watch ends, when starting it again does not help.
    """

    def __init__(self, kafka: EmbeddedKafka, say: Callable[[str], None]) -> None:
        self._kafka = kafka
        self._say = say
        self._stopping = threading.Event()
        self._restarts = Restarts(self._stopping, say)
        self._thread = threading.Thread(target=self._run, name="kafka-watch", daemon=True)
        self.failure: LakequeueError | None = None

    def start(self) -> None:
        """Begin to watch a broker that runs."""
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """End the watch, and the broker: in order if it does that in so many seconds."""
        self._stopping.set()
        while self._thread.is_alive():  # it may be in the middle of a start, which ends with it
            self._kafka.abort()
            self._thread.join(0.1)
        self._kafka.stop(seconds)

    def _run(self) -> None:
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
