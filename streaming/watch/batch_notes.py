"""Reads the notes in a batch's report, and finds records that Kafka lost.

A *note* is a word, a colon, and the rest, written by a broker or its loop. Notes are not part of
the state and may be lost, so code that must be sure asks the broker.

Spark's Kafka source skips missing records silently (`failOnDataLoss` is false: otherwise the engine
would not start). If a batch has fewer rows than its offsets span, Kafka's first offset of the
partition shows whether retention deleted them. (Transaction markers take offsets too, but after
that first offset.) The operator gets an event about lost records.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import OffsetSpec

from ...protocol import topics
from ...protocol.commands import RecordsLost, encode_command
from ...sinks.kafka_sink import OBSERVATION
from ...sinks.metrics import Metrics
from ...sources.live import kafka_client
from ...sources.same_topic import TopicsNow, changed, gone_back, ids_of
from ...sources.step_batch import PartitionId
from ..captured import CapturedTopics
from .heartbeat import Ticker

log = logging.getLogger("lakequeue.engine")


@dataclass(frozen=True, slots=True)
class Loss:
    """Records of a partition that are gone, from `start` up to but not including `end`."""

    topic: str
    partition: int
    start: int
    end: int
    query: str = ""

    @property
    def count(self) -> int:
        """The number of lost records."""
        return self.end - self.start


def missing(progress: dict[str, Any]) -> dict[PartitionId, tuple[int, int]]:
    """The offsets that a batch of Spark spans, for the sources that returned fewer rows."""
    found: dict[PartitionId, tuple[int, int]] = {}
    for start, end, rows in _read(progress):
        spans = _spans(start, end)
        if sum(last - first for first, last in spans.values()) > rows:
            found |= spans
    return found


def _read(progress: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any], int]]:
    """The offsets where a batch's Kafka sources began and ended, and how many rows they returned.
    Leaves out a source's first batch."""
    for source in progress.get("sources") or ():
        start, end = source.get("startOffset"), source.get("endOffset")
        if isinstance(start, dict) and isinstance(end, dict):
            yield start, end, source.get("numInputRows", 0)


def _spans(start: dict[str, Any], end: dict[str, Any]) -> dict[PartitionId, tuple[int, int]]:
    return {
        (topic, int(partition)): (start[topic][partition], at)
        for topic, partitions in end.items()
        if isinstance(partitions, dict)
        for partition, at in partitions.items()
        if partition in start.get(topic, {})
    }


def made_anew(progress: dict[str, Any]) -> dict[str, int]:
    """The topics that were deleted and recreated, according to a batch's progress, and how many
    records the batch read of each."""
    return {
        topic: sum(end.get(topic, {}).values())
        for start, end, _ in _read(progress)
        for topic in changed(ids_of(start), ids_of(end))
    }


def went_back(progress: dict[str, Any]) -> dict[str, int]:
    """The topics of which Kafka lost records that had been read, and how many."""
    found: dict[str, int] = {}
    for start, end, _ in _read(progress):
        spans, known = _spans(start, end), ids_of(start)
        other = changed(known, ids_of(end))
        before = {place: at for place, (at, _) in spans.items() if place[0] not in other}
        after = {place: spans[place][1] for place in before}
        for place in gone_back(before, after, known):
            found[place[0]] = found.get(place[0], 0) + before[place] - after[place]
    return found


def notes_of_broker(progress: dict[str, Any]) -> list[str]:
    """The notes in the report of a broker's batch."""
    observed = progress.get("observedMetrics", {}).get(OBSERVATION) or {}
    return list(observed.get("notes") or ())


def notes_of_topics(progress: dict[str, Any]) -> list[str]:
    """Notes about a batch's topics, in the form of a loop's notes."""
    told = {"anew": made_anew(progress), "back": went_back(progress)}
    return [f"{kind}:{topic}:{n}" for kind, found in told.items() for topic, n in found.items()]


def losses(
    spans: dict[PartitionId, tuple[int, int]], first: dict[PartitionId, int], query: str = ""
) -> list[Loss]:
    """The part of these offsets that lies before Kafka's first one."""
    found = []
    for (topic, partition), (start, end) in sorted(spans.items()):
        gone = min(first.get((topic, partition), 0), end)
        if gone > start:
            found.append(Loss(topic, partition, start, gone, query))
    return found


