"""What is admitted is stored: once, with a place in each queue that takes it (S1, S5, Q6).

Payloads go to the spool together, a record's or a span's; each queue gets their numbers, which
become rows at the end of the step (`message.enter`). The journal has one segment of them for each
queue and topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.bounds import within_calendar
from ...protocol.journal import Segment
from ..bridges.endpoint import wait_for_link
from ..rules.deferred import came_early
from ..rules.lifetime import expires_at
from ..storage import NEVER
from .incoming import Incoming, Span, time_of

if TYPE_CHECKING:
    from ...protocol.messages import PublishHeader
    from ..broker import Broker
    from ..queue import Queue
    from ..routing import Routes
    from ..rules.entering import Match


class Storing:
    """Of one step."""

    def __init__(self, broker: Broker, routes: Routes) -> None:
        self._broker, self._routes = broker, routes
        self._spooled: dict[tuple[int, str], Segment] = {}

    def store(
        self, vpn: str, header: PublishHeader, matches: list[Match], size: int, record: Incoming
    ) -> int:
        """Store one message; returns its id."""
        number = self._broker.spool.next_id()
        for one in matches:
            queue = one.queue
            if queue.early and came_early(self._broker, queue, number):
                self._broker.early.append((queue, queue.next_place()))
                queue.arrivals.leaving += 1
                queue.arrivals.leaving_bytes += size
                one.barrier = False  # nobody will have to wait for it
        return self.store_all(vpn, header, matches, [record.value], [size], record)

    def store_all(
        self, vpn: str, header: PublishHeader, matches: list[Match], payloads: list[bytes],
        sizes: list[int], record: Incoming, span: Span | None = None, origin: int = 0,
    ) -> int:  # fmt: skip
        """Store messages that follow each other in one record, or in a span of them; returns the
        first one's id. origin: the id that another broker gave to the one message."""
        topic, partition, offset, timestamp, key, _, _, text, item = record
        broker = self._broker
        n = len(payloads)
        timestamp = time_of(timestamp, broker.now)
        ttl_ends = NEVER if header.ttl_ms is None else within_calendar(timestamp + header.ttl_ms)
        at = header.deliver_at
        if header.delay_ms is not None:
            at = within_calendar(timestamp + header.delay_ms)
        due = NEVER if at is None or at <= broker.now else at
        number = broker.spool.stage(
            payloads,
            key,
            text.encode() if text else None,
            sizes,
            [timestamp] * n if span is None else span.times,
            ttl_ends,
            header.priority,
            header.dmq,
            matches[0].queue.header.vpn_number,
            [(m.queue.number, m.queue.next_place()) for m in matches],
            origin,
        )
        known = origin or number
        for one in matches:
            queue, lane, until = one.queue, one.lane, due
            if queue.number in broker.header.links:
                to = self._routes.target_of(vpn, header.to)
                lane, until = wait_for_link(broker, queue, to, due, n), NEVER
            queue.arrivals.add(
                number, sizes, one.priority, expires_at(queue.definition, broker.now, ttl_ends),
                until, one.barrier, lane,
            )  # fmt: skip
            segment = self._segment(vpn, queue, topic)
            segment.ids += range(known, known + n)
            segment.until += [until] * n  # type: ignore[operator]
            if span is None:
                segment.partitions += [partition] * n  # type: ignore[operator]
                segment.offsets += [offset] * n  # type: ignore[operator]
                segment.items += range(item, item + n)  # type: ignore[operator]
            else:
                segment.partitions += span.partitions  # type: ignore[operator]
                segment.offsets += span.offsets  # type: ignore[operator]
                segment.items += span.items  # type: ignore[operator]
        return number

    def _segment(self, vpn: str, queue: Queue, topic: str) -> Segment:
        """What the journal says was stored in this queue from this topic."""
        segment = self._spooled.get((queue.number, topic))
        if segment is None:
            segment = self._spooled[queue.number, topic] = Segment(
                "spooled", vpn, queue.definition.name, topic=topic, partitions=[], offsets=[],
                items=[], until=[],
            )  # fmt: skip
            self._broker.journal.segments.append(segment)
        return segment
