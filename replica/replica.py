"""A broker that runs steps, and survives a step that fails.

The driver keeps the inputs since the last mark: in a log of steps in Kafka, or in memory. If a step
fails, the live state is discarded, the last mark is loaded, and the steps since are replayed; the
failed step then skips the record or queue that failed (`put_aside`). So a bad record costs one
replay, or two if it failed in a group of messages (`ONE_OF_SEVERAL`).
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

WHYS = 16  # failures of a step with a full text, so that its record fits into Kafka
WHY_CHARACTERS = 40  # of each additional failure


class Decided(msgspec.Struct):
    """The outputs of a step. said: for Kafka, without the journal; deadline: epoch ms, 0 for never;
    captures: newly captured topics and expressions; in_vain: per partition, the number of commands
    that changed nothing; notes: messages for the driver process."""

    said: list[Output] = []
    journal: Journal | None = None
    deadline: int = 0
    captures: list[str] = []
    notes: list[str] = []
    in_vain: dict[tuple[str, int], int] = {}


def sort_outputs(outputs: list[Output]) -> Decided:
    """Sort a step's outputs by receiver."""
    said: list[Output] = []
    decided = Decided(said)
    malformed: dict[str, int] = {}
    for output in outputs:
        kind = type(output)
        if kind is Deliveries or kind is Receipts:  # the usual case
            said.append(output)
        elif isinstance(output, Deadline):
            decided.deadline = output.at
        elif isinstance(output, Journal):
            decided.journal = output
        elif isinstance(output, Capture):
            decided.captures.append(output.topic)
            decided.notes.append(f"capture:{output.topic}")
        elif isinstance(output, InVain):
            partition = output.topic, output.partition
            decided.in_vain[partition] = decided.in_vain.get(partition, 0) + output.count
        elif not isinstance(output, Alert):
            said.append(output)
            if isinstance(output, RejectedRecord):
                malformed[output.vpn] = malformed.get(output.vpn, 0) + 1
    for vpn, count in sorted(malformed.items()) if malformed else ():
        decided.notes.append(f"malformed:{vpn}:{count}")
    return decided


def put_aside(batch: Batch, failed: StepFailed) -> None:
    """Let the batch skip the record or queue that failed when its step is repeated. Raises the
    failure if its cause is unknown or was skipped already: the repetition would fail for ever.

    There is no limit: each repetition skips one more of the step's records and queues.
    """
    many = len(batch.skipped) + len(batch.faulted) >= WHYS
    why = failed.why[:WHY_CHARACTERS] if many else failed.why
    if failed.place is not None and failed.place not in batch.skipped:
        batch.skipped[failed.place] = why
    elif failed.queue is not None and failed.queue not in batch.faulted:
        batch.faulted[failed.queue] = why
    else:
        raise failed


class Replica:
    """One broker. store: the pages of its last mark, and of the next; mesh: makes its
    `MeshInterface`."""

    def __init__(
        self, home: Home, store: Store, limits: Limits,
        mesh: Callable[[Broker], MeshInterface] | None = None,
    ) -> None:  # fmt: skip
        self.home, self.store, self.limits = home, store, limits
        self._mesh = mesh
        self.reload()

    def reload(self) -> None:
        """Discard the live state and load the last mark."""
        self.broker = Broker.load(self.store, self.home, self.limits)
        if self._mesh is not None:
            self.broker.mesh = self._mesh(self.broker)

    def take(self, batch: Batch, now: int) -> list[Output]:
        """Run one step. After StepFailed the live state is invalid, see `put_aside`."""
        return step(self.broker, batch, now)

    def mark(self) -> None:
        """Write all changes since the last mark."""
        self.broker.mark()

    def begin_mark(self, put: Callable[[str, bytes], None]) -> None:
        """Begin a mark of the present state; `pack` then writes its queues with ``put``."""
        self.broker.begin_mark(put)

    def pack(self, rows: int) -> bool:
        """Write about this many rows of the current mark; returns whether there are more."""
        return self.broker.pack(rows)
