"""Several brokers in one job: each has a query, a worker and a log of its own, and dies alone."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import lakequeue
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from job.brokers import BROKERS, CONFIG, define_queues, traffics, workers
from job.processes import EngineProcess, until
from job.traffic import drain
from kafka import KafkaProducer
from lakequeue.monitor.sight import Sight
from lakequeue.protocol.errors import LakequeueError, Rejected
from lakequeue.streaming import EmbeddedKafka
from lakequeue.streaming.home import HomeFolder
from lakequeue.streaming.topics_admin import ensure_topics

pytestmark = pytest.mark.job

BACK_S_MAX = 60.0
PAUSE_S = 0.02  # of who sends one message after the other: machines have other work too


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EngineProcess, str]]:
    """Four brokers, and room for one more; on each a queue `orders-<name>`."""
    folder = tmp_path_factory.mktemp("brokers")
    (folder / "queues.yaml").write_text(CONFIG)
    with EmbeddedKafka(folder / "kafka") as kafka:
        url = f"kafka://{kafka.bootstrap_servers}"
        often = ("--set", "lakequeue.batch_s=5", "--set", "lakequeue.tables_interval_s=10")
        given = (*often, "--master", "local[6,4]")
        engine = EngineProcess(
            kafka.bootstrap_servers, folder / "home", folder / "queues.yaml", *given
        )
        try:
            engine.wait_ready()
            define_queues(url)
            yield engine, url
            assert engine.terminate() == 0
            assert "Traceback" not in engine.errors()
        finally:
            engine.kill()


def test_each_broker_steps_and_dies_by_itself(engine: tuple[EngineProcess, str]) -> None:
    process, url = engine
    running = traffics(url)
    for traffic in running.values():
        traffic.goes_on(30, 60)
    before = workers(process.family())
    assert sorted(before) == list(BROKERS)
    victim = BROKERS[1]
    before[victim].kill()
    for broker in BROKERS:
        if broker != victim:  # they do not even stop
            running[broker].goes_on(60, 10)
    running[victim].goes_on(60, BACK_S_MAX)
    after = workers(process.family())
    assert {b for b in BROKERS if before[b] != after[b]} == {victim}
    for broker in BROKERS:
        with lakequeue.connect(url, broker=broker) as connection:
            there = {q["name"]: q["broker"] for q in connection.admin().queues()}
            assert there == {f"orders-{name}": name for name in BROKERS}
            known = connection.admin().brokers()
    assert [(b["name"], b["number"], b["state"]) for b in known] == [
        (name, i, "running") for i, name in enumerate(BROKERS)
    ]
    for traffic in running.values():
        traffic.finish_producing()
    for traffic in running.values():
        drain(traffic)


def test_the_page_sees_the_queues_of_all(engine: tuple[EngineProcess, str]) -> None:
    """All brokers are asked at once, and within what a page waits for."""
    url = engine[1]
    with lakequeue.connect(url, broker="c") as connection:
        connection.producer().send("orders-c", b"x")
    sight = Sight(lambda: lakequeue.connect(url))
    seen = sight.look()
    assert (seen.problem, seen.silent) == ("", "")
    assert [queue["name"] for queue in seen.queues] == [f"orders-{name}" for name in BROKERS]
    assert {name: look.usage["broker"]["name"] for name, look in seen.brokers.items()} == {
        name: name for name in BROKERS
    }
    queue, messages = sight.queue("orders-c")
    assert (queue["broker"], queue["why"][0]["code"], len(messages)) == ("c", "no_consumer", 1)
    sight.close()
    with lakequeue.connect(url) as connection:
        connection.admin().purge("orders-c")


def test_h1_a_bridge_loses_and_doubles_nothing_while_both_ends_die(
    engine: tuple[EngineProcess, str],
) -> None:
    process, url = engine
    near, far = BROKERS[0], BROKERS[2]
    sent = {f"over/{n}": [f"over/{n}:{at}" for at in range(60)] for n in range(3)}
    with lakequeue.connect(url, broker=near) as one, lakequeue.connect(url, broker=far) as other:
        other.admin().define(
            {"name": "over", "message_type": "text", "type": "LocalQueue",
             "broker": far, "subscriptions": ["over/>"]}
        )  # fmt: skip
        one.admin().bridge({"name": "over", "to": far, "subscriptions": ["over/>"]})
        producer = one.producer()
        for at in range(60):
            for topic, bodies in sent.items():
                producer.send_async(topic, bodies[at].encode())
            if at == 30:
                running = workers(process.family())
                running[near].kill()
                running[far].kill()
        producer.flush(timeout=BACK_S_MAX)
        got = []
        with other.consumer("over", max_backlog=100, ack_mode="individual") as consumer:
            while len(got) < 180 and (message := consumer.receive(timeout=BACK_S_MAX)):
                message.ack()
                got.append(message.payload.decode())
            assert consumer.receive(timeout=2) is None
        assert {t: [b for b in got if b.startswith(f"{t}:")] for t in sent} == sent
        seen = other.admin().describe_bridge("over")  # asked of another broker than the near one
        assert (seen["from"], seen["taken"], seen["waiting"]) == (near, 180, 0)
        assert one.admin().delete_bridge("over") == 0
        other.admin().delete("over")


def test_h4_a_distributed_queue_loses_and_doubles_nothing_while_two_brokers_die(
    engine: tuple[EngineProcess, str],
) -> None:
    process, url = engine
    near, far = BROKERS[0], BROKERS[3]
    bodies = [f"{at}" for at in range(120)]
    with lakequeue.connect(url, broker=near) as one, lakequeue.connect(url, broker=far) as other:
        one.admin().define(
            {"name": "spread", "message_type": "text", "max_per_subscription_backlog": 20}
        )
        producer = one.producer()
        got = []
        with other.consumer("spread", max_backlog=20, ack_mode="individual") as consumer:
            for at, body in enumerate(bodies):
                producer.send_async("spread", body.encode())
                if at == 60:
                    running = workers(process.family())
                    running[near].kill()
                    running[far].kill()
            producer.flush(timeout=BACK_S_MAX)
            while len(set(got)) < 120 and (message := consumer.receive(timeout=BACK_S_MAX)):
                message.ack()
                assert message.redelivered or message.payload.decode() not in got
                got.append(message.payload.decode())
            assert consumer.receive(timeout=2) is None
        assert sorted(set(got), key=int) == bodies
        seen = other.admin().describe("spread")
        assert (seen["depth"], sorted(seen["brokers"])) == (0, list(BROKERS))
        one.admin().delete("spread")


def test_s5_a_publish_reaches_queues_of_all_brokers_while_two_of_them_die(
    engine: tuple[EngineProcess, str],
) -> None:
    process, url = engine
    entry, hosts = BROKERS[3], BROKERS[:3]
    with lakequeue.connect(url, broker=entry) as connection:
        admin, producer = connection.admin(), connection.producer()
        for host in hosts:
            admin.define(
                {"name": f"all-{host}", "message_type": "text", "type": "LocalQueue",
                 "broker": host, "subscriptions": ["all/>", f"probe/{host}"]}
            )  # fmt: skip
            while True:  # the entry broker hears of a subscription a moment later
                with suppress(Rejected):
                    producer.send(f"probe/{host}", b"probe")
                    break
        sent = []
        for at in range(60):
            sent.append(producer.send_async(f"all/{at % 3}", f"{at}".encode()))
            if at == 30:
                running = workers(process.family())
                running[entry].kill()
                running[hosts[1]].kill()
        producer.flush(timeout=BACK_S_MAX)
        ids = [future.result(0).message_id for future in sent]
        for host in hosts:
            _, *found = admin.browse(f"all-{host}", limit=100)
            assert [m.id for m in found] == ids
            assert [m.payload for m in found] == [f"{at}".encode() for at in range(60)]
            admin.delete(f"all-{host}")


def test_h1_bridges_and_plain_records_follow_a_queue_that_moves(
    engine: tuple[EngineProcess, str],
) -> None:
    """Two queues go from c to a and on to d, and get what comes to c; two that have subscribed to
    the plain records of one, at b and at all brokers, get them too."""
    url = engine[1]
    kafka = url.removeprefix("kafka://")
    ensure_topics(kafka, [], ["fed"])
    plain = KafkaProducer(bootstrap_servers=kafka)
    bodies = [f"{at}" for at in range(90)]
    with lakequeue.connect(url) as connection, lakequeue.connect(url, broker=BROKERS[1]) as near:
        admin, producer = connection.admin(), near.producer()
        local = {"message_type": "text", "type": "LocalQueue", "broker": BROKERS[2]}
        admin.define({"name": "far", "subscriptions": ["far/>"], **local})
        admin.define({"name": "hears", "subscriptions": ["fed"], **local, "broker": BROKERS[1]})
        admin.define({"name": "fed", **local})
        admin.define({"name": "all-hear", "message_type": "text", "subscriptions": ["fed"]})
        near.admin().bridge({"name": "b-c", "to": BROKERS[2], "subscriptions": ["far/>"]})
        sent = []
        for at, body in enumerate(bodies):
            sent.append(producer.send_async("far/x", body.encode()))
            plain.send("fed", body.encode()).get(30)
            if at in (30, 60):
                for name in ("far", "fed"):
                    admin.move_queue(name, broker=BROKERS[0 if at == 30 else 3])
        assert all(future.result(60).message_id for future in sent)
        for name in ("far", "fed"):
            until(lambda name=name: admin.describe(name)["depth"] >= 90, BACK_S_MAX, name)
            assert [m.payload.decode() for m in admin.browse(name, limit=100)] == bodies
            assert admin.describe(name)["broker"] == BROKERS[3]
        for name in ("hears", "all-hear"):
            until(lambda name=name: admin.describe(name)["depth"] >= 90, BACK_S_MAX, name)
            assert [m.payload.decode() for m in admin.browse(name, limit=100)] == bodies
        near.admin().delete_bridge("b-c")
        for name in ("far", "fed", "hears", "all-hear"):
            admin.delete(name)
    plain.close()


def test_q5_the_first_broker_is_removed_and_the_engine_dies_meanwhile(
    engine: tuple[EngineProcess, str],
) -> None:
    """The last test of this engine. The first hands the directory over, and its queues. All of the
    engine is killed in the middle: its next start goes on, and what was sent before, meanwhile and
    after is stored once. One that was added just before knows what a queue has subscribed to since
    its definition, and who keeps the directory now."""
    process, url = engine
    gone, stays, new = *BROKERS[:2], "e"
    kafka = url.removeprefix("kafka://")
    plain = KafkaProducer(bootstrap_servers=kafka)
    fed = NewTopic("fed-all", num_partitions=8, replication_factor=1)
    making = AdminClient({"bootstrap.servers": kafka})
    making.create_topics([fed])["fed-all"].result(30)
    with lakequeue.connect(url) as connection, lakequeue.connect(url, broker=gone) as old:
        admin, producers = connection.admin(), (connection.producer(), old.producer())
        local = {"message_type": "text", "type": "LocalQueue", "broker": gone}
        admin.define({"name": "rest", "subscriptions": ["rest/>"], **local})
        admin.define({"name": "made", "underlying_topic": "fed-all", **local})
        admin.define({"name": "fed-all", "message_type": "text"})
        admin.define({"name": "all", "message_type": "text"})
        admin.subscribe_topic("all", "since/1")
        admin.add_broker(new)
        with lakequeue.connect(url, broker=new) as there, there.producer() as producer:
            since: list[str] = []
            deadline = time.monotonic() + BACK_S_MAX
            while not since and time.monotonic() < deadline:  # it asks the others a moment later
                with suppress(Rejected):
                    since.append(producer.send("since/1", b"x").message_id)
            assert since
            until(lambda: [m.id for m in admin.browse("all")] == since, BACK_S_MAX, "it is there")
        sent: list[Any] = []
        bodies: list[bytes] = []

        def send(count: int) -> None:
            for _ in range(count):
                bodies.append(b"%d" % len(bodies))
                plain.send("fed-all", bodies[-1]).get(30)
                for producer in producers:
                    sent.append(producer.send_async("rest/1", b"%d" % len(sent)))

        send(40)
        # Who asked the engine that dies gets no answer, and waits for it longer than the test does.
        threading.Thread(target=_remove, args=(url, gone, stays), daemon=True).start()
        until(lambda: HomeFolder(process.home).leaving == gone, BACK_S_MAX, "it leaves")
        send(40)
        process.kill()
        process.start().wait_ready()
        names = [*BROKERS[1:], new]
        until(lambda: [b["name"] for b in admin.brokers()] == names, 2 * BACK_S_MAX, "it has left")
        send(40)
        for producer in producers:
            producer.flush(timeout=BACK_S_MAX)
        ids = [future.result(0).message_id for future in sent]
        until(lambda: len(admin.browse("rest", limit=1_000)) >= len(ids), BACK_S_MAX, "all arrive")
        found = {m.id: m.payload for m in admin.browse("rest", limit=1_000)}
        assert found == {one: b"%d" % n for n, one in enumerate(ids)}
        for queue in ("fed-all", "made"):
            until(lambda q=queue: admin.describe(q)["depth"] >= len(bodies), BACK_S_MAX, queue)
            there = Counter(m.payload for m in admin.browse(queue, limit=1_000))
            assert there == Counter(bodies)
        assert {q["name"]: q["broker"] for q in admin.queues()}["rest"] == stays
        assert gone not in {q["broker"] for q in admin.queues()}
        with lakequeue.connect(url, broker=new) as there:
            there.admin().define({"name": "later", "message_type": "text"})
        assert admin.describe("later")["brokers"].keys() == set(names)
        assert [m.id for m in admin.browse("all")] == since
        for why, what in (("was removed from this home before", admin.remove_broker),
                          ("its name is not given again", admin.add_broker)):  # fmt: skip
            with pytest.raises(LakequeueError, match=why):
                what(gone)
    plain.close()


def _remove(url: str, broker: str, to: str) -> None:
    """Ask for it; the engine dies meanwhile."""
    with suppress(LakequeueError), lakequeue.connect(url) as other:
        other.admin().remove_broker(broker, to=to)
