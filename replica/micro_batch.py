"""Steps of micro-batches: nothing but the state outlives a batch, and it is written at its end.

    load ─▶ step, step, … ─▶ mark ─▶ all pages that changed

Spark gives the same batch again when it fails, so there is no log. What steps write on their way is
a draft above the state: a step that fails throws it away, and the batch's steps are taken again
without what failed.
"""

from __future__ import annotations

from collections.abc import Callable

from ..state import Batch, Broker, Home, Limits, StepFailed, Store
from ..state.queue.mesh_interface import MeshInterface
from .replica import Decided, Replica, put_aside, sorted_out


class Draft:
    """Pages that were written since, above a store that does not know of them."""

    def __init__(self, below: Store) -> None:
        self._below = below
        self._changed: dict[str, bytes | None] = {}  # None: deleted

    def get(self, key: str) -> bytes | None:
        """The page as written here, else as it is below."""
        return self._changed[key] if key in self._changed else self._below.get(key)

    def put(self, key: str, value: bytes) -> None:
        """Write a page, here only."""
        self._changed[key] = value

    def delete(self, key: str) -> None:
        """Remove a page, here only."""
        self._changed[key] = None

    def drop(self) -> None:
        """Forget what changed."""
        self._changed.clear()

    def commit(self) -> None:
        """Write what changed to the store below, in the order of the keys."""
        for key, value in sorted(self._changed.items()):
            if value is None:
                self._below.delete(key)
            else:
                self._below.put(key, value)
        self.drop()


class MicroBatch:
    """One broker's batch. store: the state, as the batch before left it; mesh: gives the broker
    its bridges, and its neighbours."""

    def __init__(
        self, home: Home, store: Store, limits: Limits,
        mesh: Callable[[Broker], MeshInterface] | None = None,
    ) -> None:  # fmt: skip
        self._draft = Draft(store)
        self._replica = Replica(home, self._draft, limits, mesh)
        self._taken: list[tuple[Batch, int]] = []

    def take(self, batch: Batch, now: int) -> Decided:
        """Take one step. What fails in it is left out; raises StepFailed where nobody knows what
        that is."""
        while True:
            try:
                decided = sorted_out(self._replica.take(batch, now))
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
        """The batch ends: the state gets what changed."""
        self._replica.mark()
        self._draft.commit()
