"""Checkpoint and log of steps are gone (R3): a home is made of the tables, and the same clients go
on. On the way: what was moved, edited and replayed there (R4, R6). At last its Kafka is another
one: a Kafka is not its address. Each test leaves its engine to the next one."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lakequeue
import pytest
from job.processes import EngineProcess, until
from kafka import KafkaAdminClient
from lakequeue.lake import NoLake, open_lake
from lakequeue.lake.past import as_of, brokers
from lakequeue.lake.queries_at import admin_of
from lakequeue.lake.rebuilding import rebuild
from lakequeue.streaming import EmbeddedKafka

pytestmark = pytest.mark.job

CONFIG = """queues:
  - {name: orders, message_type: text, max_per_subscription_backlog: 50}
  - {name: others, message_type: text}
"""
SETTINGS = (
    "--set", "lakequeue.batch_s=3", "--set", "lakequeue.history_interval_s=4",
    "--set", "lakequeue.snapshots_interval_s=8", "--set", "lakequeue.tables_interval_s=2",
)  # fmt: skip
COUNT = 40
# A change of brokers takes a number that no step has.
BEHIND_CHANGES = """
SELECT step FROM (SELECT step, lag(step) OVER (ORDER BY step) AS before FROM steps
                  WHERE broker = 'broker-0')
WHERE before = step - 2 ORDER BY step DESC LIMIT 2
"""


class Place:
    """Where the engines of this file live, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.kafka = folder, EmbeddedKafka(folder / "kafka").start()
        (folder / "queues.yaml").write_text(CONFIG)
        self.engines: list[EngineProcess] = []

    @property
    def address(self) -> str:
        return self.kafka.bootstrap_servers

    @property
    def url(self) -> str:
        return f"kafka://{self.address}"

    def start(self, name: str) -> EngineProcess:
        config, home = self.folder / "queues.yaml", self.folder / name
        self.engines.append(EngineProcess(self.address, home, config, *SETTINGS))
        return self.engines[-1]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    try:
        yield place
    finally:
        for engine in place.engines:
            engine.kill()
        place.kafka.stop()


def shown(admin: Any, queue: str) -> dict[str, tuple[Any, ...]]:
    return {m.id: (m.payload, m.headers) for m in admin.browse(queue, limit=1_000)}


def caught_up(home: Path, admin: Any) -> bool:
    """Whether the tables know what the engine knows."""
    wanted = {name: shown(admin, name) for name in ("orders", "others")}
    with contextlib.suppress(NoLake), open_lake(home) as lake:
        if brokers(lake):
            then = admin_of(as_of(lake, home, "broker-0"))
            with contextlib.suppress(lakequeue.ConfigError):
                return wanted == {name: shown(then, name) for name in wanted}
    return False


def take(consumer: Any, count: int) -> list[Any]:
    return [until(lambda: consumer.receive(1.0), 60, "a message") for _ in range(count)]


def test_R3_the_same_clients_go_on_with_a_home_made_of_the_tables(place: Place) -> None:
    """Brokers came and went before: no step led to the states that this made, and the tables have
    them all the same (M4)."""
    engine, new = place.start("old").wait_ready(), place.folder / "new"
    with lakequeue.connect(place.url, client_name="same") as connection:
        admin = connection.admin()
        admin.add_broker("x")
        until(lambda: all(b["state"] == "running" for b in admin.brokers()), 60, "all run")
        admin.remove_broker("x")

        def lose() -> None:
            engine.kill()
            with open_lake(engine.home) as lake:
                for (step,) in lake.execute(BEHIND_CHANGES).fetchall():
                    then = as_of(lake, engine.home, "broker-0", step=step)
                    assert then.snapshot in (step - 1, step)  # it may be time for one
            forget(engine.home, place.address)
            (made,) = rebuild(engine.home, new)
            assert made.messages == COUNT - 10
            place.start("new").wait_ready()

        replays(admin, new, goes_on(connection, engine.home, lose))


def goes_on(connection: Any, old: Path, lose: Callable[[], None]) -> list[int]:
    """The ids of the messages that were sent first."""
    admin, producer = connection.admin(), connection.producer()
    until(lambda: admin.brokers()[0]["state"] == "running", 60, "the change of brokers is over")
    ids = [int(producer.send("orders", f"{number}").message_id) for number in range(COUNT)]
    done: set[bytes] = set()
    with connection.consumer("orders", ack_mode="individual", max_backlog=5) as consumer:
        for _ in range(10):
            (message,) = take(consumer, 1)  # it may hold five
            message.ack()
            done.add(message.payload)
        held = take(consumer, 5)
        assert admin.edit("orders", {"seen": "yes"}, ids=f"{ids[-1]}").count == 1
        last = f"{ids[-2]}-{ids[-1]}"
        assert admin.move("orders", to="others", ids=last, why="a test").count == 2
        assert {h.get("seen") for _, h in shown(admin, "others").values()} == {"yes", None}
        until(lambda: admin.describe("orders")["acknowledged"] == 10, 30, "the acks")
        until(lambda: caught_up(old, admin), 120, "the tables")
        before = {name: shown(admin, name) for name in ("orders", "others")}
        lose()
        assert {name: shown(admin, name) for name in before} == before
        assert len(held) == 5  # they come once more, to the same consumer
        producer.send("orders", "after")
        while len(done) < COUNT - 1:
            (message,) = take(consumer, 1)
            with contextlib.suppress(lakequeue.LeaseLost):
                message.ack()
                done.add(message.payload)
    assert done == {b"%d" % n for n in range(COUNT - 2)} | {b"after"}
    until(lambda: admin.describe("orders")["depth"] == 0, 60, "the queue is empty")
    return ids


def forget(home: Path, address: str) -> None:
    """The checkpoint and the log of steps."""
    shutil.rmtree(home / "checkpoint")
    kafka = KafkaAdminClient(bootstrap_servers=address)
    kafka.delete_topics(["broker-0.steps"])
    until(lambda: "broker-0.steps" not in kafka.list_topics(), 30, "the topic is gone")
    kafka.close()


def replays(admin: Any, home: Path, ids: list[int]) -> None:
    """R4: what is acknowledged comes back, as far as the tables know it."""
    again = {"since": "epoch", "ids": f"{ids[0]}-{ids[9]}", "home": home}
    until(lambda: admin.replay("orders", **again, dry_run=True).count == 10, 60, "the journal")
    assert admin.replay("orders", **again).count == 10
    found = [m.headers["lq-replay-of"] for m in admin.browse("orders")]
    assert sorted(map(int, found)) == ids[:10]
