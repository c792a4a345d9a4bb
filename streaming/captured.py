"""The topics that queues capture beside their VPN's own (Q2), of those that there are.

A queue may capture a topic at any time, by its name or by an expression, and a topic may come to
exist at any time. A broker's loop finds the topics itself; Spark's Kafka source reads a list that
is fixed when a query starts. So the engine hears of each capture with the progress of a batch,
looks which topics there are, and starts anew the queries that must read more. A driver that died
before it heard would never: the state knows, and is asked at each start.

Most queues capture a topic that nobody ever makes, for clients write to `<vpn>.publish`. Nothing is
made, read, or started again for these.
"""

from __future__ import annotations

import logging

from confluent_kafka import KafkaException

from ..client.connection import Connection
from ..client.kafka_base import require_broker
from ..client.kafka_library import open_kafka
from ..definitions import Configuration
from ..protocol import NotConnected, commands
from ..sources.discovery import Discovery, captured_topics
from ..sources.live import kafka_client
from .home import HomeFolder
from .topics_admin import ensure_topics

log = logging.getLogger("lakequeue.engine")


class CapturedTopics:
    """Of one engine. partitions: of each topic that there is; reads: the captured ones of these,
    as the queries that were started last read them; unasked: VPNs whose queues may capture more
    than is known."""

    def __init__(
        self, bootstrap: str, folder: HomeFolder, configuration: Configuration, vpns: list[str]
    ) -> None:
        self._bootstrap = bootstrap
        self._folder = folder
        self._configuration = configuration
        self._vpns = vpns
        self._texts = {q.underlying_topic for q in configuration.queues}
        self._discovery: Discovery | None = None
        self.partitions: dict[str, int] = {}
        self.reads: list[str] = []
        self.unasked: set[str] = set()
        self.more = False  # the queries do not read yet what there is, or what is gone

    def open(self) -> None:
        """Make the engine's own topics, and begin to look for others."""
        require_broker(self._bootstrap)
        brokers = self._configuration.brokers
        self.partitions = ensure_topics(self._bootstrap, self._vpns, (), brokers)
        self._texts |= self._folder.captured()
        self._read(captured_topics(self.partitions, self._texts))
        self.watch()

    def watch(self) -> None:
        """Begin to look which topics there are."""
        kafka = kafka_client(self._bootstrap, "lakequeue-topics")
        self._discovery = Discovery(kafka, self._found)
        self._discovery.start()

    def close(self) -> None:
        """Look no more."""
        if self._discovery is not None:
            self._discovery.close()

    def _read(self, names: list[str]) -> None:
        self.reads = names
        self._folder.remember_captured(names)

    # ------------------------------------------------------------ more of them

    def heard(self, text: str) -> None:
        """A queue captures this topic or expression. From any thread."""
        if text not in self._texts:
            self._texts.add(text)
            if self._discovery is not None:
                self._discovery.look()

    def _found(self, sizes: dict[str, int]) -> None:
        """All topics, as they are now."""
        if captured_topics(sizes, list(self._texts)) != self.reads:
            self.more = True

    def learn(self) -> None:
        """Queries that start now read what there is. Raises NotConnected."""
        assert self._discovery is not None
        require_broker(self._bootstrap)
        self.more = False
        try:
            self.partitions = self._discovery.sizes()
        except KafkaException as error:
            self.more = True
            raise NotConnected(f"topics cannot be listed: {error}") from error
        self._read(captured_topics(self.partitions, list(self._texts)))

    # ------------------------------------------------------------ asking the state

    def ask_again(self) -> None:
        """The queries began anew: what they had to say may be lost."""
        self.unasked = set(self._vpns)

    def ask(self, timeout_s: float) -> None:
        """Ask the engine what its queues capture. Raises Timeout and NotConnected."""
        for vpn in sorted(self.unasked):
            transport = open_kafka(self._bootstrap, "lakequeue-start")
            connection = Connection(transport, vpn, "lakequeue-start")
            try:
                asked = commands.Captures()
                for text in connection.request_list(asked, "start", timeout=timeout_s):
                    self.heard(text)
            finally:
                connection.close()
            self.unasked.discard(vpn)
