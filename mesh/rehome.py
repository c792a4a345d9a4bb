"""Adds brokers to a home, removes brokers, and moves queues, while the home is at rest (M4).

pages of all brokers ─▶ live objects ─▶ queues move ─▶ marks: the new pages

Pure: the old pages are not changed, and the same pages give the same new ones, byte for byte. At
rest nothing is in transit between brokers (`why_not_at_rest`), so no broker needs an answer.

`home_change` says which brokers host which queue afterwards. A removed broker's part of a
distributed queue goes to the *heir*, the first broker that stays, if that is a host, else to the
first host. The heir then reads the removed broker's partitions and answers its producers under its
number, so its clients can go on.

Messages in a stand-in go to the queue's new host. Each queue continues with captured topics where
its reader stopped (`reading_positions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from ..protocol.journal import JournalSegment
from ..state.limits import Limits
from ..state.phases.alerts import watch
from ..state.queue.broker import Broker
from ..state.queue.broker_facts import Home
from ..state.queue.queue import Queue
from ..state.storage.store import DictStore
from .bridges.bridge_facts import BridgeFacts, check_no_bridge
from .credit import forget_all
from .directory import carry_out
from .facts import Peer, entry_of
from .home_change import (
    HomeChange,
    NotAtRest,
    check_moves,
    directory_of,
    facts_of,
    new_directory,
)
from .mesh import Mesh
from .move_at_rest import Shared, leave_behind, move_queue
from .reading_positions import Offsets, Partition, of_clients, share, what_was_had
from .stand_ins import stand_in, turn


class Resting(msgspec.Struct):
    """A broker at rest. pages: of its last mark; offsets: where it continues to read; captures: the
    topics and expressions that its queues capture; ids: of the topics, as far as known; journal:
    the events of the change, for its next step."""

    name: str
    number: int
    pages: dict[str, bytes] = {}
    offsets: Offsets = {}
    ids: dict[Partition, str] = {}
    captures: list[str] = []
    journal: list[JournalSegment] = []


class Rehomed(msgspec.Struct):
    """The changed home. moved: queues with one host that have another one now: VPN, queue, broker;
    last: the final journal segments of removed brokers."""

    brokers: list[Resting]
    moved: list[tuple[str, str, str]] = []
    last: dict[str, list[JournalSegment]] = {}


def rehome(
    resting: Iterable[Resting], change: HomeChange, epoch: int, secret: bytes, limits: Limits
) -> Rehomed:
    """Change the home. Raises NotAtRest, or ConfigError for an impossible change."""
    return _Rehoming(list(resting), change, epoch, secret, limits).do()


def why_not_at_rest(brokers: Mapping[int, Broker], leaving: Iterable[int]) -> str:
    """Why the home is not at rest; empty if it is."""
    facts = {number: facts_of(broker) for number, broker in brokers.items()}
    for number, own in facts.items():
        name = brokers[number].header.name
        for other, peer in own.peers.items():
            heard = facts[other].peers.get(number) if other in facts else None
            if other in facts and peer.said > (0 if heard is None else heard.heard):
                return f"{peer.name!r} has yet to read messages of {name!r}"
        if own.moves or own.leaving or own.arriving:
            return f"a queue is moving, says {name!r}"
        if own.waiting:
            return f"{name!r} waits for other brokers"
        for queue in brokers[number].queues.values():
            if any(one.broker in facts and one.held for one in queue.header.subscriptions):
                return f"messages of queue {queue.definition.name!r} are in transit"
    for number in leaving:
        busy = [*brokers[number].header.pending]
        busy += [n for n, queue in brokers[number].queues.items() if queue.header.deleted]
        if busy:
            name = brokers[number].queues[busy[0]].definition.name
            return f"a command for queue {name!r} is being carried out"
    return ""


class _Rehoming:
    def __init__(
        self, resting: list[Resting], change: HomeChange, epoch: int, secret: bytes, limits: Limits
    ) -> None:
        self._change, self._limits = change, limits
        self._given = {one.number: one for one in resting}
        self._brokers: dict[int, Broker] = {}  # before the change
        for one in sorted(resting, key=lambda one: one.number):
            self._brokers[one.number] = self._load(one.name, one.number, one.pages, epoch, secret)
        self._edition = 1 + max(_edition_of(one) for one in self._brokers.values())
        staying = set(change.brokers.values())
        self._removed = [number for number in self._brokers if number not in staying]
        self._added = sorted(staying - self._brokers.keys())
        self._check()
        self._now = max(broker.header.time for broker in self._brokers.values())
        for broker in self._brokers.values():  # the change is a step of each broker, at one time
            broker.header.step += 1
            broker.begin(self._now)
        offsets = {number: one.offsets for number, one in self._given.items()}
        self._had = what_was_had(self._brokers, offsets)
        self._before = directory_of(self._brokers)
        check_moves(self._brokers, self._before, change)
        self._entries = new_directory(self._before, change)
        self._new: dict[int, Broker] = {}
        for name, number in sorted(change.brokers.items(), key=lambda one: one[1]):
            known = self._brokers.get(number)
            self._new[number] = known or self._load(name, number, {}, epoch, secret)
        self._heir = self._new[min(self._new)]
        self._shared: Shared = {}
        self._moved: list[tuple[str, str, str]] = []

    def _load(
        self, name: str, number: int, pages: dict[str, bytes], epoch: int, secret: bytes
    ) -> Broker:
        home = Home(name, number, epoch, secret)
        broker = Broker.load(DictStore(pages), home, self._limits)
        broker.mesh = Mesh.load(broker)
        return broker

    def _check(self) -> None:
        for number in self._removed:
            check_no_bridge(self._brokers[number])
        why = why_not_at_rest(self._brokers, self._removed)
        if why:
            raise NotAtRest(why)

    def do(self) -> Rehomed:
        """Make the change; returns the new home."""
        for broker in self._new.values():
            if broker.header.number in self._added:
                self._begin(broker)
        for broker in [*self._brokers.values(), *self._new.values()]:
            forget_all(broker, facts_of(broker))
        for broker in self._new.values():
            self._know(broker)
        for number in self._removed:
            self._empty(self._brokers[number])
        for vpn, name in self._change.moves:
            self._move(vpn, name)
        for broker in self._new.values():
            self._host(broker)
        for number in self._removed:
            self._redirect(self._brokers[number], self._heir)
        for broker in self._new.values():
            self._redirect(broker, broker)
        for (_, number, _), (row, vpn_number) in self._shared.items():
            self._new[number].spool.release([row], vpn_number)
        self._note_moved()
        for number in self._removed:
            self._leave_rest(self._brokers[number])
        return Rehomed(
            [self._done(broker) for broker in self._new.values()], self._moved,
            {self._given[n].name: self._brokers[n].journal.segments for n in self._removed},
        )  # fmt: skip

    def _keeper(self) -> Broker:
        return self._brokers[min(self._brokers)]

    def _begin(self, broker: Broker) -> None:
        """Give a new broker the settings of the others."""
        known, header = self._keeper().header, broker.header
        broker.begin(self._now)
        header.time, header.system, header.auth = self._now, known.system, known.auth
        header.vpn_limits, header.clients = dict(known.vpn_limits), dict(known.clients)
        header.tables, header.rebuilt = known.tables, known.rebuilt
        for vpn in known.vpns:
            broker.vpn_number(vpn)

    def _know(self, broker: Broker) -> None:
        """Give a broker the new brokers and the new directory."""
        facts, own = facts_of(broker), broker.header.number
        facts.brokers, facts.groups = dict(self._change.brokers), dict(self._change.groups)
        facts.peers = {
            number: _at_rest(facts.peers.get(number) or Peer(name))
            for name, number in self._change.brokers.items()
            if number != own or own in facts.peers
        }  # fmt: skip
        facts.removed = sorted({*facts.removed, *self._removed})
        facts.edition = self._edition
        facts.entries, facts.directory_changed = {}, True
        for (vpn, name), entry in self._entries.items():
            facts.entries.setdefault(vpn, {})[name] = entry
            if entry.bridge is not None:
                assert isinstance(broker.mesh, Mesh)
                known = broker.mesh.bridges.definitions.setdefault(vpn, {})
                known[entry.bridge["name"]] = entry.bridge
            queue = broker.find(vpn, name)
            if queue is not None and len(entry.hosts) > 1:  # send its consumers' room to the hosts
                queue.wanted = True
                broker.touch(queue)

    def _note_moved(self) -> None:
        names = {number: name for name, number in self._change.brokers.items()}
        for (vpn, name), entry in self._entries.items():
            before = self._before[vpn, name].hosts
            if before != entry.hosts and len(before) == len(entry.hosts) == 1:
                self._moved.append((vpn, name, names[entry.hosts[0]]))

    def _host(self, broker: Broker) -> None:
        """Make the queues that this broker hosts now and that no other broker moved here."""
        facts = facts_of(broker)
        for (vpn, name), entry in self._entries.items():
            found = broker.find(vpn, name)
            if found is None:
                if broker.header.number in entry.hosts and entry.bridge is None:
                    carry_out(broker, facts, BridgeFacts(), vpn, name)
            elif found.header.definition != entry.definition:
                found.header.definition = entry.definition
                broker.touch(found)

    # ------------------------------------------------------------ queues

    def _empty(self, leaving: Broker) -> None:
        """Move all queues of a removed broker to their new hosts."""
        for queue in [q for _, q in sorted(leaving.queues.items()) if not q.header.stands_for]:
            self._hand_over(leaving, queue)

    def _move(self, vpn: str, name: str) -> None:
        """Move a queue between brokers that stay."""
        (host,) = self._entries[vpn, name].hosts
        for source in self._new.values():
            queue = source.find(vpn, name)
            if queue is not None and source.header.number != host:
                self._hand_over(source, queue)
                leave_behind(source, queue)

    def _hand_over(self, source: Broker, queue: Queue) -> None:
        vpn, name = queue.definition.vpn, queue.definition.name
        hosts = self._entries[vpn, name].hosts
        own = self._heir.header.number
        target = self._new[own if own in hosts else hosts[0]]
        move_queue(source, queue, target, self._shared, target.find(vpn, name))

    def _redirect(self, holder: Broker, to: Broker) -> None:
        """Redirect the stand-ins of a broker to the queues' new hosts. to: the broker that has the
        stand-ins from now on. If it hosts the queue, it hands the messages over to itself."""
        known = facts_of(to)
        for number in sorted(facts_of(holder).lanes):
            queue = holder.queues[number]
            vpn, name = queue.definition.vpn, queue.header.stands_for
            entry = entry_of(known, vpn, name)
            assert entry is not None, "a deleted queue has no stand-ins"
            if holder is not to:
                for one in list(queue.header.subscriptions):
                    queue.consumers.remove(one)
                if queue.header.depth:
                    move_queue(holder, queue, to, self._shared, stand_in(to, known, vpn, name))
            elif queue.header.subscriptions[0].broker not in entry.hosts:
                turn(to, known, vpn, name)

    # ------------------------------------------------------------ state of clients

    def _leave_rest(self, leaving: Broker) -> None:
        """Give the heir a removed broker's facts about producers, clients, receipts and events."""
        heir, old, header = self._heir, leaving.header, self._heir.header
        header.speaks_for = sorted({*header.speaks_for, old.number, *old.speaks_for})
        for (where, name), producer in sorted(leaving.producers.items()):
            key = where if "@" in where else f"{where}@{old.number}"
            heir.producers[key, name] = producer
            heir.watch("p", (key, name), producer.forgotten_at)
            heir.changed("p", (key, name))
        for name, sessions in old.heard.items():
            header.heard[name if "@" in name else f"{name}@{old.number}"] = sessions
        for vpn, counts in old.refused.items():
            own = header.refused.setdefault(vpn, {})
            for why, n in counts.items():
                own[why] = own.get(why, 0) + n
        heir.held.extend(leaving.held)
        for at, offset in old.in_tables.items():
            header.in_tables[at] = max(offset, header.in_tables.get(at, 0))
        events = sorted([*heir.recent, *leaving.recent], key=lambda event: event[3])
        heir.recent.clear()
        heir.recent.extend(events)
        header.events += len(leaving.recent)
        heir._new_events = len(heir.recent)

    # ------------------------------------------------------------ the end

    def _done(self, broker: Broker) -> Resting:
        header = broker.header
        own, others = self._given.get(header.number), self._given.values()
        read = (one.offsets for one in others)
        at = of_clients(read, header.number) if own is None else own.offsets
        if broker is self._heir:
            at = of_clients(self._given[n].offsets for n in self._removed) | at
        broker.routes.clear()  # queues have moved without them
        offsets = share(broker, at, self._had)
        watch(broker, broker.in_order())
        broker.end()
        journal = broker.journal.segments
        for segment in journal:
            segment.step, segment.time = header.step, broker.now
        broker.mark()
        assert isinstance(broker.store, DictStore)
        known = [one for one in self._given.values() if one.number != header.number]
        known += [one for one in self._given.values() if one.number == header.number]  # it wins
        ids = {at: one.ids[at] for one in known for at in offsets if at in one.ids}
        captures = dict.fromkeys([] if own is None else own.captures)
        captures |= dict.fromkeys(
            queue.definition.underlying_topic for (_, _), queue in sorted(broker.names.items())
            if not queue.header.stands_for
        )  # fmt: skip
        pages = dict(sorted(broker.store.pages.items()))
        return Resting(header.name, header.number, pages, offsets, ids, list(captures), journal)


def _at_rest(peer: Peer) -> Peer:
    """Another broker, which has received everything."""
    return Peer(peer.name, peer.said, peer.heard, told=peer.heard)


def _edition_of(broker: Broker) -> int:
    """The last edition of the directory. While a broker is alone, its entries for clients are
    numbered by its events, and clients ignore lower numbers."""
    facts = facts_of(broker)
    return facts.edition or broker.header.events
