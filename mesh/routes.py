"""Where a broker of a home stores a message: in its own queues, in stand-ins for queues of other
brokers, and in the endpoints of bridges (M1, M2, M5)."""

from __future__ import annotations

from typing import Any

from ..definitions.definition_values import ENDPOINT_PREFIX
from ..protocol.messages import QUEUE_ALONE
from ..state.queue.broker import Broker
from ..state.queue.mesh_interface import MeshInterface
from ..state.queue.queue import Queue
from ..state.rules.edits import TRANSIT
from ..state.rules.routing import TopicTable
from ..state.storage.row import NEVER, Row
from . import stand_ins
from .bridges import endpoint
from .bridges.bridge_facts import BridgeFacts, left
from .facts import Entry, MeshFacts, entry_of, hosts_now


class _HomeTable(TopicTable):
    """The topics of a VPN's queues at all brokers, by one edition of the directory. Queues are
    numbered by their index in `listed`."""

    def __init__(self, edition: int, listed: list[tuple[str, Entry]]) -> None:
        super().__init__(
            (at, entry.definition, entry.topics) for at, (_, entry) in enumerate(listed)
        )
        self.edition, self.listed = edition, listed


class Routes(MeshInterface):
    """The routes of all brokers. facts: what this broker knows about them; bridges: about its
    bridges."""

    def __init__(self, broker: Broker, facts: MeshFacts, bridges: BridgeFacts) -> None:
        self._broker, self.facts, self.bridges = broker, facts, bridges
        self._tables: dict[str, _HomeTable] = {}  # by VPN

    @property
    def keeps_directory(self) -> bool:
        """See `MeshInterface`. It does so with other brokers, since the engine named them (`Peers`)
        or one of them wrote to it. So a replay learns of them in the same step."""
        facts = self.facts
        return bool(facts.brokers) or len(facts.peers) > (self._broker.header.number in facts.peers)

    def target_of(self, vpn: str, to: str) -> str:
        """The topic of a destination that is not a queue here."""
        entry = entry_of(self.facts, vpn, to)
        return to if entry is None else entry.definition.default_publish_target

    def with_others(self, vpn: str, to: str, topic: str, own: list[Queue]) -> list[Queue]:
        """See `MeshInterface`. Clients cannot publish to a bridge's endpoint directly."""
        facts, name = self.facts, to.removeprefix(QUEUE_ALONE)
        if name.startswith(ENDPOINT_PREFIX):
            return []
        if name != to:
            entry = entry_of(facts, vpn, name)
            matched = [] if entry is None else [(name, entry)]
        else:
            table = self._table(vpn)
            matched = [table.listed[at] for at in sorted(table.find(topic))]
        return self._stored_here(vpn, matched, own)

    def _stored_here(
        self, vpn: str, matched: list[tuple[str, Entry]], own: list[Queue]
    ) -> list[Queue]:
        """Own queues, and the stand-ins for matched queues that are elsewhere."""
        facts, number = self.facts, self._broker.header.number
        found = {queue.definition.name: queue for queue in own}
        for name, entry in matched:
            if stand_ins.target(self._broker, facts, vpn, name, entry) != number:
                found[name] = stand_ins.stand_in(self._broker, facts, vpn, name)
            else:  # messages from when the queue was elsewhere may still wait here: go behind them
                waiting = stand_ins.find(self._broker, vpn, name)
                if waiting is not None and waiting.header.depth:
                    found[name] = waiting
        return sorted(found.values(), key=lambda queue: queue.number)

    def of_record(self, vpn: str, topic: str, partition: int, own: list[Queue]) -> list[Queue]:
        """See `MeshInterface`. Each queue that captures the topic has its own reader. Queues that
        only subscribe to it get the record once, wherever they are: from the reader of the oldest
        capturing queue, unless an earlier reader of that queue had the record. Bridges do not carry
        plain records."""
        own = [queue for queue in own if not queue.header.stands_for]
        if not self.keeps_directory:
            return own
        table = self._table(vpn)
        names = {table.listed[at][0] for at in table.captured.find(topic)}
        by_name = {queue.definition.name: queue for queue in own}
        entries, number = self.facts.entries.get(vpn, {}), self._broker.header.number
        read = [name for name, q in by_name.items() if name in names and self.reads(q, partition)]
        owners = {name: entries[name].definition.initial_owner for name in read}
        # Those of another owner go on to it (H4, M6).
        cross = [
            name for name in read if self.facts.brokers.get(owners[name] or "", number) != number
        ]
        first = min(names, key=lambda name: (entries[name].made, name), default=None)
        if first in read:
            listening = [table.listed[at][0] for at in sorted(table.subscribed.find(topic))]
            cross += [name for name in listening if name not in names and not entries[name].bridge]
        mine = [by_name[name] for name in cross if name in by_name and name not in read]
        there = self._stored_here(vpn, [(name, entries[name]) for name in cross], mine)
        return [*(by_name[name] for name in read if name not in cross), *there]

    def reads(self, queue: Queue, partition: int) -> bool:
        """See `MeshInterface`."""
        facts, key = self.facts, (queue.definition.vpn, queue.definition.name)
        entry = entry_of(facts, *key)
        if entry is None:
            return True
        hosts = hosts_now(self._broker, facts, *key, entry)
        return hosts[partition % len(hosts)] == self._broker.header.number

    def _table(self, vpn: str) -> _HomeTable:
        table = self._tables.get(vpn)
        if table is None or table.edition != self.facts.edition:
            listed = sorted(self.facts.entries.get(vpn, {}).items())
            table = self._tables[vpn] = _HomeTable(self.facts.edition, listed)
        return table

    # ------------------------------------------------------------ stand-ins and endpoints

    def stand_in(self, vpn: str, name: str) -> Queue | None:
        """The stand-in for a queue of another broker."""
        if entry_of(self.facts, vpn, name) is None:
            return None
        return stand_ins.stand_in(self._broker, self.facts, vpn, name)

    def prepare_stand_in(self, queue: Queue, rows: list[Row], to: str) -> None:
        """See `MeshInterface`. A delayed message crosses at once and waits at the other broker. A
        bridge's endpoint also needs the destination, since its lanes are there."""
        link = self.bridges.links.get(queue.number)
        if link is not None:
            endpoint.prepare(link, rows, to)
            return
        ends_there = (queue.header.stands_for or "").startswith(ENDPOINT_PREFIX)
        for row in rows:
            if row.until != NEVER or ends_there:
                row.until, row.extras = NEVER, {TRANSIT: {"until": row.until, "to": to}}

    def left(self, queue: Queue, rows: list[Row]) -> None:
        """See `MeshInterface`."""
        link = self.bridges.links.get(queue.number)
        if link is not None:
            left(link, rows)
        elif not queue.header.depth:
            stand_ins.emptied(self._broker, self.facts, queue)

    def of_engine(self, queue: Queue) -> str:
        """See `MeshInterface`."""
        if queue.definition.name.startswith(ENDPOINT_PREFIX):
            return "the endpoint of a bridge"
        return f"where messages wait for queue {queue.header.stands_for!r} of another broker"

    def lanes(self, vpn: str) -> list[dict[str, Any]]:
        """See `MeshInterface`."""
        return stand_ins.shown(self._broker, self.facts, vpn)

    def why_waiting(self, queue: Queue) -> str | None:
        """See `MeshInterface`."""
        link, lane = self.bridges.links.get(queue.number), self.facts.lanes.get(queue.number)
        if link is not None:
            held = sorted({one.endpoint or one.reason for one in link.held.values()})
            return f"held by {', '.join(held[:10])}" if held else None
        if lane is None or not lane.why:
            return None
        return f"held by {queue.header.stands_for}: {lane.why}"
