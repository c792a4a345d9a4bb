"""The step: the engine as one pure function of state, inputs and time.

    outputs = step(store, batch, now, home, limits)

What a step does, and in which order, is `PHASES`. Each phase has a budget (`limits.Limits`); what
is left goes on in the next step, which is asked for at once: `Deadline(at=now)`. The same state,
inputs and time give the same outputs and the same pages, byte for byte; so a step that is tried
again repeats itself.

Nothing from outside can stop a step: see `isolation`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..core import Batch, Home
from ..protocol.messages import Records
from ..protocol.outputs import Deadline, Output
from .bridges.crossing import cross
from .broker import Broker
from .commands.intake import DecodedCommands, answer_inspections, take_commands
from .commands.turns import go_on
from .durable import say_held
from .isolation import Refusals, isolated
from .limits import Limits, beside
from .mesh.channel import hear
from .mesh.parting import take_leave
from .mesh.topic_routes import tell_routes
from .mesh.unread import take_up
from .mesh.verdicts import decide_voted
from .phases.admission import admit
from .phases.alerts import watch
from .phases.deadlines import act_on_deadlines
from .phases.delivery import deliver
from .storage import NEVER, Store


@dataclass(slots=True)
class Input:
    """A batch on its way through the phases."""

    commands: DecodedCommands
    publishes: Records
    mesh: Records
    refused: Refusals


PHASES: tuple[Callable[[Broker, Input], None], ...] = (
    lambda broker, _: go_on(broker),  # what earlier commands have left to do
    lambda broker, given: hear(broker, given.mesh, given.refused),
    lambda broker, _: cross(broker),
    lambda broker, _: decide_voted(broker),
    lambda broker, given: take_commands(broker, given.commands),
    lambda broker, given: take_up(broker, given.refused),
    lambda broker, given: admit(broker, given.publishes, given.refused),
    lambda broker, _: say_held(broker),
    lambda broker, _: act_on_deadlines(broker),
    lambda broker, _: tell_routes(broker),
    lambda broker, _: take_leave(broker),  # what was said of routes stands before it
    lambda broker, _: deliver(broker),
    lambda broker, _: compact(broker),
    lambda broker, _: watch(broker),
    lambda broker, given: answer_inspections(broker, given.commands),
)


def compact(broker: Broker) -> None:
    """Keep what is stored near what lives, and earlier where spool files are short (S8)."""
    pressed = "spool_files" in broker.header.alerts
    broker.more_to_do |= broker.spool.compact(pressed)


def step(
    store: Store,
    batch: Batch,
    now: int,
    home: Home = Home(),  # noqa: B008 (frozen)
    limits: Limits = Limits(),  # noqa: B008 (frozen)
) -> list[Output]:
    """Run one step of a broker. ``now``: epoch ms. Reads and writes ``store``."""

    def run(pages: Store, part: Batch, refused: Refusals, first: bool) -> Broker:
        own = beside(limits, len(part.commands) + len(part.publishes))
        broker = refused.watch(Broker.load(pages, home, now, own, first))
        commands = DecodedCommands(broker, part.commands, refused)
        given = Input(commands, part.publishes, part.mesh, refused)
        for phase in PHASES:
            phase(broker, given)
            broker.at = None
        broker.flush()
        return broker

    outputs, journal, at = isolated(store, batch, run)
    if journal.segments:
        outputs.append(journal)
    outputs.append(Deadline(0 if at >= NEVER else max(at, 1)))
    return outputs
