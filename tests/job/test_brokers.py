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
from job.brokers import BROKERS, define_queues, traffics, workers
from job.processes import EngineProcess, until
from job.traffic import drain
from kafka import KafkaProducer
from lakequeue.client.connection import Connection
from lakequeue.client.kafka_library import open_kafka
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
    """Four brokers, one of them from the start on; on each a queue `orders-<name>`."""
    folder = tmp_path_factory.mktemp("brokers")
    (folder / "queues.yaml").write_text("brokers: [a]\n")
    with EmbeddedKafka(folder / "kafka") as kafka:
        url = f"kafka://{kafka.bootstrap_servers}"
        given = ("--set", "lakequeue.batch_s=5", "--master", "local[5,4]")
        engine = EngineProcess(
            kafka.bootstrap_servers, folder / "home", folder / "queues.yaml", *given
        )
        try:
            engine.wait_ready()
            with lakequeue.connect(url) as connection:
                for name in BROKERS[1:]:
                    connection.admin().add_broker(name)
            define_queues(url)
            yield engine, url
            assert engine.terminate() == 0
            assert "Traceback" not in engine.errors()
        finally:
            engine.kill()


def test_each_broker_steps_by_itself(engine: tuple[EngineProcess, str]) -> None:
    process, url = engine
    running = traffics(url)
    for traffic in running.values():
        traffic.goes_on(30, 60)
    assert sorted(workers(process.family())) == list(BROKERS)
    for traffic in running.values():
        drain(traffic)
    for broker in BROKERS:
        with lakequeue.connect(url, broker=broker) as connection:
            there = {q["name"]: q["broker"] for q in connection.admin().queues()}
            assert there == {f"orders-{name}": name for name in BROKERS}
            known = connection.admin().brokers()
    assert [(b["name"], b["number"], b["state"]) for b in known] == [
        (name, i, "running") for i, name in enumerate(BROKERS)
    ]


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


def test_a_broker_more_than_there_are_slots_is_refused(engine: tuple[EngineProcess, str]) -> None:
    with lakequeue.connect(engine[1]) as connection:
        admin = connection.admin()
        with pytest.raises(LakequeueError, match=r"runs 5 tasks at once, and 5 brokers and the ta"):
            admin.add_broker("e")
        with pytest.raises(LakequeueError, match=r"'b' is there already"):
            admin.add_broker("b")
        with pytest.raises(LakequeueError, match=r"'a/b': a name must be"):
            admin.add_broker("a/b")
        assert [b["name"] for b in admin.brokers()] == list(BROKERS)


def test_a_brokers_worker_dies_and_the_others_go_on(engine: tuple[EngineProcess, str]) -> None:
    process, url = engine
    running = traffics(url)
    for traffic in running.values():
        traffic.goes_on(30, 60)
    before = workers(process.family())
    victim = BROKERS[1]
    before[victim].kill()
    begun = time.monotonic()
    for broker in BROKERS:
        if broker != victim:  # they do not even stop
            running[broker].goes_on(60, 10)
    running[victim].goes_on(60, BACK_S_MAX - (time.monotonic() - begun))
    after = workers(process.family())
    assert {b for b in BROKERS if before[b] != after[b]} == {victim}
    for traffic in running.values():
        drain(traffic)


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


def test_h4_a_queue_moves_to_another_broker_while_it_is_in_use(
    engine: tuple[EngineProcess, str],
) -> None:
    _, url = engine
    bodies = [f"{at}" for at in range(200)]
    with lakequeue.connect(url) as connection:
        admin = connection.admin()
        admin.define(
            {"name": "goes", "message_type": "text", "type": "LocalQueue", "broker": BROKERS[1]}
        )
        producer = connection.producer()
        sent = [producer.send_async("goes", body.encode()) for body in bodies[:100]]
        got = []
        with connection.consumer("goes", ack_mode="individual") as consumer:
            for at in range(200):
                if at == 20:
                    admin.move_queue("goes", broker=BROKERS[2])
                if at < 100:
                    sent.append(producer.send_async("goes", bodies[100 + at].encode()))
                while (message := consumer.receive(timeout=BACK_S_MAX)) is not None:
                    message.ack()
                    if message.payload.decode() not in got:
                        got.append(message.payload.decode())
                        break
                    assert message.redelivered
        assert all(future.result(60).message_id for future in sent), "each is stored"
        assert got == bodies
        assert {q["name"]: q["broker"] for q in admin.queues()}["goes"] == BROKERS[2]
        admin.delete("goes")


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


