"""The step: the engine as one function of a live broker, inputs and time.

    outputs = step(broker, batch, now)

What a step does, and in which order, is `PHASES`. Each phase has a budget (`limits.Limits`); what
is left goes on in the next step, which is asked for at once: `Deadline(at=now)`. The same state,
inputs and time give the same outputs, byte for byte.

Check, then apply: whatever a client sends is checked before anything changes, so a refusal changes
nothing. If something fails all the same it is our mistake, and the state is spoiled: `StepFailed`
says what was being done. Whoever drives the broker throws it away, takes the logged steps again,
and leaves out what failed (`Batch.skipped`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..protocol.errors import LakequeueError
from ..protocol.messages import Records
from ..protocol.outputs import Deadline, Output
from .commands.intake import DecodedCommands, answer_inspections, take_commands
from .commands.turns import go_on
from .limits import beside
from .phases.admission import admit
from .phases.alerts import watch
from .phases.deadlines import act_on_deadlines
from .phases.delivery import deliver
from .phases.tidying import tidy
from .queue.broker import Broker, Place
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
    skipped: dict[Place, str] = field(default_factory=dict)
    faulted: dict[int, str] = field(default_factory=dict)


def hear(broker: Broker, batch: Batch) -> None:
    """What other brokers say."""
    if broker.beyond is not None:
        broker.beyond.hear(batch.mesh, batch.skipped)
    else:
        assert not batch.mesh, "another broker speaks to one that knows none"


def speak(broker: Broker) -> None:
    """What is to be said to other brokers now that all is delivered."""
    if broker.beyond is not None:
        broker.beyond.speak()


class StepFailed(LakequeueError):
    """A step failed. place: the record that was being looked at; queue: the number of the queue
    that was being served; None where it is not known."""

    def __init__(self, place: Place | None, queue: int | None, error: Exception) -> None:
        self.place, self.queue = place, queue
        self.why = f"{type(error).__name__}: {error}"[:500]
        super().__init__(f"a step failed at {place or queue or 'an unknown place'}: {self.why}")


PHASES: tuple[Callable[[Broker, Batch, DecodedCommands], None], ...] = (
    lambda broker, batch, commands: hear(broker, batch),
    lambda broker, batch, commands: go_on(broker),  # what earlier commands have left to do
    lambda broker, batch, commands: take_commands(broker, commands),
    lambda broker, batch, commands: admit(broker, batch.publishes, batch.skipped),
    lambda broker, batch, commands: say_held(broker),
    lambda broker, batch, commands: act_on_deadlines(broker),
    lambda broker, batch, commands: deliver(broker),
    lambda broker, batch, commands: speak(broker),
    lambda broker, batch, commands: tidy(broker),
    lambda broker, batch, commands: watch(broker),
    lambda broker, batch, commands: answer_inspections(broker, commands),
)


def step(broker: Broker, batch: Batch, now: int) -> list[Output]:
    """Take one step at this time, epoch ms. Raises StepFailed; then the broker is spoiled."""
    broker.limits = beside(
        broker.all_limits, len(batch.commands) + len(batch.publishes) + len(batch.mesh)
    )
    broker.header.step += 1
    broker.begin(now)
    try:
        for number, why in sorted(batch.faulted.items()):
            _leave_alone(broker, number, why)
        commands = DecodedCommands(broker, batch.commands, batch.skipped)
        for phase in PHASES:
            phase(broker, batch, commands)
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
