"""The topics that queues capture beside their VPN's own (Q2): known, remembered, heard of.

A queue may capture a topic at any time, by its name or by an expression. A broker's loop finds the
topics itself; Spark's Kafka source reads a list that is fixed when a query starts. So the engine
hears of each capture with the progress of a batch, and starts anew the queries that must read more.
A driver that died before it heard would never: the state knows, and is asked at each start.
"""

from __future__ import annotations

import logging

from ..client.connection import Connection
from ..client.kafka_base import require_broker
from ..client.kafka_library import open_kafka
from ..definitions import Configuration, is_regex
from ..protocol import commands
from .home import HomeFolder
from .topics_admin import ensure_topics

log = logging.getLogger("lakequeue.engine")


class CapturedTopics:
    """Of one engine. known: topics and expressions; partitions: of each topic that is read;
    unasked: VPNs whose queues may capture more than is known."""

    def __init__(
        self, bootstrap: str, folder: HomeFolder, configuration: Configuration, vpns: list[str]
    ) -> None:
        self._bootstrap = bootstrap
        self._folder = folder
        self._configuration = configuration
        self._vpns = vpns
        self.known: set[str] = set()
        self.partitions: dict[str, int] = {}
        self.unasked: set[str] = set()
        self._heard: set[str] = set()
        self._news = False

    def open(self) -> None:
        """What the home and the configuration know; their topics are made where they are
        missing."""
        named = [q.underlying_topic for q in self._configuration.queues]
        self.known = self._folder.captured() | set(named)
        self._ensure()
        self._folder.remember_captured(self.known)

    def _ensure(self) -> None:
        require_broker(self._bootstrap)
        named = [t for t in self.known if not is_regex(t)]
        brokers = self._configuration.brokers
        self.partitions = ensure_topics(self._bootstrap, self._vpns, named, brokers)

    # ------------------------------------------------------------ more of them

    def heard(self, text: str) -> None:
        """A queue captures this topic or expression."""
        if text not in self.known:
            self._heard.add(text)

    def heard_of_topic(self, name: str) -> None:
        """A topic is there that is captured by an expression."""
        if name not in self.partitions:
            self._news = True

    @property
    def more(self) -> bool:
        """Whether there is something that the queries do not read yet."""
        return bool(self._heard) or self._news

    def learn(self) -> None:
        """What was heard of is known from now on. Raises NotConnected; nothing is forgotten."""
        heard = set(self._heard)
        self.known |= heard
        self._folder.remember_captured(self.known)
        self._ensure()
        self._heard -= heard
        self._news = False

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
                for queue in connection.request(commands.Queues(), timeout=timeout_s):
                    self.heard(queue["definition"]["underlying_topic"])
            finally:
                connection.close()
            self.unasked.discard(vpn)
