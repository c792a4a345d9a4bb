"""Bridges of a broker of the earlier core, as the live core goes on with them (`carried_over`).

What waits for the far end keeps its place, and what is on its way its record and its number: the
far end's receipts for these come to the live core, which knows what they are about. So nothing is
sent twice that was taken, and nothing is forgotten.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..core.queue import header as facts
from ..core.queue.broker import Broker as LiveBroker
from ..core.rules.edits import WAY
from ..core.storage.row import LEASED, MOVING, Row
from ..mesh.bridges.bridge_facts import Arrival, Flight, HeldLane, Link
from ..mesh.bridges.bridged import Bridged
from ..mesh.bridges.endpoint import NUMBER, subscription_of
from ..state.bridges.link import Link as PagedLink
from ..state.bridges.link import load
from ..state.broker import Broker
from ..state.mesh.keepership import bridges_key
from ..state.queue import Queue
from ..state.rules.edits import BRIDGED


class BridgesOver:
    """The bridges of a broker that changes over."""

    def __init__(self, old: Broker, new: LiveBroker, names: list[str]) -> None:
        self._old = old
        bridged = Bridged.load(new)
        new.beyond = bridged
        self._facts = bridged.facts
        for vpn in sorted(old.header.vpns):
            if known := old.values.read(bridges_key(vpn)):
                self._facts.definitions[vpn] = dict(known)
        for key in names:
            if key.startswith("A/"):
                _, vpn, name = key.split("/", 2)
                found = msgspec.convert(old.values.read(key), Arrival)
                self._facts.arrivals.setdefault(vpn, {})[name] = found

    def begin(self, queue: Queue, header: facts.QueueHeader) -> Link | None:
        """The link of a queue that is carried over; None: it is no endpoint."""
        known = load(self._old, queue.number)
        if known is None:
            return None
        header.stands_for = header.definition.name
        header.subscriptions = [subscription_of(known.to_name)]
        header.next_subscription = NUMBER + 1
        link = self._facts.links[queue.number] = _link(known, queue.number)
        for number, (at, _, size) in known.flights.items():
            lanes = []
            for lane, places in self._old.values.read(f"L/{queue.number}/{number}"):
                lanes.append((lane, [_id_at(queue, place) for place in places]))
            link.flights[number] = Flight(at, size, lanes)
        return link

    def rows(self, link: Link, header: facts.QueueHeader, rows: list[Row]) -> None:
        """Rows of its endpoint."""
        for row in rows:
            assert row.extras is not None
            to, due = row.extras.pop(BRIDGED)
            row.extras = {**row.extras, WAY: {"to": to, "due": due}}
            row.deliveries = row.number = 0  # what a bridge sends is no attempt
            link.waiting[row.lane] = link.waiting.get(row.lane, 0) + 1
            if row.state == LEASED:
                row.state, row.holder, row.expires = MOVING, NUMBER, row.ttl_ends
                header.subscriptions[0].held += 1


def _id_at(queue: Queue, place: int) -> int:
    """The message at a place; 0 where it was purged on its way."""
    page = queue.page(place >> queue.bits)
    return 0 if page is None else int(page.id[place & queue.mask])


def _link(known: PagedLink, number: int) -> Link:
    shared: dict[str, Any] = {
        name: getattr(known, name) for name in Link.__struct_fields__
        if name in PagedLink.__struct_fields__ and name not in ("queue", "flights", "held")
    }  # fmt: skip
    held = {
        lane: HeldLane(*(getattr(one, name) for name in HeldLane.__struct_fields__))
        for lane, one in known.held.items()
    }
    return Link(queue=number, held=held, wanted=True, flights={}, **shared)
