"""Converts the bridges of a broker of state format 7.

Waiting messages keep their positions. Messages in transit keep their record and its number, so the
far end's receipts still match them. No accepted message is sent twice, and none is lost.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..mesh.bridges.bridge_facts import Arrival, Flight, Link
from ..mesh.bridges.endpoint import NUMBER, subscription_of_link
from ..mesh.mesh import Mesh
from ..state.queue import header as facts
from ..state.queue.broker import Broker
from ..state.rules.edits import TRANSIT
from ..state.storage.row import LEASED, MOVING, Row
from .pages import EarlierPages

_TO = "bridge"  # in a row's extras: a message's destination and delivery time


class CarriedBridges:
    """The bridges of a broker that is converted."""

    def __init__(self, old: EarlierPages, new: Broker) -> None:
        self._old = old
        self._links: dict[int, str] = old.facts.get("links", {})
        bridged = Mesh.load(new)
        new.mesh = bridged
        self._facts = bridged.bridges
        for vpn in sorted(new.header.vpns):
            if known := old.read(f"K/{vpn}"):
                self._facts.definitions[vpn] = known
        for key in old.under("A/"):
            vpn, name = key.split("/", 1)
            found = msgspec.convert(old.read(f"A/{key}"), Arrival)
            self._facts.arrivals.setdefault(vpn, {})[name] = found

    def begin(self, header: facts.QueueHeader) -> Link | None:
        """The link of a converted queue; None if it is not an endpoint."""
        number = header.number
        if number not in self._links:
            return None
        known: dict[str, Any] = self._old.read(f"L/{number}")
        flights = known.pop("flights", {})
        link = msgspec.convert({**known, "queue": number, "wanted": True}, Link)
        header.stands_for = header.definition.name
        header.subscriptions = [subscription_of_link(link.to_name)]
        header.next_subscription = NUMBER + 1
        for flight, (at, _, size) in flights.items():
            lanes = [
                (lane, [self._old.id_at(number, place) for place in places])
                for lane, places in self._old.read(f"L/{number}/{flight}")
            ]
            link.flights[flight] = Flight(at, size, lanes)
        self._facts.links[number] = link
        return link

    def rows(self, link: Link, header: facts.QueueHeader, rows: list[Row]) -> None:
        """Convert rows of its endpoint."""
        for row in rows:
            assert row.extras is not None
            to, due = row.extras.pop(_TO)
            row.extras = {**row.extras, TRANSIT: {"to": to, "due": due}}
            row.deliveries = row.number = 0  # sending over a bridge does not count as an attempt
            link.waiting[row.lane] = link.waiting.get(row.lane, 0) + 1
            if row.state == LEASED:
                row.state, row.holder, row.expires = MOVING, NUMBER, row.ttl_ends
                header.subscriptions[0].held += 1
