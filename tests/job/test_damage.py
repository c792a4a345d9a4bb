"""The engine of all tests changes underneath them, in this order. A broker is added and removed
(M4, M5). Then checkpoint and log of steps are lost (R3): a home is rebuilt from the tables, and the
same clients continue; meanwhile messages are moved, edited and replayed there (R4, R6)."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lakequeue
import pytest
from job.conftest import Job
from job.processes import until
from job.tables import await_history, in_kafka
from job.traffic import Traffic, drain
from kafka import KafkaAdminClient, KafkaProducer
from lakequeue.lake import NoLake, open_lake
from lakequeue.lake.past import as_of, brokers
from lakequeue.lake.queries_at import admin_of
from lakequeue.lake.rebuilding import rebuild
from lakequeue.protocol.errors import LakequeueError
from lakequeue.sources.live import kafka_client
from lakequeue.sources.replay_inputs import read_steps
from lakequeue.streaming.kafka.topics_admin import ensure_topics

pytestmark = pytest.mark.job

SEED = 34
BACK_S_MAX = 180.0
CHANGES = 2  # a broker is added, and removed
COMES, STEPS = "x", "broker-0.steps"
LOCAL = {"message_type": "text", "type": "LocalQueue", "max_per_subscription_backlog": 50}
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
    """Whether the tables have all of the engine's state."""
    wanted = {name: shown(admin, name) for name in ("orders", "others")}
    with contextlib.suppress(NoLake), open_lake(home) as lake:
        if brokers(lake):
            then = admin_of(as_of(lake, home, "broker-0"))
            with contextlib.suppress(lakequeue.ConfigError):
                return wanted == {name: shown(then, name) for name in wanted}
    return False


def take(consumer: Any, count: int) -> list[Any]:
    return [until(lambda: consumer.receive(1.0), 60, "a message") for _ in range(count)]


def jammed(near: lakequeue.Connection) -> list[str]:
    """Full queues of the other broker, with more messages for them, which are tried again each
    second."""
    queues, admin, producer = ["full-0", "full-1"], near.admin(), near.producer()
    for queue in queues:
        much = {"max_spool_messages": 1, "subscriptions": [f"much/{queue}"]}
        admin.define({"name": queue, "broker": COMES, **LOCAL, **much})
        for n in range(3):
            producer.send(f"much/{queue}", b"%d" % n)

    def blocked() -> set[str]:
        return {e["queue"] for e in admin.events() if e["event"] == "lane_blocked"}

    until(lambda: blocked() >= {*queues}, BACK_S_MAX, "all are full")
    return queues