def test_x5_x6_dead_messages_cross_brokers_and_go_back_while_both_die(
    engine: tuple[EngineProcess, str],
) -> None:
    process, url = engine
    near, far = BROKERS[1:3]
    with lakequeue.connect(url) as connection:
        admin, producer = connection.admin(), connection.producer()
        local = {"message_type": "text", "type": "LocalQueue"}
        admin.define({**local, "name": "dying", "broker": near, "dead_message_queue": "dead"})
        admin.define({**local, "name": "dead", "broker": far})
        sent: list[str] = []
        for victim in (far, near):
            sent += [producer.send("dying", b"x", ttl="200ms").message_id for _ in range(20)]
            workers(process.family())[victim].kill()
        there, deadline = list[str](), time.monotonic() + BACK_S_MAX
        while len(there) < len(sent) and time.monotonic() < deadline:
            with suppress(LakequeueError):  # a broker that is away does not answer
                there = [m.id for m in admin.browse("dead", limit=1_000)]
        assert there == sent

        def counted() -> bool:
            return bool(admin.describe("dying")["counters"]["dead_lettered"] == len(sent))

        until(counted, BACK_S_MAX, "all are counted")

        for victim in (near, far):
            asking = threading.Thread(target=_redrive, args=(url,))
            asking.start()
            workers(process.family())[victim].kill()
            asking.join()

        def back() -> bool:
            with suppress(LakequeueError):  # what was asked while a broker was away may be left
                admin.redrive("dead")
            with suppress(LakequeueError):
                return not admin.browse("dead") and len(admin.browse("dying", limit=99)) >= 40
            return False

        until(back, BACK_S_MAX, "all are back")
        found = admin.browse("dying", limit=99)
        assert [(m.id, m.payload) for m in found] == [(i, b"x") for i in sent]
        counters = [admin.describe(name)["counters"] for name in ("dead", "dying")]
        assert counters[0]["redriven"] == len(sent)
        assert counters[1]["spooled"] == 2 * len(sent)
        for name in ("dying", "dead"):
            admin.delete(name)


def _redrive(url: str) -> None:
    """Ask for what is dead; a broker that dies meanwhile may not answer in time."""
    with lakequeue.connect(url) as connection, suppress(LakequeueError):
        connection.admin().redrive("dead")


