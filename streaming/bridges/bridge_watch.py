"""Finds the bridges between homes, and gives each its topics and a copier (H1).

Each broker writes its ends of bridges to the directories of their VPNs. These topics are compacted,
so a driver that starts finds all ends there (`BridgeEnds`). Records of another home are ignored, by
their epoch. The far end of a bridge needs topics; the near end needs a thread that copies.
"""

from __future__ import annotations

import logging
import time
from functools import partial

from confluent_kafka import KafkaException, Message, TopicPartition

from ...definitions.bridge import BridgeDefinition, parse_bridge
from ...protocol import LakequeueError, topics
from ...protocol.duties import do_every
from ...protocol.home_bridges import BridgeEnds, EndId
from ...sources.same_topic import TopicsNow
from ..kafka.topics_admin import ensure_own
from ..watch_thread import TopicReader
from .far_home import READER
from .home_copier import HomeCopier

log = logging.getLogger("lakequeue.engine")

TRIM_S = 30.0
ASK_S_MAX = 10.0


class BridgeWatch(TopicReader):
    """Watches the bridges of an engine. It reads the directories from `open` on."""

    def __init__(self, bootstrap: str, vpns: list[str]) -> None:
        places = [TopicPartition(topics.topic(vpn, topics.DIRECTORY), 0, 0) for vpn in vpns]
        settings = {**READER, "enable.partition.eof": True}  # see `unread`
        super().__init__(bootstrap, "lakequeue-bridges", places, **settings)
        self._servers = bootstrap
        self._epoch = 0
        self._ends = BridgeEnds()
        self._wanted: dict[EndId, tuple[BridgeDefinition, int]] = {}
        self._copiers: dict[EndId, HomeCopier] = {}
        self._changed: set[EndId] = set()
        self._trimmed_at = time.monotonic()

    def open(self, epoch: int) -> None:
        """Start the thread. epoch: the home's."""
        self._epoch = epoch
        self.start()

    def stop(self) -> None:
        """End the thread and the copiers soon."""
        super().stop()
        for copier in list(self._copiers.values()):
            copier.stop()

    def take(self, message: Message) -> None:
        """Read one record of a directory. Ignores malformed ones: the engine did not write them."""
        given = message.headers()
        headers = given if isinstance(given, list) else []
        about = message.topic() or "", message.key(), message.value(), headers
        try:
            place = self._ends.read(self._epoch, *about)
            if place is None:
                return
            end = self._ends.ends.get(place)
            self._wanted.pop(place, None)
            if end is not None:
                self._wanted[place] = parse_bridge(end.definition), end.broker
            self._changed.add(place)
        except ValueError as error:
            log.warning("bridges: %s", error)

    def idle(self) -> None:
        try:
            do_every((self._follow, self._trim))
        except (LakequeueError, KafkaException, TimeoutError) as error:  # away: again, soon
            if self._reports.first("away"):
                log.warning("bridges: %s", error)

    def _follow(self) -> None:
        self._changed |= {place for place, one in self._copiers.items() if not one.is_alive()}
        do_every(partial(self._follow_one, place) for place in sorted(self._changed))

    def _follow_one(self, place: EndId) -> None:
        bridge, number = self._wanted.get(place, (None, 0))
        running = self._copiers.get(place)
        if running is not None and (running.bridge != bridge or not running.is_alive()):
            running.stop()
            running.join(ASK_S_MAX)
            if running.is_alive():  # two would copy beside each other: at the next look
                return
            del self._copiers[place]
        if bridge is not None:
            ensure_own(self._servers, _topics_of(bridge, number))
            if bridge.leaves and place not in self._copiers:
                copier = HomeCopier(self._servers, self._epoch, bridge)
                copier.start()
                self._copiers[place] = copier
                if self._stopping.is_set():  # maybe just now, see `stop`
                    copier.stop()
        self._changed.discard(place)

    def _trim(self) -> None:
        """Remove answered records, which nobody reads again: a broker's bridges share a topic, so
        all of them must have read so far, and be known: an unread directory may name more."""
        if self.unread or time.monotonic() - self._trimmed_at < TRIM_S:
            return
        self._trimmed_at = time.monotonic()
        at: dict[str, list[int | None]] = {}
        for place, (bridge, _) in self._wanted.items():
            if bridge.leaves:
                copier = self._copiers.get(place)
                position = None if copier is None else copier.position
                at.setdefault(bridge.origin, []).append(position)
        before = {
            (topics.topic(broker, topics.BRIDGE_OUT), 0): min(filter(None, known))
            for broker, known in at.items()
            if all(known)
        }
        if before:
            TopicsNow(self._kafka).delete_before(before)


def _topics_of(bridge: BridgeDefinition, number: int) -> dict[str, int]:
    """The topics of a bridge's end at the broker with this number, in the order in which they are
    created: if the last one exists, all do."""
    if bridge.arrives:
        count = topics.bridge_partition(number) + 1
        kinds = (topics.BRIDGE_ANSWERS, topics.BRIDGE_IN)
        return {topics.topic(bridge.vpn, kind): count for kind in kinds}
    return {
        topics.topic(bridge.origin, topics.BRIDGE_OUT): 1,
        topics.topic(bridge.origin, topics.MESH): 1,
    }
