"""A broker of an engine in the process, on live objects: its replica, and the steps since its last
mark, by which one that fails is taken again."""

from __future__ import annotations

from collections.abc import Callable

from ..core import Batch as LiveBatch
from ..core import Broker, DictStore, Home, Limits, StepFailed, check
from ..core.queue.beyond import Beyond
from ..mesh.bridges.bridged import Bridged
from ..protocol import topics, wire
from ..protocol.outputs import Deadline, Output
from ..replica.replica import Replica, put_aside
from ..state import Batch
from ..state import Home as OldHome
from ..state import Limits as OldLimits
from .memory_broker import as_heard

STEPS_PER_MARK = 100


def limits_of(limits: OldLimits | Limits) -> Limits:
    """The live core's limits, as far as both have them."""
    if isinstance(limits, Limits):
        return limits
    names = set(Limits.__dataclass_fields__) & set(OldLimits.__dataclass_fields__)
    return Limits(**{name: getattr(limits, name) for name in sorted(names)})


class LiveBroker:
    """A broker; `MemoryEngine` runs its steps, one at a time. deadline: when it wants the next."""

    def __init__(self, home: OldHome, limits: OldLimits) -> None:
        self.home = home
        self.deadline = 0
        self.is_stopped = False  # a test aid: it hears and does nothing
        self.unread: list[Batch] | None = None
        self._limits = limits_of(limits)
        self._begin(DictStore())

    def _begin(self, store: DictStore) -> None:
        home = Home(self.home.name, self.home.number, self.home.epoch, self.home.secret)
        self._marked = DictStore(store.pages)  # as of the last mark
        self._replica = Replica(home, store, self._limits, self._neighbours())
        self._since: list[tuple[LiveBatch, int]] = []
        self._said: list[wire.WireRecord] = []
        self._heard = 0

    def _neighbours(self) -> Callable[[Broker], Beyond]:
        """Gives a broker its bridges, and others to work with."""
        return Bridged.load

    @property
    def store(self) -> DictStore:
        """The state, as a mark writes it."""
        if self._replica.broker.header.step:
            self._mark()
        store = self._replica.store
        assert isinstance(store, DictStore)
        return store

    @store.setter
    def store(self, store: DictStore) -> None:
        self._begin(DictStore(store.pages))

    def _mark(self) -> None:
        self._replica.mark()
        store = self._replica.store
        assert isinstance(store, DictStore)
        self._marked = DictStore(store.pages)
        self._since = []

    @property
    def mesh_topic(self) -> str:
        """Where other brokers would speak to it."""
        return topics.topic(self.home.name, topics.MESH)

    def tell(self, record: wire.WireRecord) -> None:
        """Another broker or home says something; it is heard in the next step."""
        self._said.append(record)

    def is_busy(self, now: int) -> bool:
        """Whether it has something to do at this time."""
        return not self.is_stopped and (bool(self._said) or 0 < self.deadline <= now)

    def step(self, batch: Batch, now: int) -> list[Output]:
        """Run a step, with all that others said before it."""
        said, self._said = self._said, []
        batch.mesh = as_heard(said, self._heard, now)
        self._heard += len(said)
        return self.take(batch, now)

    def take(self, batch: Batch, now: int) -> list[Output]:
        """Run a step with these inputs."""
        live = LiveBatch(batch.commands, batch.publishes, batch.mesh)
        outputs = self._take(live, now)
        self._since.append((live, now))
        if len(self._since) >= STEPS_PER_MARK:
            self._mark()
        self.deadline = next(o.at for o in reversed(outputs) if isinstance(o, Deadline))
        return outputs

    def _take(self, batch: LiveBatch, now: int) -> list[Output]:
        while True:
            try:
                return self._replica.take(batch, now)
            except StepFailed as failed:
                put_aside(batch, failed)
            self._replica.store = DictStore(self._marked.pages)
            self._replica.reload()
            for earlier, then in self._since:
                self._replica.take(earlier, then)

    def check(self, now: int) -> None:
        """Raise AssertionError if an invariant does not hold."""
        check(self._replica.broker)
