"""The step: the engine as one function of a live broker, its inputs and the time.

    outputs = step(broker, batch, now)

`take_phases` lists what a step does, in order. Each phase has a budget (`limits.Limits`). If work
is left over, the step asks for the next one at once: `Deadline(at=now)`. The same state, inputs
and time give the same outputs, byte for byte.

Check, then apply: a step checks everything that a client sends before it changes anything. Any
other failure is a bug and leaves the state inconsistent. `StepFailed` then names the record or
queue. The driver discards the broker, replays the logged steps, and skips that record or queue
(`Batch.skipped`).
"""

from __future__ import annotations

import msgspec

from ..protocol.errors import LakequeueError
from ..protocol.messages import Records
from ..protocol.outputs import Deadline, Output
from .commands.intake import carry_out_all, decode_all
from .commands.multi_step_commands import go_on
from .phases.admission import admit
from .phases.alerts import watch
from .phases.deadlines import act_on_deadlines
from .phases.delivery import deliver
from .phases.tidying import tidy
from .queue.broker import Broker
from .queue.broker_facts import RecordPosition
from .queue.queue import Queue
from .rules.durable import send_held_receipts
from .storage.row import NEVER


class Batch(msgspec.Struct):
    """The records of one step, each kind in the order of its log.

    commands: records of the commands topics, undecoded; publishes: all other records; mesh:
    records from other brokers; skipped: records that failed in an earlier attempt at this step,
    and why; faulted: queues that failed in it, and why.
    """

    commands: Records = msgspec.field(default_factory=Records)
    publishes: Records = msgspec.field(default_factory=Records)
    mesh: Records = msgspec.field(default_factory=Records)
    skipped: dict[RecordPosition, str] = {}
    faulted: dict[int, str] = {}


class StepFailed(LakequeueError):
    """A step failed. place: the record it was processing; queue: the number of the queue it was
    serving; both None if unknown."""

    def __init__(self, place: RecordPosition | None, queue: int | None, error: Exception) -> None:
        self.place, self.queue = place, queue
        self.why = f"{type(error).__name__}: {error}"[:500]
        super().__init__(f"a step failed at {place or queue or 'an unknown record'}: {self.why}")


def take_phases(broker: Broker, batch: Batch) -> None:
    """Everything that a step does, in order. A phase without work costs one check."""
    given = batch.commands
    commands, inspections = decode_all(broker, given, batch.skipped) if given.topics else ([], [])
    broker.mesh.hear(batch.mesh, batch.skipped)
    if broker.header.pending:  # commands that earlier steps did not finish
        go_on(broker)
    if commands:
        carry_out_all(broker, commands)
    if batch.faulted:  # a queue that was defined again in the step in which it failed
        isolate_queues(broker, batch)
    if batch.publishes.topics:
        admit(broker, batch.publishes, batch.skipped)
    if broker.held:
        send_held_receipts(broker)
    if broker.has_due():
        act_on_deadlines(broker)
    deliver(broker)
    broker.mesh.speak()  # after delivery, so that other brokers hear its result
    touched = broker.in_order()
    tidy(broker, touched)
    watch(broker, touched)
    if inspections:
        carry_out_all(broker, inspections)


def step(broker: Broker, batch: Batch, now: int) -> list[Output]:
    """Take one step at this time, epoch ms. After StepFailed the broker must not be used."""
    records = len(batch.commands.topics) + len(batch.publishes.topics) + len(batch.mesh.topics)
    broker.header.step += 1
    broker.begin(now, records)
    broker.faulted = batch.faulted
    try:
        if batch.faulted:
            isolate_queues(broker, batch)
        take_phases(broker, batch)
        broker.at = None
        at = broker.end()
    except Exception as error:  # a bug: the driver must learn which record or queue failed
        where = broker.at
        if isinstance(where, Queue):
            raise StepFailed(None, where.number, error) from error
        raise StepFailed(where, None, error) from error
    if broker.journal.segments:
        broker.outputs.append(broker.journal)
    broker.outputs.append(Deadline(0 if at >= NEVER else at or 1))
    return broker.outputs


def isolate_queues(broker: Broker, batch: Batch) -> None:
    """Stop the queues that failed in an earlier attempt at this step."""
    for queue in map(broker.queue, sorted(batch.faulted)):
        if queue is not None:
            broker.isolate(queue)
