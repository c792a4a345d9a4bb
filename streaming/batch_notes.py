"""What a step tells the driver, with the progress of its batch: a word, a colon, and the rest.

`deciding.notes_of` and the loop write them. They are no part of the state and may be lost: who
needs one for sure asks the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..sinks.metrics import Metrics
from .captured import CapturedTopics
from .ticker import Ticker

log = logging.getLogger("lakequeue.engine")


class BatchNotes:
    """Hands each note to the one that it is for. on_loss: told a broker, a topic and how many
    records of it are gone; on_word: told what a broker says of itself, `stopped` when its loop has
    ended its last batch, `worker` where it steps, `read` up to where it had read its clients."""

    def __init__(
        self,
        captured: CapturedTopics,
        metrics: Metrics,
        ticker: Ticker,
        on_loss: Callable[[str, str, int], None],
        on_word: Callable[[str, str, str], None],
    ) -> None:
        self._captured = captured
        self._metrics = metrics
        self._ticker = ticker
        self._on_loss = on_loss
        self._on_word = on_word

    def __call__(self, broker: str, note: str) -> None:
        """One note of a broker."""
        kind, _, rest = note.partition(":")
        match kind:
            case "capture":
                self._captured.heard(rest)
            case "deadline":
                name, _, at = rest.rpartition(":")
                self._ticker.set(name, int(at))
            case "lost":
                self._lost(broker, *_counted(rest))
            case "malformed":
                self._metrics.malformed(*_counted(rest))
            case "slow":
                log.warning(
                    "%s: most of what comes there is refused or settles nothing: while others "
                    "send, a step takes little of it", rest,
                )  # fmt: skip
            case "refused":
                log.error("Kafka does not take records for %s", rest)
            case "stopped" | "worker" | "read":
                self._on_word(broker, kind, rest)

    def _lost(self, broker: str, topic: str, count: int) -> None:
        log.error("%s records of topic %r are gone before they were read: Kafka's retention is "
                  "shorter than the engine's rest", count, topic)  # fmt: skip
        self._on_loss(broker, topic, count)


def _counted(text: str) -> tuple[str, int]:
    name, _, count = text.rpartition(":")
    return name, int(count)
