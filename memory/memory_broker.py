"""One broker of an engine in the process: its state, its home, what others said to it."""

from __future__ import annotations

from ..protocol import topics, wire
from ..protocol.messages import Records
from ..protocol.outputs import Deadline, Output
from ..state import Batch, DictStore, Home, Limits, check, step


class MemoryBroker:
    """A broker; `MemoryEngine` runs its steps, one at a time. deadline: when it wants the next."""

    def __init__(self, home: Home, limits: Limits) -> None:
        self.home = home
        self.store = DictStore()
        self.deadline = 0
        self.is_stopped = False  # a test aid: it hears and does nothing
        self.unread: list[Batch] | None = None  # while it is being removed: what clients say to it
        if not isinstance(limits, Limits):
            names = set(Limits.__dataclass_fields__) & set(limits.__dataclass_fields__)
            limits = Limits(**{name: getattr(limits, name) for name in names})
        self._limits = limits
        self._said: list[wire.WireRecord] = []  # to it, since its last step
        self._heard = 0

    @property
    def mesh_topic(self) -> str:
        """Where other brokers speak to it."""
        return topics.topic(self.home.name, topics.MESH)

    def tell(self, record: wire.WireRecord) -> None:
        """Another broker says something, of this home or another; it is heard in the next step."""
        self._said.append(record)

    def is_busy(self, now: int) -> bool:
        """Whether it has something to do at this time."""
        return not self.is_stopped and (bool(self._said) or 0 < self.deadline <= now)

    def step(self, batch: Batch, now: int) -> list[Output]:
        """Run a step, with all that other brokers said before it."""
        batch.mesh = self._heard_records(now)
        return self.take(batch, now)

    def take(self, batch: Batch, now: int) -> list[Output]:
        """Run a step with these inputs."""
        outputs = step(self.store, batch, now, self.home, self._limits)
        self.deadline = next(o.at for o in reversed(outputs) if isinstance(o, Deadline))
        return outputs

    def _heard_records(self, now: int) -> Records:
        said, self._said = self._said, []
        self._heard += len(said)
        return as_heard(said, self._heard - len(said), now)

    def check(self, now: int) -> None:
        """Raise AssertionError if an invariant does not hold."""
        check(self.store, now, self._limits)


def as_heard(said: list[wire.WireRecord], first: int, now: int) -> Records:
    """What others have said, as it is read from the broker's topic from this offset on."""
    n = len(said)
    return Records(
        [r.topic for r in said], [r.partition or 0 for r in said], list(range(first, first + n)),
        [now] * n, [r.key for r in said], [r.value for r in said], [None] * n, [None] * n,
    )  # fmt: skip
