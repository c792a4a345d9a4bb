"""Messages that came to a broker that does not have their queue, and that nobody answers for: of
plain Kafka producers, who write to any partition, and of clients in mode `non_persistent`. They are
taken in by the queue's broker as if they had come to it."""

from __future__ import annotations

from ...protocol.carrying import PassMessage
from ...protocol.messages import Records
from ..broker import Broker
from ..isolation import Refusals
from ..phases.admission import admit


def hear_message(broker: Broker, sender: int, said: PassMessage) -> None:
    """Take it in."""
    record = Records(
        [said.topic], [said.partition], [said.offset], [said.timestamp], [said.key], [said.value],
        [said.meta], [said.headers],
    )  # fmt: skip
    at = broker.at
    admit(broker, record, Refusals(), (said.vpn, said.queue) if said.queue else None)
    broker.at = at
