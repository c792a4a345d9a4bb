"""Commands that change messages, carried out over as many steps as they need.

An ack, a purge or a redrive may need more than a step's budget. Then the next step continues it.
Later commands of the same queue wait, so a queue's commands keep their order (C5: a cancel never
overtakes earlier acks). Queues with unfinished commands share the budget equally, so a purge of a
million messages delays no other queue's acks. *Bulk* commands, which do not name messages by id,
have a small budget of their own, so steps stay short. The number of waiting commands is bounded;
more are refused.

A handler does what its budget allows, from ``task.cursor`` on, and returns whether it is done.
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
IN_TURN: dict[type, Handler] = {}  # filled by `dispatch`
_BULK = frozenset({c.Purge, c.Move, c.Edit, c.Redrive, c.Delete, c.MoveQueue})


def begin(broker: Broker, queue: Queue, command: Any, why: str = "", bounded: bool = True) -> None:
    """Carry out a command, as far as the budget allows. Raises LakequeueError if too many commands
    wait. bounded: False for the engine's own commands, which must not be refused."""
    waiting = queue.header.tasks
    if bounded and len(waiting) >= broker.limits.pending_commands:
        raise LakequeueError(
            f"queue {queue.definition.name!r}: {len(waiting)} commands wait, at most "
            f"{broker.limits.pending_commands} are allowed: try again later"
        )
    if type(command) is c.Unsubscribe:  # nothing more is delivered, even while it has to wait
        subscription = queue.subscription(command.subscription)
        if subscription is not None:
            subscription.ending = why or "closed"
            queue.consumers.changed(subscription)
    task = Task(queue.header.definition.vpn, b"", why=why)
    if not waiting:
        budget = broker.bulk_budget if _is_bulk(command) else broker.command_budget
        if not budget.spent and _advance(broker, queue, task, command, budget):
            return
    task.command = c.encode_command(command)
    waiting.append(task)
    broker.touch(queue)
    broker.header.pending.setdefault(queue.number, _is_bulk(command))


def _advance(broker: Broker, queue: Queue, task: Task, command: Any, budget: Budget) -> bool:
    """Go on with a command, and answer it once it is done; returns whether it is."""
    if not IN_TURN[type(command)](broker, queue, task, command, budget):
        return False
    answer(broker, command, task.result)
    return True


def _is_bulk(command: Any) -> bool:
    """Whether a command does not name its messages by id."""
    return type(command) in _BULK or getattr(command, "where", None) is not None


def go_on(broker: Broker) -> None:
    """Go on with unfinished commands. Each queue gets an equal share of the budgets."""
    pending = broker.header.pending
    for number, is_bulk in list(pending.items()):
        if (broker.bulk_budget if is_bulk else broker.command_budget).spent:
            continue  # the next step goes on with it, before the queues that had a turn in this one
        n = len(pending)
        bulk, others = broker.bulk_budget.share(n), broker.command_budget.share(n)
        queue = broker.queue(number)
        del pending[number]
        if queue is not None and not queue.header.faulted:
            broker.at = queue
            broker.touch(queue)
            _go_on_with(broker, queue, bulk, others)
            resume(broker, queue)  # behind all others


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
    """Let the queue's waiting commands go on, unless the first one waits for another broker."""
    waiting = queue.header.tasks
    if waiting and not waiting[0].waits and not queue.dropped:
        broker.header.pending[queue.number] = _is_bulk(c.decode_command(waiting[0].command))


def cancel_all(broker: Broker, queue: Queue) -> None:
    """Refuse the waiting commands of a queue that is being deleted."""
    tasks, queue.header.tasks = queue.header.tasks, []
    for task in tasks:
        error = LakequeueError(
            f"queue {queue.definition.name!r} was deleted before the command's turn"
        )
        refuse(broker, task.vpn, c.decode_command(task.command), error)
    broker.header.pending.pop(queue.number, None)
