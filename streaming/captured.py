"""The topics that queues capture beside their VPN's own (Q2): known, remembered, heard of.

A queue may capture a topic at any time, by its name or by an expression. A broker's loop finds the
topics itself; Spark's Kafka source reads a list that is fixed when a query starts. So the engine
hears of each capture with the progress of a batch, and starts anew the queries that must read more.
A driver that died before it heard would never: the state knows, and is asked at each start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from ..client.connection import Connection
from ..client.kafka_base import require_broker
from ..client.kafka_library import open_kafka
from ..definitions import Configuration, is_regex
from ..protocol import commands
from .broker_query import BrokerQuery
from .home import HomeFolder
from .topics_admin import ensure_topics

log = logging.getLogger("lakequeue.engine")


class CapturedTopics:
    """Of one engine. brokers: names and numbers; known: topics and expressions; partitions: of each
    topic that is read; unasked: VPNs of a broker whose queues may capture more than is known."""

    def __init__(
        self,
        bootstrap: str,
        folder: HomeFolder,
        configuration: Configuration,
        vpns: list[str],
        brokers: Mapping[str, BrokerQuery],
    ) -> None:
        self._bootstrap = bootstrap
        self._folder = folder
        self._configuration = configuration
        self._vpns = vpns
        self._brokers = brokers
        self.known: set[str] = set()
        self.partitions: dict[str, int] = {}
        self.unasked: set[tuple[str, str]] = set()  # broker, VPN
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
        before = self._folder.numbers
        count = max([before, *(b.number + 1 for b in self._brokers.values())])
        self.partitions = ensure_topics(
            self._bootstrap, self._vpns, named, self._brokers, count, before
        )

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

    def ask_again(self, brokers: Iterable[str]) -> None:
        """These brokers' queries began anew: what they had to say may be lost."""
        self.unasked |= {(broker, vpn) for broker in brokers for vpn in self._vpns}

    def forget(self, broker: str) -> None:
        """This broker does not answer any more."""
        self.unasked = {one for one in self.unasked if one[0] != broker}

    def ask(self, timeout_s: float) -> None:
        """Ask the brokers what their queues capture. Raises Timeout and NotConnected."""
        for broker, vpn in sorted(self.unasked):
            number = self._brokers[broker].number
            transport = open_kafka(self._bootstrap, "lakequeue-start")
            connection = Connection(transport, vpn, "lakequeue-start", number=number)
            try:
                for queue in connection.request(commands.Queues(), timeout=timeout_s):
                    self.heard(queue["definition"]["underlying_topic"])
            finally:
                connection.close()
            self.unasked.discard((broker, vpn))
