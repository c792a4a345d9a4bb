"""Receipts that wait until the Delta tables have the messages (`durability: delta`, S1, P3).

After each commit of the tables the engine sends a command that says which records they have. Until
then a receipt waits, first in, first out. Refusals are sent at once, and so are receipts of other
messages of the producer; meanwhile none of these covers earlier messages. The answer to a repeated
message waits for the repeated record: then the tables have everything before it in its partition.

Without such a command (in memory) there are no tables to wait for.
"""

from __future__ import annotations

from msgspec.structs import asdict, replace

from ...protocol.commands import Tables
from ...protocol.messages import PublishHeader
from ...protocol.outputs import Receipts
from ..queue.broker import Broker
from ..queue.broker_facts import HeldReceipt
from ..queue.producers import ProducerHistory

DELTA = "delta"


def refusal_of_tables(broker: Broker, header: PublishHeader) -> str:
    """Why a message that must reach the tables cannot; empty if it can."""
    tables = broker.header.tables
    if header.durability != DELTA or tables is None:
        return ""
    if not tables:
        return (
            "durability: 'delta' – needs the Delta tables, but lakequeue.tables_interval_s is 0: "
            "set it, or send without"
        )
    if len(broker.held) >= broker.limits.held_receipts:
        return "the Delta tables are too far behind: see the engine's log, and send again later"
    return ""


def answer(broker: Broker, producer: ProducerHistory) -> None:
    """Emit a producer's receipts of this step, or hold them until the tables have its messages."""
    needs = producer.needs
    if needs and (broker.header.tables is None or _are_in_tables(broker, needs)):
        producer.needs = {}
    for one in producer.close():
        if not producer.needs:
            broker.emit(one)
        elif not (producer.is_durable or one.repeated):  # a repetition covers what followed
            broker.emit(replace(one, up_to=0))
        else:
            _delay(broker, one, producer.needs)


def _delay(broker: Broker, receipt: Receipts, needs: dict[str, int]) -> None:
    """Hold a receipt until the tables have these records. Emit its refusals now."""
    if receipt.nacks:
        broker.emit(replace(receipt, up_to=0, runs=[], discarded=[], repeated=[]))
    if receipt.runs:
        fields = asdict(receipt)
        del fields["nacks"]  # they were sent
        broker.held.append(HeldReceipt(**fields, needs=dict(needs)))


def tables_have(broker: Broker, vpn: str, command: Tables) -> None:
    """Note which records the tables have, as the engine says."""
    if command.written is not None:
        broker.header.tables = command.written
    if command.stopped:
        broker.event("tables_stopped", vpn, why=command.stopped)
    elif command.stopped is not None:
        broker.event("tables_resumed", vpn)
    broker.header.in_tables |= command.up_to


def send_held_receipts(broker: Broker) -> None:
    """Emit the held receipts whose messages are in the tables, within the step's budget."""
    for _ in range(broker.limits.due_names):
        if not broker.held or not _are_in_tables(broker, broker.held[0].needs):
            return
        fields = asdict(broker.held.popleft())
        del fields["needs"]
        broker.emit(Receipts(**fields))
    broker.more_to_do = True


def _are_in_tables(broker: Broker, needs: dict[str, int]) -> bool:
    return all(broker.header.in_tables.get(name, 0) >= end for name, end in needs.items())
