"""What is admitted after brokers have agreed, and what they look at before (S5).

Who is offered a message looks at it as at any publish, but stores nothing; who has offered it looks
again when a queue was on its way. The verdict stores it without another look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.messages import PublishHeader
from ...protocol.offering import Offer
from ..bridges.bases import is_based_at
from ..mesh.topic_routes import takes_offered
from ..producers import Answered
from ..rules.entering import Match
from .admission import Admission
from .incoming import Incoming
from .judging import Judged, judge, no_files
from .refusing import refuse

if TYPE_CHECKING:
    from ..queue import Queue


class OfferAdmission(Admission):
    """An `Admission` of messages that brokers agree on."""

    def judge_offered(
        self, offer: Offer, at: int, header: PublishHeader, record: Incoming, entry: int
    ) -> Judged | None:
        """What the queues here make of a message that another broker took in, for a topic of its
        offer; None: they do not want it. What refuses it is counted."""
        return self.judge_at(offer.vpn, self.taking(offer, at, entry), header, record)

    def judge_at(
        self, vpn: str, queues: list[Queue], header: PublishHeader, record: Incoming
    ) -> Judged | None:
        """As `judge_offered`, of these queues."""
        matches = self._matches(queues, header, record)
        if not matches:
            return None
        if self._file_room is not None and self._file_room <= 0:
            judged = no_files(matches)
        else:
            judged = judge(self._broker, vpn, header, matches, record, self._told)
        if judged.refused is not None:
            refuse(self._broker, vpn, 0, None, *judged.refused, record)
        elif judged.kept and self._file_room is not None:
            self._file_room -= judged.size
        return judged

    def taking(self, offer: Offer, at: int, entry: int) -> list[Queue]:
        """The queues here that take a topic of an offer from the broker that took it in: not those
        that get it over a bridge."""
        found = self._routes.of_topic(offer.vpn, offer.topics[at])
        led = offer.led[at] if offer.led else ()
        out = offer.out[at] if offer.out else {}
        return [
            queue for queue in found
            if takes_offered(self._broker, queue, entry, out)
            and not is_based_at(self._broker, queue, led)
        ]  # fmt: skip

    def here(self, vpn: str, topic: str) -> list[Queue]:
        """The queues here that take a topic, and endpoints of bridges."""
        return self._routes.of_topic(vpn, topic)

    def nowhere(
        self, vpn: str, header: PublishHeader, seq: int, producer: Answered | None,
        record: Incoming,
    ) -> None:  # fmt: skip
        """No broker has a queue that takes a message that was offered (S6)."""
        self._nowhere(vpn, header, seq, producer, record)

    def store(
        self, vpn: str, header: PublishHeader, matches: list[Match], size: int, record: Incoming
    ) -> int:
        """Store a message that this broker took in; returns its id."""
        return self._storing.store(vpn, header, matches, size, record)

    def store_as(
        self, vpn: str, header: PublishHeader, matches: list[Match], size: int, record: Incoming,
        origin: int,
    ) -> None:  # fmt: skip
        """Store a message that another broker took in, under its id."""
        self._storing.store_all(vpn, header, matches, [record.value], [size], record, origin=origin)