@pytest.mark.last
def test_M4_M5_P1_a_broker_is_added_and_removed_under_traffic(
    job: Job, connection: lakequeue.Connection
) -> None:
    """A broker is added, and removed with its queues, one of which captures a topic. The home
    pauses for both, although messages for full queues are tried again all the time. Clients
    reconnect by themselves, those of the removed broker too; messages sent before, meanwhile and
    after are stored once. (The choice of the broker, and deaths:
    `tests/platform/test_brokers_at_rest.py`. A queue that moves alone, and its captured topics:
    `tests/mesh/test_rehoming.py`.)"""
    bootstrap = job.kafka.bootstrap_servers
    begins = in_kafka(bootstrap, STEPS)[STEPS, 0]  # others may have written to the log before
    ensure_topics(bootstrap, [], ["fed-all", "fed"])
    plain = KafkaProducer(bootstrap_servers=bootstrap)
    admin, here = connection.admin(), {"broker": "broker-0", **LOCAL}
    admin.define({"name": "orders-0", **here})
    admin.define({"name": "rest", "subscriptions": ["rest/>"], **here})
    admin.define({"name": "made", "underlying_topic": "fed-all", **here})
    admin.define({"name": "fed-all", "message_type": "text"})
    producers = [connection.producer()]
    running = [Traffic(job.url, SEED, "orders-0", "broker-0", window=20, per_second=5)]
    sent: list[Any] = []
    bodies: list[bytes] = []

    def send(count: int) -> None:
        for _ in range(count):
            bodies.append(b"%d" % len(bodies))
            for topic in ("fed-all", "fed"):
                plain.send(topic, bodies[-1]).get(30)
            for producer in producers:
                sent.append(until(lambda p=producer: offered(p), BACK_S_MAX, "it has room"))

    def offered(producer: lakequeue.Producer) -> Any:
        with contextlib.suppress(lakequeue.Timeout):  # its window is full while the home pauses
            return producer.send_async("rest/1", b"%d" % len(sent))

    def meanwhile(what: Any, *names: str, **options: Any) -> Any:
        """Others send during the change, and after it everything continues."""
        send(8)
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(what, *names, **options)
            while not done.done():
                send(1)
                time.sleep(0.5)
        for traffic in running:
            traffic.goes_on(8, BACK_S_MAX)
        return done.result()

    meanwhile(admin.add_broker, COMES)
    assert [b["name"] for b in admin.brokers()] == ["broker-0", COMES]
    full = jammed(connection)
    for queue in ("orders-1", "fed"):
        admin.define({"name": queue, "broker": COMES, **LOCAL})
    running.append(Traffic(job.url, SEED + 1, "orders-1", COMES, window=20, per_second=5))
    with lakequeue.connect(job.url, broker=COMES) as gone:
        producers.append(gone.producer())
        send(8)
        assert admin.describe("fed")["broker"] == COMES
        moved = meanwhile(admin.remove_broker, COMES, "broker-0")
        assert {one["queue"] for one in moved} >= {"fed", "orders-1", *full}
        send(8)
        for producer in producers:
            producer.flush(timeout=BACK_S_MAX)
    plain.close()
    ids = [future.result(0).message_id for future in sent]
    until(lambda: admin.describe("rest")["depth"] >= len(ids), BACK_S_MAX, "all arrive")
    found = {m.id: m.payload for m in admin.browse("rest", limit=10_000)}
    assert found == {one: b"%d" % n for n, one in enumerate(ids)}
    for queue in ("fed-all", "made", "fed"):
        until(lambda q=queue: admin.describe(q)["depth"] >= len(bodies), BACK_S_MAX, queue)
        assert Counter(m.payload for m in admin.browse(queue, limit=10_000)) == Counter(bodies)
    for traffic in running:
        drain(traffic)
    for queue in full:
        with connection.consumer(queue, ack_mode="auto") as consumer:
            assert [m.payload for m in take(consumer, 3)] == [b"0", b"1", b"2"]
            assert consumer.receive(timeout=1) is None
    assert [b["name"] for b in admin.brokers()] == ["broker-0"]
    assert admin.describe("fed-all")["broker"] == "broker-0"
    for why, what in (("was removed from this home before", admin.remove_broker),
                      ("its name cannot be used again", admin.add_broker)):  # fmt: skip
        with pytest.raises(LakequeueError, match=why):
            what(COMES)
    logged = read_steps(kafka_client(bootstrap, "look"), STEPS, begins)
    numbers = sorted({r.step for _, r in logged})
    missing = set(range(numbers[0], numbers[-1])) - set(numbers)
    assert len(missing) <= CHANGES, "except the changes at rest, which have no record"
    for queue in ("rest", "made", "fed-all", "fed", "orders-0", "orders-1", *full):
        admin.delete(queue)


@pytest.mark.last
def test_R3_clients_continue_with_a_home_rebuilt_from_the_tables(job: Job, tmp_path: Path) -> None:
    """A broker was added and removed before: no step led to the states that this made, and the
    tables have them all the same (M4)."""
    old, new = job.engine.home, tmp_path / "new"
    with job.connect("same") as connection:
        admin = connection.admin()

        def lose() -> None:
            there = sum(queue["depth"] for queue in admin.queues())
            job.stop()
            with open_lake(old) as lake:
                changes = lake.execute(BEHIND_CHANGES).fetchall()
                assert len(changes) == 2, "the test before makes them"
                for (step,) in changes:
                    then = as_of(lake, old, "broker-0", step=step)
                    assert then.snapshot in (step - 1, step)  # a snapshot may be due
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
        await_history(job.engine.tables, connection, "orders")  # a query of them is slow
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
    """Lose the checkpoint and the log of steps."""
    shutil.rmtree(home / "checkpoint")
    kafka = KafkaAdminClient(bootstrap_servers=address)
    kafka.delete_topics([STEPS])
    until(lambda: STEPS not in kafka.list_topics(), 30, "the topic is gone")
    kafka.close()


def replays(admin: Any, home: Path, ids: list[int]) -> None:
    """R4: acknowledged messages come back, as far as the tables have them."""
    again = {"since": "epoch", "ids": f"{ids[0]}-{ids[9]}", "home": home}
    until(lambda: admin.replay("orders", **again, dry_run=True).count == 10, 60, "the journal")
    assert admin.replay("orders", **again).count == 10
    found = [m.headers["lq-replay-of"] for m in admin.browse("orders")]
    assert sorted(map(int, found)) == ids[:10]
