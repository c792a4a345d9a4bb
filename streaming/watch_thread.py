"""The base of watch threads: how they end, and how they read Kafka topics."""

from __future__ import annotations

import logging
import threading
from functools import cached_property
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition

from ..protocol.once_a_minute import OnceAMinute
from ..sources.live import kafka_client

log = logging.getLogger("lakequeue.engine")

POLL_S = 0.5


class WatchThread(threading.Thread):
    """A thread that ends soon after `stop`, which does not wait for it."""

    def __init__(self, name: str) -> None:
        super().__init__(daemon=True, name=name)
        self._stopping = threading.Event()

    def stop(self) -> None:
        """End the thread, soon."""
        self._stopping.set()


class TopicReader(WatchThread):
    """Reads partitions from these offsets on. While Kafka is away it waits. settings: of the
    consumer, which commits nothing."""

    def __init__(
        self, bootstrap: str, name: str, places: list[TopicPartition], **settings: Any
    ) -> None:
        super().__init__(name)
        self._kafka = kafka_client(bootstrap, name)
        self._places = places
        self._settings = settings
        self._reports = OnceAMinute()

    @cached_property
    def _consumer(self) -> Consumer:
        return Consumer(
            {
                **self._kafka,
                "group.id": "lakequeue-engine",  # asked for, and not used
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                **self._settings,
            }
        )

    def run(self) -> None:
        self._consumer.assign(self._places)
        while not self._stopping.is_set():
            message = self._consumer.poll(POLL_S)
            try:
                if message is not None and message.error() is None:
                    self.take(message)
                else:
                    self.idle()
            except Exception as error:  # anybody may write there: no record may end the thread
                if self._reports.first(type(error).__name__):
                    log.exception("%s", self.name)
        self._consumer.close()

    def take(self, message: Message) -> None:
        """Read one record."""
        raise NotImplementedError

    def idle(self) -> None:
        """Work to do while no record comes."""
