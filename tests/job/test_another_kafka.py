"""A topic is not its name, and a Kafka is not its address: what a whole engine does where they are
not what they were; and a gap in a topic's offsets, which every broker passes. Each test leaves its
engine to the next one."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import lakequeue
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from job.processes import EngineProcess, until
from lakequeue.lake import NoLake, open_lake
from lakequeue.lake.past import as_of
from lakequeue.streaming import EmbeddedKafka

pytestmark = pytest.mark.job

QUEUE = "{name: plain, message_type: text, underlying_topic: t, max_per_subscription_backlog: 100}"
SETTINGS = ("--set", "lakequeue.batch_s=2", "--set", "lakequeue.history_interval_s=5")


class Place:
    """A home, and the Kafka that it is on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kafka = EmbeddedKafka(folder / "kafka").start()
        (folder / "queues.yaml").write_text(f"queues: [{QUEUE}]\n")
        self.engines: list[EngineProcess] = []
        self.make_topic()

    def make_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap_servers})

        def made() -> bool:
            error = admin.create_topics([NewTopic("t", 1, 1)])["t"].exception(30)
            return error is None  # else the old one is still being deleted

        until(made, 30, "the topic is made")

    def delete_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap_servers})
        admin.delete_topics(["t"])["t"].result(30)

    def start(self, *more: str) -> EngineProcess:
        config = self.folder / "queues.yaml"
        at = self.kafka.bootstrap_servers
        engine = EngineProcess(at, self.folder / "home", config, *SETTINGS, *more)
        self.engines.append(engine)
        return engine

    def running(self) -> EngineProcess:
        """The one that the test before left; else one that is started."""
        left = [engine for engine in self.engines if engine.process.poll() is None]
        return left[-1] if left else self.start().wait_ready()

    def write(self, *values: str) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        for value in values:
            producer.produce("t", value)
        assert producer.flush(30) == 0

    def taken(self, count: int, seconds: float = 60.0) -> list[str]:
        """So many messages, acknowledged; and what comes at once behind them."""
        found: list[str] = []
        at = f"kafka://{self.kafka.bootstrap_servers}"
        with (
            lakequeue.connect(at) as connection,
            connection.consumer("plain", ack_mode="individual", max_backlog=100) as consumer,
        ):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                got = consumer.receive_many(100, 1.0)
                for message in got:
                    found.append(message.payload.decode())
                    message.ack()
                if not got and len(found) >= count:
                    break
        return found

    def told(self, event: str) -> int:
        """How often."""
        with lakequeue.connect(f"kafka://{self.kafka.bootstrap_servers}") as connection:
            return [e["event"] for e in connection.admin().events()].count(event)

    def in_tables(self) -> list[tuple[str, str]]:
        """What `messages` has of the topic, each with the id of its topic."""
        with contextlib.suppress(NoLake), open_lake(self.folder / "home") as lake:
            return lake.execute(
                "SELECT decode(payload), topic_id FROM messages WHERE topic = 't'"
            ).fetchall()
        return []

    def first_snapshot(self) -> int | None:
        """The step of the first one that the tables have."""
        with contextlib.suppress(NoLake), open_lake(self.folder / "home") as lake:
            found = lake.execute(
                "SELECT min(step) FROM snapshots WHERE page = '' AND whole").fetchone()  # fmt: skip
            return found[0] if found else None
        return None

    def history_until(self) -> float:
        """The time of the last step in the tables, epoch s."""
        with open_lake(self.folder / "home") as lake:
            found = lake.execute("SELECT epoch_ms(max(now)) FROM steps").fetchone()
            return ((found and found[0]) or 0) / 1000

    def start_kafka(self) -> None:
        """At the same address."""
        self.kafka = EmbeddedKafka(self.folder / "kafka", port=self.kafka.port).start()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    one = Place(tmp_path_factory.mktemp("another"))
    try:
        yield one
    finally:
        for engine in one.engines:
            engine.kill()
        one.kafka.stop()


def test_a_broker_and_the_tables_pass_gaps_and_begin_anew_with_a_new_topic(place: Place) -> None:
    """The first of this home: what its tables have is counted."""
    place.running()
    until(
        lambda: place.first_snapshot() is not None,
        60,
        "what any later moment is made of is in the tables",
    )
    at = place.kafka.bootstrap_servers
    foreign = Producer({"bootstrap.servers": at, "transactional.id": "foreign"})
    foreign.init_transactions()
    for n in range(5):
        foreign.begin_transaction()
        foreign.produce("t", f"{n}")
        foreign.commit_transaction()
        time.sleep(0.2)
    assert place.taken(5) == [str(n) for n in range(5)]
    until(lambda: len(place.in_tables()) == 5, 60, "they are in the tables")
    every = {str(n) for n in range(5)}
    for word, count in (("longer", 20), ("shorter", 3)):
        place.delete_topic()
        place.make_topic()
        values = {f"{word}{n}" for n in range(count)}
        place.write(*values)
        assert set(place.taken(count)) == values
        every |= values
        wanted = frozenset(every)
        until(lambda w=wanted: {v for v, _ in place.in_tables()} >= w, 60, "the tables have them")
    until(lambda: place.told("topic_made_anew"), 60, "it is told")
    rows = place.in_tables()
    assert len(rows) == len(every) == 28, "each once"
    assert len({topic_id for _, topic_id in rows}) == 3
    # What any moment is made of is there as well: steps took records of three topics.
    past = time.time()
    until(lambda: place.history_until() > past, 120, "the history reaches so far")
    first = place.first_snapshot()
    with open_lake(place.folder / "home") as lake:
        steps = lake.execute(
            "SELECT DISTINCT step FROM (SELECT step, unnest(ranges) AS r FROM steps) "
            "WHERE r.topic = 't' AND step >= $1", [first]
        ).fetchall()  # fmt: skip
        assert steps
        for (step,) in steps:
            assert as_of(lake, place.folder / "home", "broker-0", step=step).step == step


def test_another_kafka_is_refused_and_may_be_accepted(place: Place) -> None:
    """And is this home's from then on: `tests/platform/test_home.py`."""
    engine, before = place.running(), place.told("topic_made_anew")
    place.write(*(f"old{n}" for n in range(30)))
    assert len(place.taken(25)) == 30
    place.write("kept")
    with lakequeue.connect(f"kafka://{place.kafka.bootstrap_servers}") as connection:
        admin = connection.admin()
        until(lambda: admin.describe("plain")["depth"] == 1, 30, "it is stored")
        # What no snapshot has stands in the log of steps, which goes with the old Kafka.
        batch = admin.brokers()[0]["batch"] or 0
        until(lambda: (admin.brokers()[0]["batch"] or 0) >= batch + 2, 120, "a snapshot has it")
    assert engine.terminate() == 0
    place.kafka.stop()
    shutil.rmtree(place.folder / "kafka")
    place.start_kafka()
    place.make_topic()
    refused = place.start()
    assert refused.process.wait(120) != 0
    assert "was on the Kafka cluster" in refused.errors()
    assert "--accept-other-kafka" in refused.errors()
    place.write(*(f"new{n}" for n in range(30)))
    place.start("--accept-other-kafka").wait_ready()
    assert sorted(place.taken(31)) == sorted(["kept", *(f"new{n}" for n in range(30))])
    assert place.told("topic_made_anew") > before
