"""The step: the engine as one function of a live broker, inputs and time.

    outputs = step(broker, batch, now)

What a step does, and in which order, is `take_phases`. Each phase has a budget (`limits.Limits`);
what is left goes on in the next step, which is asked for at once: `Deadline(at=now)`. The same
state, inputs and time give the same outputs, byte for byte.

Check, then apply: whatever a client sends is checked before anything changes, so a refusal changes
nothing. If something fails all the same it is our mistake, and the state is spoiled: `StepFailed`
says what was being done. Whoever drives the broker throws it away, takes the logged steps again,
and leaves out what failed (`Batch.skipped`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..protocol.errors import LakequeueError
from ..protocol.messages import Records
from ..protocol.outputs import Deadline, Output
from .commands.intake import carry_out_all, decoded
from .commands.multi_step_commands import go_on
from .limits import beside
from .phases.admission import admit
from .phases.alerts import watch
from .phases.deadlines import act_on_deadlines
from .phases.delivery import deliver
from .phases.tidying import tidy
from .queue.broker import Broker
from .queue.broker_facts import RecordPosition
from .queue.queue import Queue
from .rules.durable import say_held
from .storage.row import NEVER


@dataclass(slots=True)
class Batch:
    """What comes in at once: commands and publishes, each in their log's order.

    commands: records of the commands topics, undecoded; publishes: all other records; mesh:
    what other brokers say; skipped:
    records that failed when this step was taken before, and why; faulted: queues that did.
    """

    commands: Records = field(default_factory=Records)
    publishes: Records = field(default_factory=Records)
    mesh: Records = field(default_factory=Records)
    skipped: dict[RecordPosition, str] = field(default_factory=dict)
    faulted: dict[int, str] = field(default_factory=dict)


def hear(broker: Broker, batch: Batch) -> None:
    """What other brokers say."""
    if broker.mesh is not None:
        broker.mesh.hear(batch.mesh, batch.skipped)
    else:
        assert not batch.mesh, "another broker speaks to one that knows none"


def speak(broker: Broker) -> None:
    """What is to be said to other brokers now that all is delivered."""
    if broker.mesh is not None:
        broker.mesh.speak()


class StepFailed(LakequeueError):
    """A step failed. place: the record that was being looked at; queue: the number of the queue
    that was being served; None where it is not known."""

    def __init__(self, place: RecordPosition | None, queue: int | None, error: Exception) -> None:
        self.place, self.queue = place, queue
        self.why = f"{type(error).__name__}: {error}"[:500]
        super().__init__(f"a step failed at {place or queue or 'an unknown place'}: {self.why}")


def take_phases(broker: Broker, batch: Batch) -> None:
    """All that a step does, in its order. What has nothing to do costs a look."""
    commands = decoded(broker, batch.commands, batch.skipped) if batch.commands.topics else []
    hear(broker, batch)
    if broker.header.pending:  # what earlier commands have left to do
        go_on(broker)
    carry_out_all(broker, commands, inspect=False)
    if batch.publishes.topics:
        admit(broker, batch.publishes, batch.skipped)
    if broker.held:
        say_held(broker)
    act_on_deadlines(broker)
    deliver(broker)
    speak(broker)
    tidy(broker)
    watch(broker)
    carry_out_all(broker, commands, inspect=True)


def step(broker: Broker, batch: Batch, now: int) -> list[Output]:
    """Take one step at this time, epoch ms. Raises StepFailed; then the broker is spoiled."""
    records = len(batch.commands.topics) + len(batch.publishes.topics) + len(batch.mesh.topics)
    broker.limits = beside(broker.all_limits, records)
    broker.header.step += 1
    broker.begin(now)
    try:
        for number, why in sorted(batch.faulted.items()) if batch.faulted else ():
            _leave_alone(broker, number, why)
        take_phases(broker, batch)
        broker.at = None
        at = broker.end()
    except Exception as error:
        where = broker.at
        if isinstance(where, Queue):
            raise StepFailed(None, where.number, error) from error
        raise StepFailed(where, None, error) from error
    if broker.journal.segments:
        broker.outputs.append(broker.journal)
    broker.outputs.append(Deadline(0 if at >= NEVER else max(at, 1)))
    return broker.outputs


def _leave_alone(broker: Broker, number: int, why: str) -> None:
    """A queue failed: nothing happens in it until somebody defines it again."""
    queue = broker.queue(number)
    if queue is not None:
        queue.header.faulted = why
        queue.header.given = b""  # whatever it is defined with next counts
        broker.touch(queue)
        broker.event("queue_faulted", broker.vpn_of(queue), queue.definition.name, why=why)