def test_a_broker_is_removed_while_clients_use_it(engine: tuple[EngineProcess, str]) -> None:
    """From here on one broker of this engine is no more. It dies while it leaves."""
    process, url = engine
    gone = BROKERS[3]
    running = traffics(url)
    with lakequeue.connect(url) as connection, lakequeue.connect(url, broker=gone) as old:
        admin, producer = connection.admin(), old.producer()
        for name in BROKERS[1:3]:
            running[name].goes_on(30, 60)
        with pytest.raises(LakequeueError, match="is not of this home"):
            admin.remove_broker("nobody")
        admin.define(
            {"name": "probes", "message_type": "text", "type": "LocalQueue",
             "broker": BROKERS[1], "subscriptions": ["probe/>"]}
        )  # fmt: skip
        while True:  # a broker hears of a subscription a moment later
            with suppress(Rejected):
                first = producer.send("probe/1", b"1").message_id
                break
        admin.define({"name": "shared", "message_type": "json", "barrier_expression": "/n = 3"})
        held = [producer.send("shared", b'{"n": %d}' % n).message_id for n in range(5)]
        sent: list[str] = [first]
        ends = threading.Event()

        def send() -> None:
            while not ends.wait(PAUSE_S):
                sent.append(producer.send("probe/1", b"x").message_id)

        kafka = url.removeprefix("kafka://")
        plain = KafkaProducer(bootstrap_servers=kafka)
        topic = NewTopic("fed-all", num_partitions=8, replication_factor=1)
        making = AdminClient({"bootstrap.servers": kafka})
        making.create_topics([topic])["fed-all"].result(30)
        admin.define({"name": "fed-all", "message_type": "text"})
        made = {"message_type": "text", "type": "LocalQueue", "underlying_topic": "fed-all"}
        admin.define({"name": "made", "broker": gone, **made})
        for at in range(40):
            plain.send("fed-all", b"%d" % at).get(30)
        fed = 40

        def feed() -> None:
            nonlocal fed
            while not ends.wait(PAUSE_S):
                plain.send("fed-all", b"%d" % fed).get(30)
                fed += 1

        feeding = threading.Thread(target=feed, daemon=True)
        feeding.start()
        sending = threading.Thread(target=send, daemon=True)
        sending.start()
        killing = threading.Timer(1.0, workers(process.family())[gone].kill)
        killing.start()
        moved = admin.remove_broker(gone, to=BROKERS[1])
        killing.join()
        left = {"vpn": "default", "queue": f"orders-{gone}", "broker": BROKERS[1]}
        assert left in moved
        assert admin.describe(f"orders-{gone}")["broker"] == BROKERS[1]
        before = len(sent)
        assert [b["name"] for b in admin.brokers()] == list(BROKERS[:3])
        deadline = time.monotonic() + BACK_S_MAX  # each may be sent twice (P2)
        while len(sent) < before + 20 and time.monotonic() < deadline:
            time.sleep(0.1)
        ends.set()
        sending.join(BACK_S_MAX)
        assert len(sent) >= before + 20
        # A receipt says that all brokers agree; the last of them hears of that a moment later.
        there, deadline = list[str](), time.monotonic() + BACK_S_MAX
        while len(there) < len(sent) and time.monotonic() < deadline:
            there = [m.id for m in admin.browse("probes", limit=100_000)]
            time.sleep(PAUSE_S)
        assert there == sent
        assert [m.id for m in admin.browse("shared")] == held
        with connection.consumer("shared", ack_mode="auto") as consumer:  # O3: of all brokers
            messages = [consumer.receive(timeout=BACK_S_MAX) for _ in held]
        assert [(m.id, m.is_barrier) for m in messages if m is not None] == [
            (one, n == 3) for n, one in enumerate(held)
        ]
        feeding.join(BACK_S_MAX)
        plain.close()
        for queue in ("fed-all", "made"):
            bodies: list[bytes] = []
            deadline = time.monotonic() + BACK_S_MAX
            while len(bodies) < fed and time.monotonic() < deadline:
                time.sleep(0.2)
                bodies = [m.payload for m in admin.browse(queue, limit=100_000)]
            assert Counter(bodies) == Counter({b"%d" % at: 1 for at in range(fed)})
        for why, what in (("was removed from this home before", admin.remove_broker),
                          ("its name is not given again", admin.add_broker)):  # fmt: skip
            with pytest.raises(LakequeueError, match=why):
                what(gone)
        old.admin().delete("probes")
    for traffic in running.values():
        drain(traffic)


