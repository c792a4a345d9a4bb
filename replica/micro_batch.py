"""Steps of micro-batches. Only the state outlives a batch, and it is written at the batch's end.

    load ─▶ step, step, … ─▶ mark ─▶ all pages that changed

Spark repeats a failed batch, so there is no log. Until the end, steps write to a draft above the
state. If a step fails, the draft is dropped and the batch's steps are repeated without the record
or queue that failed.
"""

from __future__ import annotations

from collections.abc import Callable

from ..state import Batch, Broker, Home, Limits, StepFailed, Store
from ..state.queue.mesh_interface import MeshInterface
from .replica import Decided, Replica, put_aside, sort_outputs


class Draft:
    """New pages above a store that does not have them yet."""

    def __init__(self, below: Store) -> None:
        self._below = below
        self._changed: dict[str, bytes | None] = {}  # None: deleted

    def get(self, key: str) -> bytes | None:
        """The page from the draft, else from the store below."""
        return self._changed[key] if key in self._changed else self._below.get(key)

    def put(self, key: str, value: bytes) -> None:
        """Write a page to the draft."""
        self._changed[key] = value

    def delete(self, key: str) -> None:
        """Delete a page in the draft."""
        self._changed[key] = None

    def drop(self) -> None:
        """Discard all changes."""
        self._changed.clear()

    def commit(self) -> None:
        """Write all changes to the store below, in order of the keys."""
        for key, value in sorted(self._changed.items()):
            if value is None:
                self._below.delete(key)
            else:
                self._below.put(key, value)
        self.drop()


class MicroBatch:
    """One broker's batch. store: the state after the previous batch; mesh: makes the broker's
    `MeshInterface`."""

    def __init__(
        self, home: Home, store: Store, limits: Limits,
        mesh: Callable[[Broker], MeshInterface] | None = None,
    ) -> None:  # fmt: skip
        self._draft = Draft(store)
        self._replica = Replica(home, self._draft, limits, mesh)
        self._taken: list[tuple[Batch, int]] = []

    def take(self, batch: Batch, now: int) -> Decided:
        """Run one step. Skips records and queues that fail; raises StepFailed if the cause is
        unknown."""
        while True:
            try:
                decided = sort_outputs(self._replica.take(batch, now))
            except StepFailed as failed:
                put_aside(batch, failed)
            else:
                self._taken.append((batch, now))
                return decided
            self._draft.drop()
            self._replica.reload()
            for earlier, then in self._taken:
                self._replica.take(earlier, then)

    def end(self) -> None:
        """End the batch: write the changes to the state."""
        self._replica.mark()
        self._draft.commit()
