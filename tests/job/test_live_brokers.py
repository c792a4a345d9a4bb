"""Three brokers on real Kafka and Spark that come and go under traffic, with a kill of all.

(That each steps in a worker of its own, and one that dies: `test_standalone.py`. What they say to
each other: `tests/mesh`.)
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lakequeue
import pytest
from job.brokers import BACK_S_MAX, BROKERS, take
from job.processes import EngineProcess, until
from job.traffic import Traffic, drain
from kafka import KafkaProducer
from lakequeue.protocol.errors import LakequeueError
from lakequeue.sources.live import kafka_client
from lakequeue.sources.replay_inputs import read_steps
from lakequeue.streaming import EmbeddedKafka
from lakequeue.streaming.kafka.topics_admin import ensure_topics

pytestmark = pytest.mark.job

SEED = 34
CHANGES = 3  # a queue moves, a broker comes, and one goes
SETTINGS = ("--set", "lakequeue.tables_interval_s=0")
LOCAL = "message_type: text, type: LocalQueue, max_per_subscription_backlog: 50"
CONFIG = f"""
brokers: [{", ".join(BROKERS)}]
queues:
  - {{name: orders-a, broker: a, {LOCAL}}}
  - {{name: orders-b, broker: b, {LOCAL}}}
  - {{name: orders-c, broker: c, {LOCAL}}}
