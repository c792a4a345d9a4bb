"""What fails in any way is undone and refused, never the step.

A step writes its pages into an overlay, which is put into the store when the step has succeeded.
If anything raises, the overlay is dropped, and the step runs again without what failed: the command
or the record that was being looked at is refused (it goes to ``<vpn>.rejected`` with the reason, is
counted, and an event says so), or the queue that was being served is left alone until somebody
defines it again. So a step costs nothing extra as long as nothing fails, and what is refused has
provably changed nothing. If the culprit is not known, or there are many, the batch is carried out
record by record, each in an overlay of its own.

A store that fails is no input: its error goes on to whoever runs the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..core.step import Batch
from ..protocol.journal import Journal
from ..protocol.messages import Records
from ..protocol.outputs import Output
from .commands.given_definitions import forget
from .queue import Queue
from .storage import Overlay, Store, StoreFailed

if TYPE_CHECKING:
    from .broker import Broker

TRIES = 4

Place = tuple[str, int, int]  # topic, partition, offset


class Refusals:
    """What this step does without, and why."""

    def __init__(self) -> None:
        self.records: dict[Place, str] = {}
        self.queues: dict[int, str] = {}
        self.broker: Broker | None = None

    def watch(self, broker: Broker) -> Broker:
        """The broker whose work is watched from now on; queues that failed are marked in it."""
        self.broker = broker
        for number, why in self.queues.items():
            queue = broker.queue(number)
            if queue is not None:
                queue.header.faulted = why
                forget(broker, broker.vpn_of(queue), queue.definition.name)
                broker.event("queue_faulted", broker.vpn_of(queue), queue.definition.name, why=why)
        return broker

    def blame(self, error: Exception) -> bool:
        """Note what was being done as it failed; whether that is something new."""
        at: Any = None if self.broker is None else self.broker.at
        why = f"{type(error).__name__}: {error}"[:500]
        if isinstance(at, tuple) and at not in self.records:
            self.records[at] = why
            return True
        if isinstance(at, Queue) and at.number not in self.queues:
            self.queues[at.number] = why
            return True
        return False


Run = Callable[[Store, Any, Refusals, bool], Any]


def isolated(store: Store, batch: Batch, run: Run) -> tuple[list[Output], Journal, int]:
    """Run a step; gives its outputs, its journal, and when something is due next (or NEVER)."""
    refused = Refusals()
    for _ in range(TRIES):
        overlay = Overlay(store)
        try:
            broker = run(overlay, batch, refused, True)
        except StoreFailed as failed:
            raise failed.error from failed
        except Exception as error:
            if not refused.blame(error):
                break
            continue
        overlay.commit()
        return broker.outputs, broker.journal, broker.next_due()
    return _one_by_one(store, batch, run, refused)


def _one_by_one(
    store: Store, batch: Batch, run: Run, refused: Refusals
) -> tuple[list[Output], Journal, int]:
    """The batch in parts of one record each: what fails is refused, the rest is carried out."""
    whole = Overlay(store)
    outputs: list[Output] = []
    journal: Journal | None = None
    for part in _parts(batch):
        while True:
            overlay = Overlay(whole)
            try:
                broker = run(overlay, part, refused, journal is None)
            except StoreFailed as failed:
                raise failed.error from failed
            except Exception as error:
                if refused.blame(error) or _blame_part(part, refused, error):
                    continue
                raise
            break
        overlay.commit()
        refused.queues.clear()  # they are marked in the state now
        outputs += broker.outputs
        if journal is None:
            journal = broker.journal
        else:
            journal.segments += broker.journal.segments
    assert journal is not None
    whole.commit()
    return outputs, journal, broker.next_due()


def _parts(batch: Batch) -> Iterator[Batch]:
    for at in range(len(batch.mesh)):
        yield type(batch)(mesh=_one(batch.mesh, at))
    for at in range(len(batch.commands)):
        yield type(batch)(commands=_one(batch.commands, at))
    for at in range(len(batch.publishes)):
        yield type(batch)(publishes=_one(batch.publishes, at))
    yield type(batch)()


def _one(records: Records, at: int) -> Records:
    return Records(*([getattr(records, name)[at]] for name in Records.__slots__))


def _blame_part(part: Batch, refused: Refusals, error: Exception) -> bool:
    """A part failed somewhere else than where it was looked at: it is still its doing."""
    for records in (part.mesh, part.commands, part.publishes):
        for place in zip(records.topics, records.partitions, records.offsets, strict=True):
            if place not in refused.records:
                refused.records[place] = f"{type(error).__name__}: {error}"[:500]
                return True
    return False
