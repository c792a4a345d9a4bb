"""What a step tells the driver, with the progress of its batch: a word, a colon, and the rest.

The broker (`sorted_out`) and the loop write them. They are no part of the state and may be lost:
who needs one for sure asks the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..sinks.metrics import Metrics
from .captured import CapturedTopics
from .ticker import Ticker

log = logging.getLogger("lakequeue.engine")


# What happened to a topic under the loop: an event, and a sentence.
LOST, ANEW, BACK = "records_lost", "topic_made_anew", "kafka_went_back"
_OF_TOPIC = {
    "lost": (
        LOST, "%s records of topic %r are gone before they were read: Kafka's retention is shorter "
        "than the engine's rest",
    ),
    "anew": (
        ANEW, "%s records are in topic %r, which was deleted and made anew: it is read from its "
        "beginning; what of the old one was not read yet is gone",
    ),
    "back": (
        BACK, "%s records that were read of topic %r are not in Kafka any more: it lost them, and "
        "what comes next is read",
    ),
}  # fmt: skip


class BatchNotes:
    """Hands each note to the one that it is for. on_loss: told a broker, a topic, how many records
    are meant, and which event it is; on_word: told what a broker says of itself, `stopped` when its
    loop has ended its last batch, `worker` where it steps, `read` up to where it had read its
    clients."""

    def __init__(
        self,
        captured: CapturedTopics,
        metrics: Metrics,
        ticker: Ticker,
        on_loss: Callable[[str, str, int, str], None],
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
            case "lost" | "anew" | "back":
                self._of_topic(broker, kind, *_counted(rest))
            case "malformed":
                self._metrics.malformed(*_counted(rest))
            case "slow":
                log.warning(
                    "%s: most of what comes there is refused or settles nothing: while others "
                    "send, a step takes little of it", rest,
                )  # fmt: skip
            case "refused":
                log.error("Kafka does not take records for %s", rest)
            case "stopped" | "worker":
                self._on_word(broker, kind, rest)

    def _of_topic(self, broker: str, kind: str, topic: str, count: int) -> None:
        event, text = _OF_TOPIC[kind]
        fields = {"event": event, "broker": broker, "topic": topic, "records": count}
        log.error(text, count, topic, extra={"fields": fields})
        self._on_loss(broker, topic, count, event)


def _counted(text: str) -> tuple[str, int]:
    name, _, count = text.rpartition(":")
    return name, int(count)
