"""Commands that change messages take their turns, queue by queue, over as many steps as they need.

What an ack, a purge or a redrive has to do may be more than a step's budget. Then it goes on in the
next step where it stopped, and so that a queue's commands stay in the order of their log (C5: a
cancel never overtakes the acks before it), every later one of the same queue waits behind it. All
queues with such work take turns with an equal share of the budget, so one queue's purge of a
million holds up nobody else's acks. What means messages by the million, in *bulk*, has a small
budget of its own: a step with a part of it is hardly longer than others, and the acks in it have
theirs. What waits is bounded; beyond that a command is refused.

A handler does what its budget allows, from ``task.cursor`` on, and says whether it is done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...protocol import commands as c
from ...protocol.errors import LakequeueError
from ..limits import Budget
from ..queue.broker import Broker
from ..queue.header import Task
from ..queue.queue import Queue
from .answers import answer, refuse

Handler = Callable[[Broker, Queue, Task, Any, Budget], bool]
IN_TURN: dict[type, Handler] = {}  # filled by the table
_BULK = frozenset({c.Purge, c.Move, c.Edit, c.Redrive, c.Delete, c.MoveQueue})


def begin(
    broker: Broker, vpn: str, queue: Queue, command: Any, why: str = "", bounded: bool = True
) -> None:
    """Carry a command out, or as much of it as there is budget for. Raises what is wrong with it,
    and LakequeueError where too many wait before it. bounded: False for what the engine itself has
    to do, and cannot be told later."""
    waiting = queue.header.tasks
    if bounded and len(waiting) >= broker.limits.pending_commands:
        raise LakequeueError(
            f"queue {queue.definition.name!r}: {len(waiting)} commands wait for their turn, at "
            f"most {broker.limits.pending_commands} may: try again later"
        )
    _announce(queue, command, why)
    task = Task(vpn, b"", why=why)
    if not waiting:
        budget = broker.bulk_budget if _is_bulk(command) else broker.command_budget
        if not budget.spent and _advance(broker, queue, task, command, budget):
            return
    task.command = c.encode_command(command)
    waiting.append(task)
    broker.touch(queue)
    broker.header.pending.setdefault(queue.number, _is_bulk(command))


def _announce(queue: Queue, command: Any, why: str) -> None:
    """A subscription that ends gets nothing more, however long its turn is away."""
    if isinstance(command, c.Unsubscribe):
        subscription = queue.subscription(command.subscription)
        if subscription is not None:
            subscription.ending = why or "closed"


def _advance(broker: Broker, queue: Queue, task: Task, command: Any, budget: Budget) -> bool:
    """Go on with one command; whether it is done, and answered."""
    if not IN_TURN[type(command)](broker, queue, task, command, budget):
        return False
    answer(broker, command, task.result)
    return True


def _is_bulk(command: Any) -> bool:
    """Whether a command means messages without naming them."""
    return type(command) in _BULK or getattr(command, "where", None) is not None


def go_on(broker: Broker) -> None:
    """What earlier commands have left to do, each queue with an equal share of the budgets."""
    pending = broker.header.pending
    for number, is_bulk in list(pending.items()):
        if (broker.bulk_budget if is_bulk else broker.command_budget).spent:
            continue  # it goes on in the next step, before those that had their turn in this one
        n = len(pending)
        bulk, others = broker.bulk_budget.share(n), broker.command_budget.share(n)
        before = bulk.rows, bulk.bytes, others.rows
        queue = broker.queue(number)
        del pending[number]
        if queue is not None and not queue.header.faulted:
            broker.at = queue
            broker.touch(queue)
            _go_on_with(broker, queue, bulk, others)
            resume(broker, queue)  # behind all others
        broker.bulk_budget.take(before[0] - bulk.rows, before[1] - bulk.bytes)
        broker.command_budget.take(before[2] - others.rows)


def _go_on_with(broker: Broker, queue: Queue, bulk: Budget, others: Budget) -> None:
    """Go on with the commands of one queue."""
    waiting = queue.header.tasks
    while waiting:
        task = waiting[0]
        command = c.decode_command(task.command)
        budget = bulk if _is_bulk(command) else others
        if budget.spent:
            return
        try:
            if not _advance(broker, queue, task, command, budget):
                return
        except (LakequeueError, ValueError) as error:
            refuse(broker, task.vpn, command, error)
        del waiting[0]


def resume(broker: Broker, queue: Queue) -> None:
    """The queue is served: so are the commands that wait there."""
    waiting = queue.header.tasks
    if waiting and not queue.dropped:
        broker.header.pending[queue.number] = _is_bulk(c.decode_command(waiting[0].command))


def cancel_all(broker: Broker, queue: Queue) -> None:
    """The queue is deleted: what waits for its turn there has nothing left to do."""
    tasks, queue.header.tasks = queue.header.tasks, []
    for task in tasks:
        error = LakequeueError(f"queue {queue.definition.name!r} was deleted meanwhile")
        refuse(broker, task.vpn, c.decode_command(task.command), error)
    broker.header.pending.pop(queue.number, None)
