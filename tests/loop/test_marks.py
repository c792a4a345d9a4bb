"""A mark is one moment: what a batch saves later, while steps go on, is what was there then.

Any walk of inputs, with steps between a mark and its save; from each saved snapshot and its pages
the log must lead, digest for digest, to where the steps are.
"""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from lakequeue.replica.driver import Driver, Snapshot
from lakequeue.state import DictStore
from lakequeue.streaming.loop.page_cache import PageCache
from loop.memory import HOME, SIZES, Some, World, clocks
from replica.test_driver import QUEUE, Walk, operations

Operation = tuple
_decode = msgspec.msgpack.Decoder(Snapshot).decode


class State(DictStore):
    """The operator's state."""

    def keys(self) -> set[str]:
        return set(self.pages)


class MarkedWalk(Walk):
    """A walk over the page cache; a mark is made, and saved so many operations later."""

    def __init__(self, bytes_max: int) -> None:
        self.world = World()
        self.state = State()
        self.cache = PageCache(self.state, bytes_max)
        self.driver = Driver(
            HOME, self.world.code, self.cache, Snapshot(), self.world, self.world,
            clocks(self.world), self.world.limits,
        )  # fmt: skip
        self.driver.learn(SIZES)
        self.sent = 0
        self.mark: Snapshot | None = None  # made, and not saved yet
        self.saved: list[tuple[bytes, dict[str, bytes]]] = []
        self.world.command(command="begin", epoch=HOME.epoch)
        self.world.command(command="define", definition=QUEUE)
        self.step(9)

    def step(self, most: int) -> None:
        self.driver.one(Some(self.world, self.driver, most), 0.0)
        self.driver.pack(1)
        if self.mark is None:  # what comes behind a mark waits until it is saved
            self.cache.write_behind()

    def do_mark(self) -> None:
        self.do_save()
        self.driver.flush()
        self.mark = self.driver.snapshot(5, self.cache.put_to_state)
        self.cache.hand_over()

    def do_save(self) -> None:
        """As `loop.Loop._save`, some steps behind the mark."""
        if self.mark is None:
            return
        while self.driver.pack(1):
            pass
        self.cache.settle()
        encoded = msgspec.msgpack.encode(self.mark)
        self.saved.append((encoded, dict(self.state.pages)))
        self.cache.detach()
        self.mark = None
        self.cache.attach(self.state)

    def do_topics(self, n: int) -> None:
        """More partitions become known."""
        self.driver.learn(SIZES | {"default.deliveries": n, f"new-{n}": 1})

    def do_crash(self, *_: object) -> None:
        """Not here: every snapshot is begun from at the end."""

    do_restart = do_lag = do_crash

    def check(self) -> None:
        self.do_mark()
        self.step(1)
        self.driver.flush()
        self.do_save()
        self.cache.close()
        for encoded, pages in self.saved:
            world = World(topics=self.world.topics, log=list(self.world.log))
            snapshot = _decode(encoded)
            store = DictStore(dict(pages))
            driver = Driver(
                HOME, world.code, store, snapshot, world, world, clocks(world), world.limits
            )
            loud = [
                (at, msgspec.structs.replace(r, acked=0)) for at, r in world.logged(driver.log_at)
            ]
            driver.replay(loud, world)  # refuses another outcome
            assert driver.step == self.driver.step
            assert driver._digest == self.driver._digest
            assert driver.snapshot(1).journal == self.driver.snapshot(1).journal


marked = st.lists(
    st.one_of(
        operations.map(lambda walk: walk[:4]),
        st.just([("mark",)]),
        st.just([("go", 4, 1)]),
        st.just([("save",)]),
        st.integers(2, 5).map(lambda n: [("topics", n)]),
    ),
    max_size=30,
).map(lambda parts: [operation for part in parts for operation in part])


@settings(max_examples=150)
@given(marked, st.sampled_from([0, 2_000, 10_000_000]))
def test_a_mark_is_one_moment(walk: list[Operation], bytes_max: int) -> None:
    one = MarkedWalk(bytes_max)
    try:
        one.go(walk)
        one.check()
    finally:
        one.cache.close()


def test_steps_behind_a_mark_are_not_in_it() -> None:
    """What the journal keeps, and topics that become known, between a mark and its save."""
    one = MarkedWalk(10_000_000)
    one.go([("subscribe", 0), ("publish", 1, 1), ("go", 4, 1), ("mark",)])
    one.go([("publish", 1, 2), ("topics", 4), ("go", 4, 1), ("publish", 2, 3), ("go", 4, 1)])
    one.check()
