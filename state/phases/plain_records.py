"""Records of plain Kafka producers: which queues here take them (Q2, R2, Q5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.messages import PublishHeader
from ..bridges import trails
from ..bridges.bases import may_be_left, read_here
from ..mesh.partitions import takes
from ..mesh.positions import note
from ..mesh.unread import put_aside
from ..rules.recovery_points import recovers
from . import elsewhere
from .incoming import Incoming, time_of
from .refusing import refuse

if TYPE_CHECKING:
    from ..broker import Broker
    from ..queue import Queue
    from ..routing import Routes
    from .judging import Judged


def captured(
    broker: Broker, routes: Routes, record: Incoming, only: tuple[str, str] | None
) -> list[tuple[str, list[Queue]]]:
    """Per VPN the queues that take a record here (Q2): of those that several brokers host, another
    one may take it. only: the VPN and queue for which it was kept, or sent by another broker."""
    if only is not None:
        queue = broker.find(*only)  # whatever is known here of topics: it was decided already
        return [] if queue is None else [(only[0], [queue])]
    found = routes.of_record(record.topic)
    note(broker, record)
    if not broker.header.peers and all(_was_alone(q) for _, queues in found for q in queues):
        return found
    here = ((vpn, read_here(broker, _decided(broker, queues, record))) for vpn, queues in found)
    mine = ((vpn, [q for q in queues if takes(broker, q, record)]) for vpn, queues in here)
    return [(vpn, queues) for vpn, queues in mine if queues]


def _was_alone(queue: Queue) -> bool:
    """Whether no other broker ever read for a queue."""
    header = queue.header
    return len(header.shares) < 2 and not (header.resumes or header.unread)


def _decided(broker: Broker, queues: list[Queue], record: Incoming) -> list[Queue]:
    """Without those for which it is put aside."""
    aside = [queue for queue in queues if may_be_left(broker, queue)]
    for queue in aside:
        put_aside(broker, queue, record)
    return [queue for queue in queues if queue not in aside] if aside else queues


def entered(
    broker: Broker, vpn: str, header: PublishHeader, record: Incoming, queues: list[Queue]
) -> list[Queue]:
    """Of these, the queues that it enters now: but for what is before their recovery points, and
    but for one that is about to leave, which takes it where it goes."""
    stay = []
    for queue in queues:
        if queue.number in broker.header.trails:
            trails.reads(broker, queue)
        elif not queue.header.plain:
            trails.base_reads(broker, vpn, queue)
        queue.header.plain = True
        at = time_of(record.timestamp, broker.now)
        if not recovers(queue, at, broker.spool.header.next_counter):
            continue
        if not elsewhere.goes_along(broker, vpn, header, record, queue):
            stay.append(queue)
    return stay


def turn_away(broker: Broker, vpn: str, judged: Judged, record: Incoming) -> None:
    """Whoever wrote the record cannot be told that a queue refuses it, so the others keep it (S5).
    Each queue that does not counts it; an event tells of the first of a row."""
    for queue, reason in judged.refusals:
        refuse(broker, vpn, 0, None, queue, reason, record)
    for queue, reason in judged.refusals + judged.discards:
        if not queue.header.refuses_plain:
            queue.header.refuses_plain = True
            broker.event(
                "plain_record_refused", vpn, queue.definition.name, topic=record.topic,
                reason=reason.value,
            )  # fmt: skip
    for one in judged.kept:
        one.queue.header.refuses_plain = False
    judged.refusals.clear()
