"""Batches for the core's step, with its twins beside it.

A broker is marked and loaded into a second one at random moments; from then on both take the same
steps. Their outputs must be the same, byte for byte, and so must the pages that they write at every
mark: a replica that takes the steps of a log from any mark reaches the leader's state. One of them
writes its pages part by part, while steps continue: they equal those of the others.
"""

import random
from itertools import zip_longest
from typing import Any

from lakequeue.protocol import wire
from lakequeue.replica.replica import put_aside
from lakequeue.state import Batch, Broker, DictStore, Home, Limits, StepFailed, check, step
from lakequeue.state.storage.row import NEVER
from model.limits import BUDGETS, PAGES, SMALL_BUDGETS, SMALL_PAGES, TINY
from rules.steps import Steps

Pages = dict[str, bytes]
ROWS = ("command_rows", "bulk_rows", "due_rows", "due_names", "delivery_rows", "again_rows")
LEAST = {"live_rows": 2, "segment_rows": 1, "merge_rows": 1, "blocks_cached": 1, "looks": 1}
LIMITS = {
    "ones": Limits(**PAGES | BUDGETS | dict.fromkeys(ROWS, 1) | LEAST),
    "tiny": TINY,
    "budgets": SMALL_BUDGETS,
    "storage": SMALL_PAGES,
    "usual": Limits(),
}


def differences(one: list[Any], other: list[Any]) -> list[Any]:
    """The outputs of two twins in one step, where they differ. A deadline is part of them."""
    return [(a, b) for a, b in zip_longest(one, other) if a != b]


class TwinSteps(Steps):
    """Like `Steps`, for several brokers that do the same. chance: of a mark between two steps, from
    which one more broker is loaded; twins: at most so many."""

    def __init__(
        self, store: DictStore | None = None, limits: Limits | None = None, watch: Any = None,
        checked: bool = True, chance: float = 0.0, seed: int = 0, twins: int = 3,
    ) -> None:  # fmt: skip
        super().__init__(store, watch, checked)
        self.limits = limits or Limits()
        self.chance, self.random, self.twins = chance, random.Random(seed), twins
        self.brokers = [self.load(DictStore())]
        self.loaded = self.steps = self.in_parts = 0
        # a broker that writes its pages in parts, these pages, and those of the others
        self.writing: tuple[Broker, Pages, Pages] | None = None

    def load(self, store: DictStore) -> Broker:
        return Broker.load(store, Home(), self.limits)

    def step(self, batch: Batch) -> list[Any]:
        if self.random.random() < self.chance:
            self.check_marks()
        return self.one_step(batch)

    def one_step(self, batch: Batch) -> list[Any]:
        """A step of all twins; returns the first one's outputs."""
        self.steps += 1
        said = [step(one, batch, self.now) for one in self.brokers]
        if self.writing is not None:
            self.write_more(self.random.randrange(3))
        for other in said[1:]:
            assert not differences(said[0], other), f"step {self.steps}: twins differ"
            assert list(wire.encode(said[0])) == list(wire.encode(other)), f"step {self.steps}"
        if self.checked:
            for one in self.brokers:
                check(one)
        return said[0]

    def check_marks(self) -> None:
        """Mark all; their pages are the same. One more is loaded from them."""
        self.write_more(NEVER)
        pages: list[Pages] = []
        for one in self.brokers:
            if pages and self.writing is None and self.random.random() < 0.5:
                self.begin_to_write(one, dict(pages[0]))
                continue
            one.mark()
            pages.append(one.store.pages)  # type: ignore[attr-defined]
        for other in pages[1:]:
            keys = sorted({*pages[0], *other})
            differ = [key for key in keys if pages[0].get(key) != other.get(key)]
            assert not differ, f"step {self.steps}: a twin wrote other pages: {differ}"
        self.loaded += 1
        self.brokers = [*self.brokers[: self.twins - 1], self.load(DictStore(pages[0]))]
        if len(self.brokers) > 1 and self.random.random() < 0.3:  # the oldest is a loaded one too
            self.brokers.pop(0)

    def begin_to_write(self, one: Broker, pages: Pages) -> None:
        """One begins its mark. pages: those of the others."""
        own: Pages = one.store.pages  # type: ignore[attr-defined]
        found: Pages = {}

        def put(key: str, page: bytes) -> None:
            found[key] = own[key] = page

        one.begin_mark(put)
        found |= own
        self.writing = one, found, pages

    def write_more(self, rows: int) -> None:
        """Write more of the pages of the slow one; in the end they equal those of the others."""
        if self.writing is None:
            return
        one, found, pages = self.writing
        if not one.pack(rows):
            differ = [key for key in {*found, *pages} if found.get(key) != pages.get(key)]
            assert not differ, f"step {self.steps}: written in parts, pages differ: {differ}"
            self.writing = None
            self.in_parts += 1

    def restart(self) -> None:
        self.check_marks()


class FailingSteps(TwinSteps):
    """One broker, which returns to its last mark when a step fails, as its driver does. failures:
    one for each step thrown away."""

    def __init__(self, **options: Any) -> None:
        super().__init__(twins=1, **options)
        self.failures: list[StepFailed] = []
        self.marked = DictStore()
        self.since: list[tuple[Batch, int]] = []

    def check_marks(self) -> None:
        (broker,) = self.brokers
        broker.mark()
        self.marked = DictStore(broker.store.pages)  # type: ignore[attr-defined]
        self.since = []

    def one_step(self, batch: Batch) -> list[Any]:
        while True:
            try:
                said = super().one_step(batch)
            except StepFailed as failed:
                self.failures.append(failed)
                put_aside(batch, failed)
                self.brokers = [self.load(DictStore(self.marked.pages))]
                for earlier, then in self.since:
                    step(self.brokers[0], earlier, then)
            else:
                self.since.append((batch, self.now))
                return said
