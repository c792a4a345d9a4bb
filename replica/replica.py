"""A broker that takes steps, and survives one that fails.

Whoever drives a broker keeps what came in since the last mark: a log of steps in Kafka, a list in
memory. When a step fails its live state is not to be trusted: it is thrown away, the last mark is
loaded, the steps since are taken again, and the step that failed leaves out what failed in it. So a
bad record costs one replay, and never fails twice (`put_aside`); a second one if it failed among
others (`ONE_OF_SEVERAL`).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..protocol.journal import Journal
from ..protocol.outputs import (
    Alert,
    Capture,
    Deadline,
    Deliveries,
    InVain,
    Output,
    Receipts,
    RejectedRecord,
)
from ..state import Batch, Broker, Home, Limits, StepFailed, Store, step
from ..state.queue.mesh_interface import MeshInterface

TRIES = 16  # records and queues that one step leaves out, before it is given up


class Decided(msgspec.Struct):
    """What a step says. said: what is written to Kafka, without the journal; deadline: epoch ms, 0
    for never; captures: topics and expressions that queues capture from now on; in_vain: of each
    partition, how many commands changed nothing; notes: what the driver process is told."""

    said: list[Output] = []
    journal: Journal | None = None
    deadline: int = 0
    captures: list[str] = []
    notes: list[str] = []
    in_vain: dict[tuple[str, int], int] = {}


def sorted_out(outputs: list[Output]) -> Decided:
    """A step's outputs, by who gets them."""
    decided = Decided()
    malformed: dict[str, int] = {}
    for output in outputs:
        if isinstance(output, (Deliveries, Receipts)):  # most often
            decided.said.append(output)
        elif isinstance(output, Deadline):
            decided.deadline = output.at
        elif isinstance(output, Journal):
            decided.journal = output
        elif isinstance(output, Capture):
            decided.captures.append(output.topic)
            decided.notes.append(f"capture:{output.topic}")
        elif isinstance(output, InVain):
            place = output.topic, output.partition
            decided.in_vain[place] = decided.in_vain.get(place, 0) + output.count
        elif not isinstance(output, Alert):
            decided.said.append(output)
            if isinstance(output, RejectedRecord):
                malformed[output.vpn] = malformed.get(output.vpn, 0) + 1
    for vpn, count in sorted(malformed.items()) if malformed else ():
        decided.notes.append(f"malformed:{vpn}:{count}")
    return decided


def put_aside(batch: Batch, failed: StepFailed) -> None:
    """Leave out what failed when the step is taken again. Raises what failed, where it is not known
    or was left out already: going on would repeat it for ever."""
    known = len(batch.skipped) + len(batch.faulted)
    if known < TRIES and failed.place is not None and failed.place not in batch.skipped:
        batch.skipped[failed.place] = failed.why
    elif known < TRIES and failed.queue is not None and failed.queue not in batch.faulted:
        batch.faulted[failed.queue] = failed.why
    else:
        raise failed


class Replica:
    """One broker. store: what its last mark wrote, and where the next one is written; mesh: gives
    it its neighbours."""

    def __init__(
        self, home: Home, store: Store, limits: Limits,
        mesh: Callable[[Broker], MeshInterface] | None = None,
    ) -> None:  # fmt: skip
        self.home, self.store, self.limits = home, store, limits
        self._mesh = mesh
        self.reload()

    def reload(self) -> None:
        """Throw the live state away, and load the last mark."""
        self.broker = Broker.load(self.store, self.home, self.limits)
        if self._mesh is not None:
            self.broker.mesh = self._mesh(self.broker)

    def take(self, batch: Batch, now: int) -> list[Output]:
        """Take one step. Raises StepFailed: the live state is spoiled then, see `put_aside`."""
        return step(self.broker, batch, now)

    def mark(self) -> None:
        """Write what has changed since the last mark."""
        self.broker.mark()

    def begin_mark(self, put: Callable[[str, bytes], None]) -> None:
        """Begin a mark of what is now: its queues are written by `put`, part by part (`pack`)."""
        self.broker.begin_mark(put)

    def pack(self, rows: int) -> bool:
        """Write about so many rows of the mark that was begun; whether there are more."""
        return self.broker.pack(rows)
