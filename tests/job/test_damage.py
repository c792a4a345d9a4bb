"""Checkpoint and log of steps are gone (R3): a home is made of the tables, and the same clients go
on. On the way: what was moved, edited and replayed there (R4, R6). The engine is the one of all
tests, and this is its last one.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lakequeue
import pytest
from job.conftest import Job, in_real_time
from job.processes import until
from job.tables import await_history
from kafka import KafkaAdminClient
from lakequeue.lake import NoLake, open_lake
from lakequeue.lake.past import as_of, brokers
from lakequeue.lake.queries_at import admin_of
from lakequeue.lake.rebuilding import rebuild

pytestmark = pytest.mark.job

COUNT = 40
# A change of brokers takes a number that no step has.
BEHIND_CHANGES = """
SELECT step FROM (SELECT step, lag(step) OVER (ORDER BY step) AS before FROM steps
                  WHERE broker = 'broker-0')
WHERE before = step - 2 ORDER BY step DESC LIMIT 2
"""


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


@pytest.mark.last
@in_real_time
def test_R3_the_same_clients_go_on_with_a_home_made_of_the_tables(job: Job, tmp_path: Path) -> None:
    """Brokers came and went before: no step led to the states that this made, and the tables have
    them all the same (M4)."""
    old, new = job.engine.home, tmp_path / "new"
    with job.connect("same") as connection:
        admin = connection.admin()
        admin.add_broker("x")
        until(lambda: all(b["state"] == "running" for b in admin.brokers()), 60, "all run")
        admin.remove_broker("x")

        def lose() -> None:
            there = sum(queue["depth"] for queue in admin.queues())
            job.stop()
            with open_lake(old) as lake:
                changes = lake.execute(BEHIND_CHANGES).fetchall()
                assert len(changes) == 2
                for (step,) in changes:
                    then = as_of(lake, old, "broker-0", step=step)
                    assert then.snapshot in (step - 1, step)  # it may be time for one
            forget(old, job.kafka.bootstrap_servers)
            (made,) = rebuild(old, new)
            assert made.messages == there
            job.start(new)

        replays(admin, new, goes_on(job, connection, lose))


def goes_on(job: Job, connection: Any, lose: Callable[[], None]) -> list[int]:
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
        await_history(job.engine.tables, connection, "orders")  # a look at them costs
        until(lambda: caught_up(job.engine.home, admin), 120, "the tables")
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
