"""Engines in memory in which everything takes its time: what brokers say to each other, what
clients write, and what they hear. Between two parties the order is kept, as Kafka keeps it; how far
one pair is ahead of another is fate's."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

from lakequeue.client.session.transport import Record
from lakequeue.protocol import mesh_messages, topics, wire

from .mortal import Fate, MortalBroker, MortalEngine

HEARD_LATE = (topics.DIRECTORY, topics.RECEIPTS)


class Inbox(deque[Record]):
    """What a client reads. late: what has been written and cannot be read yet."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow = False
        self.late: deque[Record] = deque()

    def append(self, record: Record) -> None:
        (self.late if self.is_slow else super()).append(record)

    def let_through(self, n: int) -> None:
        for _ in range(min(n, len(self.late))):
            super().append(self.late.popleft())


class SlowBroker(MortalBroker):
    """on_the_way: by who says it, what was said and cannot be heard yet."""

    is_slow = False

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.on_the_way: dict[int, deque[wire.WireRecord]] = defaultdict(deque)

    def tell(self, record: wire.WireRecord) -> None:
        if self.is_slow:
            self.on_the_way[mesh_messages.decode(record.value).sender].append(record)
        else:
            super().tell(record)

    def let_through(self, sender: int, n: int) -> None:
        waiting = self.on_the_way[sender]
        for _ in range(min(n, len(waiting))):
            super().tell(waiting.popleft())


class SlowEngine(MortalEngine):
    """slow: from now on things take their time, until `haste`; `some` lets a part of it through."""

    BROKER = SlowBroker

    def __init__(self, *given: Any) -> None:
        self.is_slow = False
        self._written: dict[tuple[str, int], deque[tuple[Any, ...]]] = defaultdict(deque)
        self._slow_inboxes: list[Inbox] = []
        super().__init__(*given)

    def slow(self) -> None:
        self._be(slow=True)

    def haste(self) -> None:
        """Everything arrives, in its order; and at once from now on."""
        while ways := self._ways():
            for way in ways:
                self._let_through(way, 1 << 20)
        self._be(slow=False)
        self.advance("0s")

    def some(self, fate: Fate) -> None:
        """A part of what is on its way arrives, on one way."""
        if ways := self._ways():
            self._let_through(fate.random.choice(ways), fate.random.choice((1, 1, 2, 3, 9)))

    def _be(self, slow: bool) -> None:
        self.is_slow = slow
        for one in (*self.brokers, *self._slow_inboxes):
            one.is_slow = slow  # type: ignore[union-attr]

    def _ways(self) -> list[Any]:
        """On which something is: of one pair of brokers, of one partition, or of one inbox."""
        slow: list[Any] = self.brokers
        ways = [(one, n) for one in slow for n, late in one.on_the_way.items() if late]
        ways += [key for key, late in self._written.items() if late]
        return [*ways, *(inbox for inbox in self._slow_inboxes if inbox.late)]

    def let(self, to: str, by: str) -> None:
        """All that one broker has said to another is heard."""
        self._let_through((self.broker(to), self.broker(by).home.number), 1 << 20)

    def _let_through(self, way: Any, n: int) -> None:
        if isinstance(way, Inbox):
            way.let_through(n)
        elif isinstance(way[0], str):
            waiting = self._written[way]
            for _ in range(min(n, len(waiting))):
                given, more = waiting.popleft()
                super().publish(way[0], *given, partition=way[1], **more)
        else:
            way[0].let_through(way[1], n)
            with self._lock:
                self._run_to_rest()

    def publish(self, topic: str, *given: Any, partition: int = 0, **more: Any) -> None:
        if self.is_slow:
            self._written[topic, partition].append((given, more))
        else:
            super().publish(topic, *given, partition=partition, **more)

    def open_inbox(self, topic: str) -> Any:
        if not topic.endswith(tuple(f".{name}" for name in HEARD_LATE)):
            return super().open_inbox(topic)
        inbox = Inbox()
        self._slow_inboxes.append(inbox)
        self._inboxes.append((topic, inbox))
        return inbox
