"""Records of captured topics that are put aside while a broker is removed (Q2, Q5).

What becomes of some records depends on whether that broker goes, and where it ends (`last_reading`,
which says which these are). They are taken up when it is gone or stays, as if they had been read
only then: that is always right, since each host reads at its own pace. What was put aside stays in
its order, and in front of what comes later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.messages import Records
from ..isolation import Refusals

if TYPE_CHECKING:
    from ..broker import Broker
    from ..phases.incoming import Incoming
    from ..queue import Queue

LOCAL = "LocalQueue"
ROWS = 1_000  # of a page
BYTES = 500_000
PAGES = 4  # that a step takes up


def put_aside(broker: Broker, queue: Queue, record: Incoming) -> None:
    """Keep a record for later."""
    header = queue.header
    if not header.unread:
        header.unread = [0, 1, 0]
        broker.header.unread.append(queue.number)
    _, after, size = header.unread
    rows = broker.values.read(_key(queue, after - 1)) or []
    if rows and (len(rows) >= ROWS or size >= BYTES):
        rows, size = [], 0
        header.unread[1] = after = after + 1
    header.unread[2] = size + len(record.value) + 100
    broker.values.write(_key(queue, after - 1), [*rows, list(record[:8])])


def has_ended(broker: Broker) -> bool:
    """Whether this broker is being removed, and takes no record of captured topics any more."""
    parting = broker.header.parting
    return parting is not None and parting.number == broker.header.number and parting.ended


def waits(broker: Broker, queue: Queue) -> bool:
    """Whether it is not known yet what becomes of what was put aside."""
    header = broker.header
    if queue.definition.type != LOCAL:
        return bool(queue.header.next_hosts)
    if queue.number in header.trails:
        return has_ended(broker)
    return header.parting is not None and header.parting.told


def take_up(broker: Broker, refused: Refusals) -> None:
    """Decide what can be decided by now, some in each step."""
    for number in list(broker.header.unread):
        queue = broker.queue(number)
        if queue is None or queue.header.deleted:
            broker.header.unread.remove(number)
        elif not waits(broker, queue):
            _take_up(broker, queue, refused)


def _take_up(broker: Broker, queue: Queue, refused: Refusals) -> None:
    from ..phases.admission import admit
    from ..phases.incoming import Incoming
    from .partitions import is_mine
    from .queue_moving import look

    header, only = queue.header, (broker.vpn_of(queue), queue.definition.name)
    at, after, _ = header.unread
    for page in range(at, min(at + PAGES, after)):
        rows = [Incoming(*row) for row in broker.values.read(_key(queue, page)) or ()]
        broker.values.write(_key(queue, page), None)
        header.unread[0] = page + 1
        mine = [row[:8] for row in rows if is_mine(broker, queue, row)]
        if mine:
            admit(broker, Records(*map(list, zip(*mine, strict=True))), refused, only)
    if header.unread[0] == after:
        header.unread = []
        broker.header.unread.remove(queue.number)
        look(broker, queue)  # it may have waited for that to leave
    else:
        broker.more_to_do = True


def drop(broker: Broker, queue: Queue) -> None:
    """The queue is gone."""
    if queue.header.unread:
        at, after, _ = queue.header.unread
        for page in range(at, after):
            broker.values.write(_key(queue, page), None)
        queue.header.unread = []
        broker.header.unread.remove(queue.number)


def _key(queue: Queue, page: int) -> str:
    return f"V/{queue.number}/{page}"