class LossWatch:
    """Checks each batch's progress for lost records. `on_loss` is called after a loss was
    logged."""

    def __init__(self, bootstrap: str, on_loss: Callable[[Loss], None]) -> None:
        self._bootstrap, self._on_loss = bootstrap, on_loss

    def batch(self, progress: dict[str, Any]) -> None:
        """Check a finished batch. If rows are missing, ask Kafka, in a thread."""
        spans = missing(progress)
        if spans:
            about = progress["name"], spans
            threading.Thread(
                target=self._look, args=about, name="lakequeue-losses", daemon=True
            ).start()

    def _look(self, query: str, spans: dict[PartitionId, tuple[int, int]]) -> None:
        try:
            found = losses(spans, first_offsets(self._bootstrap, list(spans)), query)
        except KafkaException as error:  # Kafka is down: the next batch tries again
            log.warning("cannot find out whether records are lost: %s", error)
            return
        for loss in found:
            log.error(
                "%s records of %s, partition %d (offsets %d to %d) are lost to the query %s: Kafka "
                "deleted them before they were read; raise the topic's retention.ms or "
                "retention.bytes",
                f"{loss.count:,}", loss.topic, loss.partition, loss.start, loss.end - 1, query,
                extra={"fields": {"event": "records_lost", "topic": loss.topic, "query": query}},
            )  # fmt: skip
            self._on_loss(loss)


def notices(
    topic: str, records: int, reader: str, vpns: list[str], event: str = "records_lost"
) -> list[tuple[str, bytes]]:
    """The commands that turn a loss into an event, each with its VPN: the topic's own, or all VPNs
    for a captured topic, since only the brokers know which queues capture it."""
    own = topics.split(topic)
    command = encode_command(RecordsLost(topic=topic, records=records, reader=reader, event=event))
    return [(vpn, command) for vpn in vpns if own is None or own[0] == vpn]


def first_offsets(bootstrap: str, places: list[PartitionId]) -> dict[PartitionId, int]:
    """The first offset that Kafka still has, of each partition that answers."""
    kafka = kafka_client(bootstrap, "lakequeue-losses")
    return TopicsNow(kafka).ends(places, OffsetSpec.earliest())


# Faults of a topic while it is read: an event, and its log line.
LOST, ANEW, BACK = "records_lost", "topic_made_anew", "kafka_went_back"
_OF_TOPIC = {
    "lost": (
        LOST, "Kafka deleted %s records of topic %r before they were read: its retention is "
              "shorter than the engine was down",
    ),
    "anew": (
        ANEW, "%s new records are in topic %r, which was deleted and recreated: it is read from "
              "its beginning; unread records of the old one are gone",
    ),
    "back": (
        BACK, "Kafka lost %s records of topic %r that had been read; reading continues with the "
              "next ones",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class BatchNotes:
    """Handles each note. on_loss: called with a broker, a topic, a number of records, an event, and
    the table query if one lost them. on_report: called with a broker's report about itself:
    `stopped` after the last batch of its loop, `worker` with its process."""

    captured: CapturedTopics
    metrics: Metrics
    ticker: Ticker
    on_loss: Callable[[str, str, int, str, str], None]
    on_report: Callable[[str, str, str], None]

    def __call__(self, broker: str, note: str) -> None:
        """One note of a broker."""
        kind, _, rest = note.partition(":")
        match kind:
            case "capture":
                self.captured.heard(rest)
            case "deadline":
                name, _, at = rest.rpartition(":")
                self.ticker.set(name, int(at))
            case "lost" | "anew" | "back":
                self._of_topic(broker, kind, *_counted(rest))
            case "malformed":
                vpn, count = _counted(rest)
                self.metrics.count("malformed_records", vpn, by=count)
            case "slow":
                log.warning(
                    "%s: most of its commands have no effect, so a step takes few of them while "
                    "other partitions are active", rest,
                )  # fmt: skip
            case "refused":
                topic, _, why = rest.partition(":")
                log.error("Kafka refuses records for topic %r: %s", topic, why)
            case "stopped" | "worker":
                self.on_report(broker, kind, rest)

    def of_tables(self, query: str, topic: str, count: int) -> None:
        """Report that Kafka lost records of a topic that a table query had read."""
        self._of_topic("", "back", topic, count, query)

    def _of_topic(self, broker: str, kind: str, topic: str, count: int, query: str = "") -> None:
        event, text = _OF_TOPIC[kind]
        fields = {
            "event": event, "broker": broker, "topic": topic, "records": count, "query": query
        }  # fmt: skip
        log.error(text, count, topic, extra={"fields": fields})
        self.on_loss(broker, topic, count, event, query)


def _counted(text: str) -> tuple[str, int]:
    name, _, count = text.rpartition(":")
    return name, int(count)