"""


class Place:
    """A Kafka, and the engine of this file."""

    def __init__(self, kafka: EmbeddedKafka, folder: Path) -> None:
        self.bootstrap, self.url = kafka.bootstrap_servers, f"kafka://{kafka.bootstrap_servers}"
        (folder / "queues.yaml").write_text(CONFIG)
        self.engine = EngineProcess(
            self.bootstrap, folder / "home", folder / "queues.yaml", *SETTINGS
        )

    def at(self, broker: str) -> lakequeue.Connection:
        """A connection to one broker."""
        return lakequeue.connect(self.url, broker=broker)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("live-brokers")
    with EmbeddedKafka(folder / "kafka") as kafka:
        place = Place(kafka, folder)
        try:
            place.engine.wait_ready()
            yield place
        finally:
            place.engine.kill()


@pytest.fixture
def connection(place: Place) -> Iterator[lakequeue.Connection]:
    with lakequeue.connect(place.url) as connection:
        yield connection


def jammed(place: Place, admin: lakequeue.Admin) -> list[str]:
    """Full queues of another broker, with more for them, which is tried again each second."""
    queues = [f"full-{n}" for n in range(5)]
    with place.at("b") as near:
        producer = near.producer()
        for queue in queues:
            admin.define(
                {
                    "name": queue, "message_type": "text", "type": "LocalQueue", "broker": "c",
                    "max_spool_messages": 1, "subscriptions": [f"much/{queue}"],
                }
            )  # fmt: skip
            for n in range(3):
                producer.send(f"much/{queue}", b"%d" % n)
            time.sleep(0.2)
    until(lambda: {e["queue"] for e in admin.events() if e["event"] == "lane_blocked"} >= {*queues},
          BACK_S_MAX, "all are full")  # fmt: skip
    return queues


def test_M4_M5_P1_brokers_come_and_go_under_traffic(
    place: Place, connection: lakequeue.Connection
) -> None:
    """A broker is added, a queue that captures a topic moves, the
    first broker is removed, and the engine is killed as soon as the home says so: its next start
    tells who asked, and knows who is left. The home comes to rest for each, though messages for
    full queues are tried again all the time. Clients go on by themselves, also those of the broker
    that is gone; what was sent before, meanwhile and after is stored once."""
    ensure_topics(place.bootstrap, [], ["fed-all", "fed"])
    plain = KafkaProducer(bootstrap_servers=place.bootstrap)
    admin = connection.admin()
    local = {"message_type": "text", "type": "LocalQueue", "broker": "a"}
    admin.define({"name": "rest", "subscriptions": ["rest/>"], **local})
    admin.define({"name": "made", "underlying_topic": "fed-all", **local})
    admin.define({"name": "fed-all", "message_type": "text"})
    admin.define({"name": "fed", **local, "broker": "c"})
    full = jammed(place, admin)
    traffic = {
        name: Traffic(place.url, SEED, f"orders-{name}", name, window=20, per_second=5)
        for name in ("a", "b")
    }
    sent: list[Any] = []
    bodies: list[bytes] = []
    with place.at("a") as gone, place.at("b") as stays:
        producers = gone.producer(), stays.producer()

        def send(count: int) -> None:
            for _ in range(count):
                bodies.append(b"%d" % len(bodies))
                for topic in ("fed-all", "fed"):
                    plain.send(topic, bodies[-1]).get(30)
                for producer in producers:
                    sent.append(until(lambda p=producer: offered(p), BACK_S_MAX, "it has room"))

        def offered(producer: lakequeue.Producer) -> Any:
            with contextlib.suppress(lakequeue.Timeout):  # its window is full while the home rests
                return producer.send_async("rest/1", b"%d" % len(sent))

        def meanwhile(what: Any, *names: str, killed: bool = False) -> Any:
            """Others send while it is done. killed: when the home says that it is, which is before
            who asked is told, except on a machine that is late."""
            home = place.engine.home / "lakequeue.json"
            with ThreadPoolExecutor(1) as pool:
                done = pool.submit(what, *names)
                while not done.done() or (killed and not done.exception()):
                    send(1)
                    if killed and names[0] not in json.loads(home.read_text())["brokers"]:
                        place.engine.kill()
                        place.engine.start().wait_ready()
                        killed = False
                    time.sleep(0.5)
                return done.result()

        send(8)
        meanwhile(admin.add_broker, "d")
        assert [b["name"] for b in admin.brokers()] == [*BROKERS, "d"]
        for one in traffic.values():
            one.goes_on(8, BACK_S_MAX)
        send(8)
        with pytest.raises(LakequeueError, match="--pause"):
            admin.move_queue("fed", "b")
        meanwhile(lambda: admin.move_queue("fed", "b", pause=True))
        assert admin.describe("fed")["broker"] == "b"
        for one in traffic.values():
            one.goes_on(8, BACK_S_MAX)
        send(8)
        moved = meanwhile(admin.remove_broker, "a", "b", killed=True)
        assert {one["queue"]: one["broker"] for one in moved}["rest"] == "b"
        for one in traffic.values():
            one.goes_on(8, BACK_S_MAX)
        send(8)
        for producer in producers:
            producer.flush(timeout=BACK_S_MAX)
        ids = [future.result(0).message_id for future in sent]
        until(lambda: admin.describe("rest")["depth"] >= len(ids), BACK_S_MAX, "all arrive")
        found = {m.id: m.payload for m in admin.browse("rest", limit=10_000)}
        assert found == {one: b"%d" % n for n, one in enumerate(ids)}
        for queue in ("fed-all", "made", "fed"):
            until(lambda q=queue: admin.describe(q)["depth"] >= len(bodies), BACK_S_MAX, queue)
            assert Counter(m.payload for m in admin.browse(queue, limit=10_000)) == Counter(bodies)
        for one in traffic.values():
            drain(one)
    with ThreadPoolExecutor(len(full)) as pool:
        for found in pool.map(lambda queue: take(connection, queue, 3), full):
            assert [m.payload for m in found] == [b"0", b"1", b"2"]
    known = {b["name"] for b in admin.brokers()}
    assert known == {"b", "c", "d"}
    assert {q["name"]: q["broker"] for q in admin.queues()}["rest"] == "b"
    assert admin.describe("fed-all")["brokers"].keys() == known
    for why, what in (("was removed from this home before", admin.remove_broker),
                      ("its name cannot be used again", admin.add_broker)):  # fmt: skip
        with pytest.raises(LakequeueError, match=why):
            what("a")
    plain.close()
    assert place.engine.terminate() == 0
    assert "Traceback" not in place.engine.errors()
    for broker in ("b", "c"):
        logged = read_steps(kafka_client(place.bootstrap, "look"), f"{broker}.steps", 0)
        numbers = sorted({r.step for _, r in logged})
        missing = set(range(numbers[0], numbers[-1])) - set(numbers)
        assert len(missing) <= CHANGES, "but for the changes at rest, which no record tells"
