"""A broker of an engine in this process: its replica, messages to it, and the steps since its last
mark, from which a failed step is repeated."""

from __future__ import annotations

from ..mesh.mesh import Mesh
from ..protocol import topics, wire
from ..protocol.messages import Records
from ..protocol.outputs import Deadline, Output
from ..replica.replica import Replica, put_aside
from ..state import Batch, DictStore, Home, Limits, StepFailed, check

STEPS_PER_MARK = 100


class MemoryBroker:
    """A broker; `MemoryEngine` runs its steps, one at a time. deadline: when it wants the next."""

    def __init__(self, home: Home, limits: Limits) -> None:
        self.home = home
        self.deadline = 0
        self.is_stopped = False  # a test aid: it receives but does nothing
        self._limits = limits
        self._received: list[wire.WireRecord] = []  # received since its last step
        self._heard = 0
        self._begin(DictStore())

    def _begin(self, store: DictStore) -> None:
        self._marked = DictStore(store.pages)  # as of the last mark
        self._replica = Replica(self.home, store, self._limits, Mesh.load)
        self._since: list[tuple[Batch, int]] = []

    @property
    def is_new(self) -> bool:
        """True if it has no state yet."""
        return not self._replica.broker.header.step

    @property
    def vpns(self) -> list[str]:
        return list(self._replica.broker.header.vpns)

    @property
    def store(self) -> DictStore:
        """The state as a mark writes it."""
        if not self.is_new:
            self._mark()
        return self._pages()

    @store.setter
    def store(self, store: DictStore) -> None:
        self._begin(DictStore(store.pages))

    def _pages(self) -> DictStore:
        store = self._replica.store
        assert isinstance(store, DictStore)
        return store

    def _mark(self) -> None:
        self._replica.mark()
        self._marked = DictStore(self._pages().pages)
        self._since = []

    @property
    def mesh_topic(self) -> str:
        """The topic on which other brokers send to it."""
        return topics.topic(self.home.name, topics.MESH)

    def tell(self, record: wire.WireRecord) -> None:
        """Take a message of another broker, of this home or another; the next step reads it."""
        self._received.append(record)

    def is_busy(self, now: int) -> bool:
        """True if it has something to do at this time."""
        return not self.is_stopped and (bool(self._received) or 0 < self.deadline <= now)

    def step(self, batch: Batch, now: int) -> list[Output]:
        """Run a step, with everything that other brokers sent before it."""
        received, self._received = self._received, []
        batch.mesh = _mesh_records(received, self._heard, now)
        self._heard += len(received)
        return self.take(batch, now)

    def take(self, batch: Batch, now: int) -> list[Output]:
        """Run a step with these inputs."""
        outputs = self._take(batch, now)
        self._since.append((batch, now))
        if len(self._since) >= STEPS_PER_MARK:
            self._mark()
        self.deadline = next(o.at for o in reversed(outputs) if isinstance(o, Deadline))
        return outputs

    def _take(self, batch: Batch, now: int) -> list[Output]:
        while True:
            try:
                return self._replica.take(batch, now)
            except StepFailed as failed:
                put_aside(batch, failed)
            self._replica.store = DictStore(self._marked.pages)
            self._replica.reload()
            for earlier, then in self._since:
                self._replica.take(earlier, then)

    def check(self) -> None:
        """Raise AssertionError if an invariant is violated."""
        check(self._replica.broker)


def _mesh_records(received: list[wire.WireRecord], first: int, now: int) -> Records:
    """Messages of other brokers as read from the broker's topic from this offset on."""
    n = len(received)
    return Records(
        [r.topic for r in received], [r.partition or 0 for r in received],
        list(range(first, first + n)),
        [now] * n, [r.key for r in received], [r.value for r in received], [None] * n, [None] * n,
    )  # fmt: skip
