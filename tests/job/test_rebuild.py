"""R3 on the real job: checkpoint and log of steps are gone, a home is made of the tables, and the
same clients go on. On the way: what was moved, edited and replayed there (R4, R6)."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lakequeue
import pytest
from job.processes import EngineProcess, until
from kafka import KafkaAdminClient
from lakequeue.lake import NoLake, open_lake
from lakequeue.lake.looks import admin_of
from lakequeue.lake.past import as_of, brokers
from lakequeue.lake.rebuilding import rebuild
from lakequeue.streaming import EmbeddedKafka

pytestmark = pytest.mark.job

CONFIG = """queues:
  - {name: orders, message_type: text, max_per_subscription_backlog: 50}
  - {name: others, message_type: text}
"""
SETTINGS = (
    "--set", "lakequeue.batch_s=4", "--set", "lakequeue.history_interval_s=3",
    "--set", "lakequeue.snapshots_interval_s=6",
)  # fmt: skip
COUNT = 40


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


def test_R3_the_same_clients_go_on_with_a_home_made_of_the_tables(tmp_path: Path) -> None:
    (tmp_path / "queues.yaml").write_text(CONFIG)
    old, new = tmp_path / "old", tmp_path / "new"
    with EmbeddedKafka(tmp_path / "kafka") as kafka:
        address, config = kafka.bootstrap_servers, tmp_path / "queues.yaml"
        engines: list[EngineProcess] = []

        def start(home: Path) -> EngineProcess:
            engines.append(EngineProcess(address, home, config, *SETTINGS))
            return engines[-1].wait_ready()

        try:
            start(old)
            with lakequeue.connect(f"kafka://{address}", client_name="same") as connection:

                def lose() -> None:
                    engines[-1].kill()
                    forget(old, address)
                    (made,) = rebuild(old, new)
                    assert made.messages == COUNT - 10
                    start(new)

                goes_on(connection, old, lose)
                replays(connection.admin(), new)
        finally:
            for engine in engines:
                engine.kill()


def goes_on(connection: Any, old: Path, lose: Callable[[], None]) -> None:
    admin, producer = connection.admin(), connection.producer()
    for number in range(COUNT):
        producer.send("orders", f"{number}")
    done: set[bytes] = set()
    with connection.consumer("orders", ack_mode="individual", max_backlog=5) as consumer:
        for _ in range(10):
            (message,) = take(consumer, 1)  # it may hold five
            message.ack()
            done.add(message.payload)
        held = take(consumer, 5)
        assert admin.edit("orders", {"seen": "yes"}, ids=f"{COUNT}").count == 1
        last = f"{COUNT - 1}-{COUNT}"
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


def forget(home: Path, address: str) -> None:
    """The checkpoint and the log of steps."""
    shutil.rmtree(home / "checkpoint")
    kafka = KafkaAdminClient(bootstrap_servers=address)
    kafka.delete_topics(["broker-0.steps"])
    until(lambda: "broker-0.steps" not in kafka.list_topics(), 30, "the topic is gone")
    kafka.close()


def replays(admin: Any, home: Path) -> None:
    """R4: what is acknowledged comes back, as far as the tables know it."""
    again = {"since": "epoch", "ids": "1-10", "home": home}
    until(lambda: admin.replay("orders", **again, dry_run=True).count == 10, 60, "the journal")
    assert admin.replay("orders", **again).count == 10
    found = [m.headers["lq-replay-of"] for m in admin.browse("orders")]
    assert sorted(map(int, found)) == list(range(1, 11))
