"""Where the job calls the core: one step of a broker, and what the driver is told of it.

Both triggers come through here, so they decide alike.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ..protocol.journal import Journal
from ..protocol.outputs import Alert, Capture, Deadline, InVain, Output, RejectedRecord
from ..state import Batch, Home, Limits, Store, step

LIMITS = Limits()


@dataclass(slots=True)
class Decided:
    """What a step says. said: what is written to Kafka, without the journal; deadline: epoch ms, 0
    for never; captures: topics and expressions that queues capture from now on; in_vain: of each
    partition, how many commands changed nothing."""

    said: list[Output] = field(default_factory=list)
    journal: Journal | None = None
    deadline: int = 0
    captures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    in_vain: dict[tuple[str, int], int] = field(default_factory=dict)


def decide(store: Store, batch: Batch, now: int, home: Home, limits: Limits = LIMITS) -> Decided:
    """Take one step: the only call of `state.step` in the job."""
    outputs = step(store, batch, now, home, limits)
    decided = Decided(notes=notes_of(outputs))
    for output in outputs:
        match output:
            case Deadline():
                decided.deadline = output.at
            case Capture():
                decided.captures.append(output.topic)
            case InVain():
                place = output.topic, output.partition
                decided.in_vain[place] = decided.in_vain.get(place, 0) + output.count
            case Alert():
                pass
            case Journal():
                decided.journal = output
            case _:
                decided.said.append(output)
    return decided


def notes_of(outputs: list[Output]) -> list[str]:
    """What the driver is told of a step; `batch_notes` reads it."""
    notes = []
    malformed: Counter[str] = Counter()
    for output in outputs:
        if isinstance(output, Capture):
            notes.append(f"capture:{output.topic}")
        elif isinstance(output, RejectedRecord):
            malformed[output.vpn] += 1
    return notes + [f"malformed:{vpn}:{count}" for vpn, count in sorted(malformed.items())]
