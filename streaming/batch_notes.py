"""What a step tells the driver, with the progress of its batch: a word, a colon, and the rest.

`deciding.notes_of` and the loop write them. They are no part of the state and may be lost: who
needs one for sure asks the engine.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ..sinks.metrics import Metrics
from .captured import CapturedTopics
from .ticker import Ticker

log = logging.getLogger("lakequeue.engine")


class BatchNotes:
    """Hands each note to the one that it is for. on_loss: told a topic and how many records of
    it are gone; stopped: set when a loop has ended its last batch."""

    def __init__(
        self,
        captured: CapturedTopics,
        metrics: Metrics,
        ticker: Ticker,
        on_loss: Callable[[str, int], None],
    ) -> None:
        self._captured = captured
        self._metrics = metrics
        self._ticker = ticker
        self._on_loss = on_loss
        self.stopped = threading.Event()

    def __call__(self, note: str) -> None:
        """One note."""
        kind, _, rest = note.partition(":")
        match kind:
            case "capture":
                self._captured.heard(rest)
            case "deadline":
                broker, _, at = rest.rpartition(":")
                self._ticker.set(broker, int(at))
            case "lost":
                self._lost(*_counted(rest))
            case "malformed":
                self._metrics.malformed(*_counted(rest))
            case "refused":
                log.error("Kafka does not take records for %s", rest)
            case "stopped":
                self.stopped.set()

    def _lost(self, topic: str, count: int) -> None:
        log.error("%s records of topic %r are gone before they were read: Kafka's retention is "
                  "shorter than the engine's rest", count, topic)  # fmt: skip
        self._on_loss(topic, count)


def _counted(text: str) -> tuple[str, int]:
    name, _, count = text.rpartition(":")
    return name, int(count)
