"""Q2, Q5: each record of a captured topic is taken once, by one host of a distributed queue, also
when brokers are added while it comes in, however far apart they read, and whoever dies."""

import random
from collections import Counter

import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.protocol.messages import Records
from lakequeue.state import Batch
from model.limits import TINY

from .mortal import Fate, MortalEngine
from .own_pace import PARTITIONS, TOPIC

BROKERS = ("a", "b", "c", "d")
QUEUES = [
    {"name": "shared", "message_type": "json", "underlying_topic": TOPIC},
    {"name": "too", "message_type": "json", "underlying_topic": "rad.*",
     "default_publish_target": TOPIC},
    {"name": "local", "message_type": "json", "type": "LocalQueue", "broker": "a",
     "underlying_topic": TOPIC},
]  # fmt: skip


class Reading:
    """Brokers that read one topic, each at its own pace, from its beginning, as on Kafka."""

    def __init__(self, seed: int, brokers: int = 2, death: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.fate = Fate(seed, death=death)
        given = {"brokers": list(BROKERS[:brokers]), "queues": QUEUES}
        self.engine = MortalEngine(parse_configuration(given), TINY if seed % 2 else None)
        self.engine.checking = True
        self.engine.fated(self.fate)
        self.written: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.at: dict[tuple[str, int], int] = {}
        self.n = 0

    def write(self, partition: int) -> None:
        self.written[partition].append(b"%d" % self.n)
        self.n += 1

    def read(self, broker: str, partition: int, most: int) -> None:
        """Some records more, in one step; what brokers say to each other may wait."""
        first = self.at.get((broker, partition), 0)
        values = self.written[partition][first : first + most]
        n = len(values)
        self.at[broker, partition] = first + n
        records = Records(
            [TOPIC] * n, [partition] * n, list(range(first, first + n)), [self.engine.now] * n,
            [None] * n, list(values), [None] * n, [None] * n,
        )  # fmt: skip
        self.engine._step(self.engine.broker(broker), Batch(publishes=records))

    def names(self) -> list[str]:
        return [broker.home.name for broker in self.engine.brokers]

    def add(self) -> None:
        """A broker more."""
        names = list(BROKERS[: len(self.engine.brokers) + 1])
        self.engine.configure(parse_configuration({"brokers": names}))
        self.engine.fated(self.fate)

    def some(self, times: int) -> None:
        """Things happen at random: nobody is where others are."""
        for _ in range(times):
            partition, name = self.random.randrange(PARTITIONS), self.random.choice(self.names())
            match self.random.choice(["write"] * 4 + ["read"] * 6 + ["cut", "hear", "hear"]):
                case "write":
                    self.write(partition)
                case "read":
                    self.read(name, partition, self.random.choice((1, 2, 5)))
                case "cut":
                    self.engine.cut(name)
                case "hear":
                    self.engine.mend(name)

    def end(self) -> None:
        for name in self.names():
            self.engine.mend(name)
        for name in self.random.sample(self.names(), len(self.names())):
            for partition in range(PARTITIONS):
                self.read(name, partition, self.n)
        self.engine.advance("0s")

    def taken(self, queue: str) -> Counter[bytes]:
        with self.engine.connect("a") as connection:
            return Counter(m.payload for m in connection.admin().browse(queue, limit=10_000))


@pytest.mark.parametrize("seed", range(12))
def test_Q2_each_record_is_taken_once_while_brokers_are_added(seed: int) -> None:
    reading = Reading(seed, 1 + seed % 3, death=0.1 if seed % 4 == 3 else 0.0)
    while len(reading.names()) < len(BROKERS):
        reading.some(60)
        reading.add()
    reading.some(60)
    reading.end()
    once = Counter({b"%d" % n: 1 for n in range(reading.n)})
    assert reading.taken("shared") == once
    assert reading.taken("too") == once
    assert reading.taken("local") == once


def test_Q2_a_broker_that_was_added_takes_its_share() -> None:
    reading = Reading(0)
    reading.some(50)
    reading.add()
    for _ in range(3):  # the first is passed, and tells the new one where it may begin
        for partition in range(PARTITIONS):
            reading.write(partition)
        reading.end()
    with reading.engine.connect("a") as connection:
        shown = connection.admin().browse("shared", limit=10_000)
    last = {b"%d" % n: n - (reading.n - PARTITIONS) for n in range(reading.n)}
    found = {last[m.payload]: m.broker for m in shown if last[m.payload] >= 0}
    assert found == {p: "abc"[p % 3] for p in range(PARTITIONS)}
    before = reading.engine.connect("a").admin().usage()["brokers"]["c"]["broker"]["peers"]
    heard = sum(p["heard"] for p in before)
    for partition in range(PARTITIONS):
        reading.write(partition)
    reading.end()
    after = reading.engine.connect("a").admin().usage()["brokers"]["c"]["broker"]["peers"]
    assert sum(p["heard"] for p in after) == heard  # nothing is passed any more


def test_Q2_a_record_that_is_passed_and_cannot_be_read_is_rejected() -> None:
    reading = Reading(0)
    reading.add()
    rejected = reading.engine.open_inbox("default.rejected")
    records = Records(
        [TOPIC], [2], [0], [reading.engine.now], [None], [b"x"], [b"no header"], [None]
    )
    for name in ("a", "b", "c"):
        reading.engine._step(reading.engine.broker(name), Batch(publishes=records))
    reading.engine.advance("0s")
    assert len(rejected) == 3  # for each queue to which it was passed, and by the local queue's