def test_the_engine_dies_while_a_broker_is_removed(engine: tuple[EngineProcess, str]) -> None:
    """From here on there are two. All of the engine is killed in the middle of a removal: its next
    start goes on, and what was sent to that broker before, meanwhile and after is stored once."""
    process, url = engine
    gone, stays = BROKERS[2], BROKERS[1]
    with lakequeue.connect(url) as connection, lakequeue.connect(url, broker=gone) as old:
        admin, producer = connection.admin(), old.producer()
        admin.define(
            {"name": "last", "message_type": "text", "type": "LocalQueue",
             "broker": stays, "subscriptions": ["last/>"]}
        )  # fmt: skip
        sent = []
        while not sent:  # a broker hears of a subscription a moment later
            with suppress(Rejected):
                sent.append(producer.send("last/1", b"0").message_id)
        asked = producer.send_async

        def remove() -> None:
            with suppress(LakequeueError), lakequeue.connect(url) as other:
                other.admin().remove_broker(gone)

        removing = threading.Thread(target=remove, daemon=True)
        removing.start()
        open_ = [asked("last/1", b"%d" % at) for at in range(1, 50)]
        until(lambda: HomeFolder(process.home).leaving == gone, BACK_S_MAX, "it leaves")
        open_ += [asked("last/1", b"%d" % at) for at in range(50, 100)]
        process.kill()
        process.start().wait_ready()
        names = [BROKERS[0], stays]
        until(lambda: [b["name"] for b in admin.brokers()] == names, 2 * BACK_S_MAX, "it has left")
        open_ += [asked("last/1", b"%d" % at) for at in range(100, 150)]
        producer.flush(timeout=BACK_S_MAX)
        sent += [future.result(0).message_id for future in open_]
        until(lambda: len(admin.browse("last", limit=1_000)) >= 150, BACK_S_MAX, "all are there")
        found = admin.browse("last", limit=1_000)
        assert [m.id for m in found] == sent
        assert [m.payload for m in found] == [b"%d" % at for at in range(150)]
        removing.join(BACK_S_MAX)


def test_the_first_broker_is_removed(engine: tuple[EngineProcess, str]) -> None:
    """The last test of this engine. The first hands the directory over, and dies while it leaves;
    who stays goes on with what it read, also for those that had gone before, and at the next start
    too. One that was added just before knows what a queue has subscribed to since its definition,
    and who keeps the directory now."""
    process, url = engine
    gone, stays, new = *BROKERS[:2], "e"
    transport = open_kafka(url.removeprefix("kafka://"), "late")
    with (
        lakequeue.connect(url) as connection,
        Connection(transport, "default", "late", number=BROKERS.index("c")) as late,
    ):
        admin, producers = connection.admin(), (connection.producer(), late.producer())
        admin.define({"name": "rest", "message_type": "text", "type": "LocalQueue",
                      "broker": gone, "subscriptions": ["rest/>"]})  # fmt: skip
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

        def send(n: int) -> None:
            for _ in range(n):
                for producer in producers:
                    sent.append(producer.send_async("rest/1", b"%d" % len(sent)))
                time.sleep(PAUSE_S)

        send(20)
        killing = threading.Timer(1.0, workers(process.family())[gone].kill)
        killing.start()
        sending = threading.Thread(target=send, args=(150,))
        sending.start()
        moved = admin.remove_broker(gone, to=stays)
        assert {"vpn": "default", "queue": "rest", "broker": stays} in moved
        killing.join()
        sending.join()
        assert [b["name"] for b in admin.brokers()] == [stays, new]
        with lakequeue.connect(url, broker=new) as there:
            there.admin().define({"name": "later", "message_type": "text"})
        assert admin.describe("later")["brokers"].keys() == {stays, new}
        process.kill()
        process.start().wait_ready()
        send(20)
        for producer in producers:
            producer.flush(timeout=BACK_S_MAX)
        ids = [future.result(0).message_id for future in sent]
        until(lambda: len(admin.browse("rest", limit=1_000)) >= len(ids), BACK_S_MAX, "all arrive")
        found = {m.id: m.payload for m in admin.browse("rest", limit=1_000)}
        assert found == {one: b"%d" % n for n, one in enumerate(ids)}
        assert gone not in {q["broker"] for q in admin.queues()}
        assert [m.id for m in admin.browse("all")] == since
