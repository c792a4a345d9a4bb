"""Receipts that wait until the Delta tables have the messages (`durability: delta`, S1, P3).

Which records the tables have is an input of a later step: the engine says it with a command, behind
each commit of the tables. Until then a receipt waits, first in, first out. A refusal is told at
once. What a producer sends again is a record of its own, and its answer waits for that
one: what stands before it in its partition is in the tables then, too.

Where nobody ever spoke of tables (in memory), there are none to wait for.
"""

from __future__ import annotations

from msgspec.structs import replace

from ...protocol.commands import Tables
from ...protocol.messages import PublishHeader
from ...protocol.outputs import Receipts
from ..queue.broker import Broker
from ..queue.broker_facts import HeldReceipt
from ..queue.producers import ProducerHistory

DELTA = "delta"


def refusal_of_tables(broker: Broker, header: PublishHeader) -> str:
    """Why a message that wants to be in the tables cannot be; empty where it can."""
    tables = broker.header.tables
    if header.durability != DELTA or tables is None:
        return ""
    if not tables:
        return "durability 'delta' needs the Delta tables: lakequeue.tables_interval_s is 0"
    if len(broker.held) >= broker.limits.held_receipts:
        return "the Delta tables are too far behind: see the engine's log, and send it again later"
    return ""


def answer(broker: Broker, producer: ProducerHistory) -> None:
    """Say what became of a producer's messages of this step: what is to be in the tables first is
    said later."""
    said = broker.header.tables is None or _are_in_tables(broker, producer.needs)
    for one in producer.close():
        if said:
            broker.emit(one)
            continue
        if one.nacks:
            broker.emit(replace(one, up_to=0, runs=[], discarded=[], repeated=[]))
        if one.runs:
            broker.held.append(
                HeldReceipt(
                    one.vpn, one.producer, one.up_to, one.partition, one.runs, one.discarded,
                    one.broker, one.repeated, one.start, one.base, producer.needs,
                )
            )  # fmt: skip


def tables_have(broker: Broker, vpn: str, command: Tables) -> None:
    """The engine says which records the tables have by now."""
    if command.written is not None:
        broker.header.tables = command.written
    if command.stopped:
        broker.event("tables_stopped", vpn, why=command.stopped)
    elif command.stopped is not None:
        broker.event("tables_resumed", vpn)
    broker.header.in_tables |= command.up_to


def send_held_receipts(broker: Broker) -> None:
    """Say what has waited for the tables, as far as they are and the step's budget allows."""
    for _ in range(broker.limits.due_names):
        if not broker.held or not _are_in_tables(broker, broker.held[0].needs):
            return
        one = broker.held.popleft()
        broker.emit(
            Receipts(
                one.vpn, one.producer, one.up_to, one.partition, one.runs, [], one.discarded,
                one.broker, one.repeated, one.start, one.base,
            )
        )  # fmt: skip
    broker.more_to_do = True


def _are_in_tables(broker: Broker, needs: dict[str, int]) -> bool:
    return all(broker.header.in_tables.get(place, 0) >= end for place, end in needs.items())
