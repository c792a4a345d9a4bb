"""Finds the existing topics that queues capture, besides their VPN's own (Q2).

A queue may capture a topic at any time, by name or by an expression, and a topic may be created at
any time. A broker's loop finds new topics itself, but Spark's Kafka source has a fixed list. So a
batch's progress reports each new capture, and the engine restarts the queries that must read more
topics. At its start the engine asks the brokers, because an earlier driver may have missed a
report.

The query of micro-batches also gets the largest record that each topic accepts (`low_limits`). If
that changes, the engine restarts it too.

Most queues capture a topic that never exists, since clients write to `<vpn>.publish`. For those the
engine creates, reads and restarts nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from confluent_kafka import KafkaException

from ..client.connection import Connection
from ..client.kafka import open_kafka
from ..client.kafka.base import require_broker
from ..definitions import Configuration
from ..protocol import LakequeueError, NotConnected, commands, topics
from ..protocol.bounds import RECORD_BYTES_MAX
from ..sinks.record_limits import limits_of
from ..sources.discovery import Discovery, captured_topics, peer_topics
from ..sources.live import kafka_client
from .broker_query import BrokerQuery
from .home.home_folder import HomeFolder
from .kafka.topics_admin import ensure_own, ensure_topics

log = logging.getLogger("lakequeue.engine")


class CapturedTopics:
    """The captured topics of an engine. brokers: by name. partitions: of each existing topic.
    reads: the captured topics that the running queries read. unasked: brokers and VPNs whose queues
    may capture more topics than these. begin: makes the command `begin`, on which a broker writes
    its entries into a new directory."""

    def __init__(
        self,
        bootstrap: str,
        folder: HomeFolder,
        configuration: Configuration,
        vpns: list[str],
        brokers: Mapping[str, BrokerQuery],
        begin: Callable[[], bytes] = bytes,
    ) -> None:
        self._bootstrap = bootstrap
        self._folder = folder
        self._vpns = vpns
        self._brokers = brokers
        self._texts = {q.underlying_topic for q in configuration.queues}
        self._begin = begin
        self._discovery: Discovery | None = None
        self._directory_is_new = False
        self._limits: dict[str, int] | None = None
        self._own: dict[str, int] = {}  # the engine's topics and their partitions, as last listed
        self.partitions: dict[str, int] = {}
        self.reads: list[str] = []
        self.unasked: set[tuple[str, str]] = set()  # broker, VPN
        self.more = False  # the queries' topics are out of date
        self._told = self.existing()

    def open(self) -> None:
        """Make the engine's own topics, and begin to look for others."""
        self._texts |= self._folder.captured()
        self.share_out()
        self._read(captured_topics(self.partitions, self._texts))
        self._told = self.existing()  # brokers get it when they begin
        self.watch()

    def share_out(self, before: int | None = None) -> None:
        """Make the engine's own topics, with partitions for each broker. before: how many broker
        numbers already had partitions; None: all that the home has assigned. Raises
        LakequeueError."""
        require_broker(self._bootstrap)
        before = self._folder.numbers if before is None else before
        count = max([before, *(b.number + 1 for b in self._brokers.values())])
        self.partitions = ensure_topics(
            self._bootstrap, self._vpns, (), self._brokers, count, before
        )
        self._own |= self._own_topics(self.partitions)

    def watch(self) -> None:
        """Begin to look for topics."""
        kafka = kafka_client(self._bootstrap, "lakequeue-topics")
        self._discovery = Discovery(kafka, self._found)
        self._discovery.start()

    def stop(self) -> None:
        if self._discovery is not None:
            self._discovery.close()

    def _read(self, names: list[str]) -> None:
        self.reads = names
        self._folder.remember_captured(names)

    def existing(self) -> bytes:
        """The command with those captured topics that exist."""
        names = sorted(self._texts.intersection(self.reads))
        return commands.encode_command(commands.ExistingTopics(topics=names))

    def tell(self, say: Callable[[bytes], None]) -> None:
        """Send the brokers the existing topics if they have changed, and `begin` if the directory
        was recreated. Raises LakequeueError."""
        if self._directory_is_new:
            say(self._begin())
            self._directory_is_new = False
        if (existing := self.existing()) != self._told:
            say(existing)
            self._told = existing

    # ------------------------------------------------------------ more of them

    def heard(self, text: str) -> None:
        """Note that a queue captures this topic or expression. Any thread may call it."""
        if text not in self._texts:
            self._texts.add(text)
            if self._discovery is not None:
                self._discovery.look()

    def _found(self, sizes: dict[str, int]) -> None:
        own = self._own_topics(self._own)
        if deleted := {name: count for name, count in own.items() if name not in sizes}:
            self._make_again(deleted)
        self._own |= self._own_topics(sizes)
        if (
            captured_topics(sizes, list(self._texts)) != self.reads
            or self._peer_topics(sizes) != self.peer_topics()
            or (self._limits is not None and self._limits_now(sizes) != self._limits)
        ):
            self.more = True

    def _own_topics(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The topics of the engine's VPNs and brokers, including bridges'. Topics of removed
        brokers are not among them."""
        owners = {*self._vpns, *self._brokers}
        split = {name: topics.split(name) for name in sizes}
        return {name: sizes[name] for name, own in split.items() if own and own[0] in owners}

    def _make_again(self, deleted: dict[str, int]) -> None:
        """Recreate topics that somebody deleted: without them no queue works."""
        log.error(
            "somebody deleted topics of the engine; it creates them again, but unread records in "
            "them are lost: %s", ", ".join(sorted(deleted)),
        )  # fmt: skip
        try:
            ensure_own(self._bootstrap, deleted)
            self._directory_is_new |= any(topics.kind(t) == topics.DIRECTORY for t in deleted)
        except LakequeueError as error:
            log.error("the engine tries again: %s", error)

    def peer_topics(self) -> list[str]:
        """The existing topics with records between brokers."""
        return self._peer_topics(self.partitions)

    def _peer_topics(self, sizes: Collection[str]) -> list[str]:
        return peer_topics(self._vpns, [*self._brokers, *self._folder.removed()], sizes)

    def low_limits(self) -> dict[str, int]:
        """The record sizes of our topics that allow less than the default. Asks Kafka now, and from
        now on at each look for topics."""
        self._limits = self._limits_now(self.partitions)
        return self._limits

    def _limits_now(self, names: Iterable[str]) -> dict[str, int]:
        own = [name for name in names if topics.vpn_of(name) is not None]
        known = {name: at for name, at in (self._limits or {}).items() if name in own}
        # A topic for which Kafka does not answer keeps its last limit.
        limits = known | limits_of(kafka_client(self._bootstrap, "lakequeue-topics"), own)
        return {name: limit for name, limit in limits.items() if limit < RECORD_BYTES_MAX}

    def learn(self) -> None:
        """List the topics, so that queries that start now read them. Raises NotConnected."""
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

    def ask_again(self, brokers: Iterable[str]) -> None:
        """Ask these brokers again: after the restart of a query, its notes may be lost."""
        self.unasked |= {(broker, vpn) for broker in brokers for vpn in self._vpns}

    def forget(self, broker: str) -> None:
        """Forget a broker that was removed."""
        self.unasked -= {(broker, vpn) for vpn in self._vpns}

    def ask(self, timeout_s: float) -> None:
        """Ask the brokers what their queues capture. Raises Timeout and NotConnected."""
        for broker, vpn in sorted(self.unasked):
            asked = self._brokers.get(broker)
            if asked is None:  # it was removed meanwhile
                self.unasked.discard((broker, vpn))
                continue
            transport = open_kafka(self._bootstrap, "lakequeue-start")
            whose = self._folder.credentials
            connection = Connection(
                transport, vpn, "lakequeue-start", number=asked.number, credentials=whose
            )
            try:
                question = commands.Captures()
                for text in connection.request_list(question, "start", timeout=timeout_s):
                    self.heard(text)
            finally:
                connection.close()
            self.unasked.discard((broker, vpn))
