"""Messages for queues that are on another broker, or on the way there.

A producer that counts is told (reason ``moved``) and sends to where the queue is: so it numbers its
messages where they are stored. What nobody answers for is passed on to the queue's broker.
"""

from __future__ import annotations

import msgspec

from ...protocol.carrying import PassMessage
from ...protocol.errors import Reason
from ...protocol.messages import PublishHeader, encode_publish_header
from ..broker import Broker
from ..mesh.known_places import moved, on_its_way
from ..mesh.saying import say
from ..producers import Answered, ProducerHistory
from ..queue import Queue
from .incoming import Incoming


def takes(
    broker: Broker, vpn: str, header: PublishHeader, seq: int, producer: Answered | None,
    record: Incoming,
) -> bool:  # fmt: skip
    """Whether the queue that a message names is on another broker; then all is done. A bridge ends
    at its broker."""
    there = moved(broker, vpn, header.to)
    if there is None or not _may_be_told(producer):
        return False
    if producer is not None and not _may_be_confirmed(broker, producer, record):
        _tell(producer, seq, header, there.hosts)
    else:
        _pass(broker, vpn, header, record, min(there.hosts.values()))
        _acknowledge(producer, seq)
    return True


def is_there(broker: Broker, vpn: str, header: PublishHeader, producer: Answered | None) -> bool:
    """Whether `takes` would take a message."""
    return moved(broker, vpn, header.to) is not None and _may_be_told(producer)


def _may_be_told(producer: Answered | None) -> bool:
    return producer is None or isinstance(producer, ProducerHistory)


def will_take(
    broker: Broker, vpn: str, header: PublishHeader, seq: int, producer: Answered | None,
    record: Incoming, queue: Queue,
) -> bool:  # fmt: skip
    """A queue that takes a message moves: who counts asks again until it is there; what nobody
    answers for goes behind its messages. False: it enters here."""
    if producer is not None and not _may_be_confirmed(broker, producer, record):
        _tell(producer, seq, header, on_its_way(broker, vpn, queue).hosts)
        return True
    if queue.header.leaving:
        _pass(broker, vpn, header, record, queue.header.leaving[0])
        _acknowledge(producer, seq)
        return True
    return False


def goes_along(
    broker: Broker, vpn: str, header: PublishHeader, record: Incoming, queue: Queue
) -> bool:
    """Whether a record of a plain producer goes where its queue does."""
    if not queue.header.leaving:
        return False
    _pass(broker, vpn, header, record, queue.header.leaving[0], queue.definition.name)
    return True


def _may_be_confirmed(broker: Broker, producer: Answered, record: Incoming) -> bool:
    """Whether a step that is lost may have stored it (R3): then its producer would not hear a nack,
    and it goes where its queue is, as what nobody answers for does. A bridge hears it, and has the
    message until it is taken, however long ago that was published."""
    return isinstance(producer, ProducerHistory) and record.timestamp <= broker.header.rebuilt


def _acknowledge(producer: Answered | None, seq: int) -> None:
    if producer is not None:
        producer.stored(seq, 0)


def stands_behind(
    broker: Broker, vpn: str, header: PublishHeader, seq: int, producer: ProducerHistory
) -> bool:
    """Whether a message was sent before its producer heard that an earlier one to the same
    destination was refused; then it is so too, and all is done."""
    if not producer.stands_behind_moved(header.to, header.after):
        return False
    there = moved(broker, vpn, header.to)
    own = {broker.header.name: broker.header.number}
    _tell(producer, seq, header, own if there is None else there.hosts)
    return True


def _tell(producer: Answered, seq: int, header: PublishHeader, hosts: dict[str, int]) -> None:
    where = msgspec.json.encode(hosts).decode()
    if isinstance(producer, ProducerHistory):
        producer.refused_as_moved(seq, header.to, where)
    else:
        producer.refused(seq, Reason.MOVED.value, header.to, where)


def _pass(
    broker: Broker, vpn: str, header: PublishHeader, record: Incoming, to: int, queue: str = ""
) -> None:
    meta = None
    if record.meta is not None:
        alone = msgspec.structs.replace(header, count=0, producer="", seq=0, after=0, start="")
        meta = encode_publish_header(alone)
    say(
        broker, to,
        PassMessage(
            vpn, record.topic, record.partition, record.offset, record.timestamp, record.key,
            record.value, meta, record.headers, queue,
        ),
    )  # fmt: skip
