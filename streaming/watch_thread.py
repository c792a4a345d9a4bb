"""The base of watch threads: how they end, and how they read Kafka topics."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from ..protocol.once_a_minute import OnceAMinute
from ..sources.live import kafka_client

log = logging.getLogger("lakequeue.engine")

POLL_S = 0.5


class WatchThread(threading.Thread):
    """A thread that runs until `stop` is called. `stop` does not wait for its end."""

    def __init__(self, name: str) -> None:
        super().__init__(daemon=True, name=name)
        self._stopping = threading.Event()
        self._reports = OnceAMinute()

    def stop(self) -> None:
        """End the thread soon."""
        self._stopping.set()

    def repeat(self, every_s: float, work: Callable[[], None]) -> None:
        """Do the work every so many seconds, until the thread is stopped."""
        while not self._stopping.wait(every_s):
            self.attempt(work)

    def attempt(self, work: Callable[[], None]) -> None:
        """Do the work. Log an exception, once a minute, since the thread must continue."""
        try:
            work()
        except Exception as error:  # unforeseen
            if self._reports.first(type(error).__name__):
                log.exception("%s", self.name)


class TopicReader(WatchThread):
    """Reads partitions from these offsets on. While Kafka is down it waits. settings: of the
    consumer, which commits no offsets. unread: topics whose end it has not reached yet, if the
    settings ask Kafka's library to report ends."""

    def __init__(
        self, bootstrap: str, name: str, places: list[TopicPartition], **settings: Any
    ) -> None:
        super().__init__(name)
        self._kafka = kafka_client(bootstrap, name)
        self._places = places
        self._settings = settings
        self.unread = {place.topic for place in places}

    @cached_property
    def _consumer(self) -> Consumer:
        return Consumer(
            {
                **self._kafka,
                "group.id": "lakequeue-engine",  # required, but not used
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                **self._settings,
            }
        )

    def run(self) -> None:
        self._consumer.assign(self._places)
        while not self._stopping.is_set():
            message = self._consumer.poll(POLL_S)
            if message is None:
                self.attempt(self.idle)
            elif (error := message.error()) is None:
                self.attempt(partial(self.take, message))  # any client may write there
            else:
                if error.code() == KafkaError._PARTITION_EOF:
                    self.unread.discard(message.topic())
                self.attempt(self.idle)
        self._consumer.close()

    def take(self, message: Message) -> None:
        """Process one record."""
        raise NotImplementedError

    def idle(self) -> None:
        """Called while no record comes."""
