"""Receipts that wait until the Delta tables have the messages (`durability: delta`, S1, P3).

    messages ─▶ stored ─▶ receipt into the row of those that wait ─▶ the tables have them ─▶ said

Which records the tables have is an input of a later step: the engine says it with a command, behind
each commit of the tables. Until then a receipt stands in a row, first in, first out; what a step
adds or takes away is a page of it, so nobody else pays for a long row. A message that is refused is
told at once. What a producer sends again is a record of its own, and its answer waits for that one:
what stands before it in its partition is in the tables then, too.

Where nobody ever spoke of tables (in memory), there are none to wait for.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ..protocol.commands import Tables
from ..protocol.messages import PublishHeader
from ..protocol.outputs import Receipts
from .broker import Broker
from .producers import ProducerHistory

DELTA = "delta"
PER_PAGE = 50
_MARKS = "H"


def refusal_of_tables(broker: Broker, header: PublishHeader) -> str:
    """Why a message that wants to be in the tables cannot be; empty where it can."""
    known = broker.header
    if header.durability != DELTA or known.tables is None:
        return ""
    if not known.tables:
        return "durability 'delta' needs the Delta tables: lakequeue.tables_interval_s is 0"
    if known.held_next - known.held_first >= broker.limits.held_receipts:
        return "the Delta tables are too far behind: see the engine's log, and send it again later"
    return ""


def answer(broker: Broker, producer: ProducerHistory) -> None:
    """Say what became of a producer's messages of this step: what is to be in the tables first is
    said later."""
    receipts = producer.close(broker)
    marks = broker.values.read(_MARKS) or {} if producer.needs else {}
    reached = broker.header.tables is None or _reached(producer.needs, marks)
    for receipt in receipts:
        if reached:
            broker.emit(receipt)
            continue
        if receipt.nacks:
            broker.emit(replace(receipt, up_to=0, runs=[], discarded=[], repeated=[]))
        if receipt.runs:
            _hold(broker, receipt, producer.needs)


def tables_have(broker: Broker, vpn: str, command: Tables) -> None:
    """The engine says which records the tables have by now."""
    if command.written is not None:
        broker.header.tables = command.written
    if command.stopped:
        broker.event("tables_stopped", vpn, why=command.stopped)
    elif command.stopped is not None:
        broker.event("tables_resumed", vpn)
    if command.up_to:
        broker.values.write(_MARKS, {**(broker.values.read(_MARKS) or {}), **command.up_to})
        broker.header.held_due = broker.header.held_first < broker.header.held_next


def say_held(broker: Broker) -> None:
    """Say what has waited for the tables, as far as they are and the step's budget allows."""
    header = broker.header
    if not header.held_due:
        return
    marks = broker.values.read(_MARKS) or {}
    for _ in range(broker.limits.due_names):
        header.held_due = header.held_first < header.held_next
        if not header.held_due:
            return
        entry = broker.values.read(f"H/{header.held_first // PER_PAGE}")[
            header.held_first % PER_PAGE
        ]
        header.held_due = _reached(entry[-1], marks)
        if not header.held_due:
            return
        vpn, name, up_to, partition, runs, discarded, *rest, _needs = entry
        defaults: list[Any] = [header.number, "", 0, []]
        number, start, base, repeated = rest + defaults[len(rest) :]
        gone = [tuple(one) for one in discarded]
        broker.emit(
            Receipts(vpn, name, up_to, partition, runs, [], gone, number, repeated, start, base)
        )
        header.held_first += 1
        if header.held_first % PER_PAGE == 0:
            broker.values.write(f"H/{header.held_first // PER_PAGE - 1}", None)
    broker.more_to_do = True


def _hold(broker: Broker, receipt: Receipts, needs: dict[str, int]) -> None:
    header = broker.header
    key = f"H/{header.held_next // PER_PAGE}"
    entry: list[Any] = [
        receipt.vpn, receipt.producer, receipt.up_to, receipt.partition,
        [list(run) for run in receipt.runs], [list(one) for one in receipt.discarded], needs,
    ]  # fmt: skip
    if receipt.start or receipt.repeated:
        entry[-1:-1] = [receipt.broker, receipt.start, receipt.base, receipt.repeated]
    elif receipt.broker != header.number:  # it speaks for one that was removed
        entry.insert(-1, receipt.broker)
    broker.values.write(key, [*(broker.values.read(key) or []), entry])
    header.held_next += 1


def _reached(needs: dict[str, int], marks: dict[str, int]) -> bool:
    return all(marks.get(place, 0) >= end for place, end in needs.items())
