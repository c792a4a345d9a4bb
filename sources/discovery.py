"""Finds out which topics exist, and which of them a broker reads.

A thread lists topics every few seconds, and at once when a queue captures a topic. New topics and
new partitions are read from then on. This module creates no topic, since most queues never get
messages through a topic of their own. Expressions are compiled as in the core, so brokers read
exactly the topics that queues capture.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import OffsetSpec

from ..definitions import is_regex
from ..protocol import topics
from ..protocol.patterns import compiled
from .same_topic import TopicsNow
from .step_batch import PartitionId

log = logging.getLogger("lakequeue.loop")

EVERY_S = 10.0


def captured_topics(known: Iterable[str], captured: Collection[str]) -> list[str]:
    """The existing topics that queues capture (Q2), without the engine's own and Kafka's."""
    names = {t for t in known if not t.startswith("__") and topics.split(t) is None}
    found: set[str] = names.intersection(captured)
    for text in filter(is_regex, captured):
        with contextlib.suppress(ValueError):  # an expression that an earlier version accepted
            found.update(filter(compiled(text).fullmatch, names))
    return sorted(found)


def peer_topics(vpns: Iterable[str], brokers: Iterable[str], there: Collection[str]) -> list[str]:
    """The existing topics in which other brokers and homes send to these brokers. A home with one
    broker has none before its first bridge."""
    names = [topics.topic(b, topics.MESH) for b in sorted(brokers)]
    names += [topics.topic(vpn, topics.BRIDGE_IN) for vpn in sorted(vpns)]
    return [name for name in names if name in there]


class Discovery(threading.Thread):
    """Lists topics, in a thread. found: called with all topics and their sizes. watch: called with
    the ends of the partitions that `places` returns."""

    def __init__(
        self,
        kafka: dict[str, Any],
        found: Callable[[dict[str, int]], None],
        places: Callable[[], list[PartitionId]] = list,
        watch: Callable[[dict[PartitionId, int]], None] | None = None,
    ) -> None:
        super().__init__(daemon=True, name="lakequeue-topics")
        self._topics = TopicsNow(kafka)
        self._found, self._places, self._watch = found, places, watch
        self._now = threading.Event()
        self._closing = False
        self._trim: tuple[str, int] | None = None

    def sizes(self) -> dict[str, int]:
        """All topics with their numbers of partitions. Raises KafkaException."""
        return self._topics.all_sizes()

    def look(self) -> None:
        """List topics now, because a queue captures more. Any thread may call it."""
        self._now.set()

    def trim(self, topic: str, before: int) -> None:
        """Schedule the removal of the log's records before this offset."""
        self._trim = topic, before

    def run(self) -> None:
        while not self._closing:
            self._now.wait(EVERY_S)
            self._now.clear()
            if self._closing:
                return
            try:
                self._look()
            except KafkaException as error:  # Kafka is unreachable: try again later
                log.info("topics cannot be listed: %s", error)
            except Exception:  # the thread must continue, or new topics would never be read
                log.exception("topics cannot be listed")

    def _look(self) -> None:
        self._found(self.sizes())
        if self._watch is not None:
            self._watch(self._topics.ends(self._places(), OffsetSpec.latest()))
        if self._trim is not None:
            (topic, before), self._trim = self._trim, None
            with contextlib.suppress(KafkaException, TimeoutError):
                self._topics.delete_before({(topic, 0): before})

    def close(self) -> None:
        """End the thread."""
        self._closing = True
        self._now.set()
