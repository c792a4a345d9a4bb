"""The transport from the view of kombu's users: queues, exchanges, acknowledgements, in memory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import lakequeue
import lakequeue.tasks
import pytest
from client.threaded import Held, Threaded
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import ChannelError
from lakequeue.tasks import engine_link
from lakequeue.tasks.engine_link import Address, acquire, release
from lakequeue.tasks.transient import UNUSED_S, TransientQueues, mark_of
from tasks.noted import Noted


def queue_of(name: str, **options: Any) -> Queue:
    """A queue of the default exchange."""
    return Queue(name, exchange=Exchange(""), routing_key=name, **options)


WORK = queue_of("work")


class KombuBench(Noted):
    """kombu connections to one engine in the process, and the engine's own API."""

    def __init__(self, stack: ExitStack) -> None:
        super().__init__("kombu")
        self._stack = stack
        stack.enter_context(self.engine)
        self.url = f"lakequeue+memory://{self.name}"

    def connect(self, **options: Any) -> Connection:
        return self._stack.enter_context(Connection(self.url, transport_options=options))

    def publish(self, *bodies: Any, queue: Queue = WORK, **options: Any) -> None:
        with self.connect() as connection:
            producer = Producer(connection.channel())
            for body in bodies:
                producer.publish(body, routing_key=queue.name, declare=[queue], **options)

    def describe(self, queue: str = "work") -> dict[str, Any]:
        return super().describe(queue)

    @contextmanager
    def holding(self, *queues: Queue, prefetch: int = 0) -> Iterator[tuple[Connection, list[Any]]]:
        """A consumer of these queues, and the messages that it received."""
        held: list[Any] = []
        with self.connect() as connection:
            channel = connection.channel()
            channel.basic_qos(0, prefetch, False)
            with Consumer(channel, queues, callbacks=[lambda _, message: held.append(message)]):
                yield connection, held


@pytest.fixture
def bench() -> Iterator[KombuBench]:
    with ExitStack() as stack:
        yield KombuBench(stack)


def drain(connection: Connection) -> None:
    """Wait until no more messages come."""
    with suppress(TimeoutError):
        while True:
            connection.drain_events(timeout=0.05)


def consume(
    connection: Connection, queue: Queue = WORK, prefetch: int = 0,
    on_message: Callable[[Any], Any] = lambda message: message.ack(),
) -> list[Any]:  # fmt: skip
    """The bodies of the available messages."""
    bodies = []
    channel = connection.channel()
    channel.basic_qos(0, prefetch, False)

    def callback(body: Any, message: Any) -> None:
        bodies.append(body)
        on_message(message)

    with Consumer(channel, [queue], callbacks=[callback]):
        drain(connection)
    channel.close()
    return bodies


def test_the_package_registers_the_transport_without_an_import() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    (target,) = project["project"]["entry-points"]["kombu.serializers"].values()
    module, _, name = target.partition(":")
    assert len(getattr(import_module(module), name)) == 4  # the form of kombu's `register`
    assert Connection("lakequeue+kafka://here:1").transport.driver_type == "lakequeue"


@pytest.mark.parametrize(
    "program",
    ["import kombu; kombu.Connection; import lakequeue.tasks",
     "import lakequeue.tasks, kombu",
     "import sys; sys.modules['kombu'] = None; import lakequeue.tasks.dramatiq_broker"],
    ids=["kombu first", "kombu later", "without kombu"],
)  # fmt: skip
def test_it_is_imported_in_any_order(program: str) -> None:
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_a_message_is_received_as_published(bench: KombuBench) -> None:
    bench.publish({"a": "ü"}, headers={"k": 1})
    bench.publish(b"\xff\x00", serializer="pickle")
    seen: list[Any] = []
    with bench.connect() as connection:
        channel = connection.channel()
        for _ in range(2):
            message = channel.basic_get("work")
            message.accept = {"application/json", "application/x-python-serialize"}
            seen.append((message.payload, message.headers, message.delivery_info["redelivered"]))
            message.ack()
        assert channel.basic_get("work") is None
    assert seen == [({"a": "ü"}, {"k": 1}, False), (b"\xff\x00", {}, False)]
    assert bench.describe()["depth"] == 0


def test_properties_unknown_to_amqp_are_dropped(bench: KombuBench) -> None:
    bench.publish(1, reply_to="there", correlation_id="c", signal=object())
    with bench.connect() as connection:
        properties = connection.channel().basic_get("work").properties
    assert (properties["reply_to"], properties["correlation_id"]) == ("there", "c")
    assert "signal" not in properties


def test_each_task_is_acknowledged_alone(bench: KombuBench) -> None:
    bench.publish(1, 2, 3)
    with bench.connect() as connection:
        consume(connection, on_message=lambda _: None)
        assert bench.describe()["ready"] == 3  # its channel is closed
    with bench.holding(WORK) as (connection, held):
        connection.drain_events(timeout=1)
        held[1].ack()
        assert bench.describe()["leased"] == 2


def test_requeue_keeps_the_position_and_reject_makes_a_dead_message(bench: KombuBench) -> None:
    dead = queue_of("work", queue_arguments={"dead_message_queue": "dead"})
    bench.publish(1, 2, queue=dead)
    again = iter([True, False, False])

    def settle(message: Any) -> None:
        if message.payload == 2:
            message.reject()
        elif next(again):
            assert not message.delivery_info["redelivered"]
            message.requeue()
        else:
            assert message.delivery_info["redelivered"]
            message.ack()

    with bench.connect() as connection:
        assert consume(connection, dead, prefetch=1, on_message=settle) == [1, 1, 2]
    assert [m.headers["lq-dead-reason"] for m in bench.admin.browse("dead")] == ["rejected"]


def test_a_task_that_kills_each_worker_ends_in_the_dead_message_queue(bench: KombuBench) -> None:
    options = {"queues": {"max_deliveries": 2, "dead_message_queue": "dead"}}
    with bench.connect(**options) as connection:
        Producer(connection.channel()).publish(1, routing_key="work", declare=[WORK])
    for _ in range(2):
        with bench.connect() as connection:
            assert consume(connection, on_message=lambda _: None) == [1]
    assert bench.describe()["depth"] == 0
    assert bench.describe("dead")["depth"] == 1


def test_prefetch_counts_over_all_queues_of_a_channel(bench: KombuBench) -> None:
    other = queue_of("other")
    bench.publish(1, 2, 3)
    bench.publish(4, 5, 6, queue=other)
    with bench.holding(WORK, other, prefetch=2) as (connection, held):
        drain(connection)
        assert len(held) == 2
        held[0].ack()
        connection.drain_events(timeout=1)
        assert len(held) == 3


def test_a_cancelled_consumer_can_still_acknowledge(bench: KombuBench) -> None:
    bench.publish(1, 2)
    with bench.connect() as connection:
        held: list[Any] = []
        channel = connection.channel()
        channel.basic_qos(0, 1, False)
        with Consumer(channel, [WORK], callbacks=[lambda _, message: held.append(message)]):
            connection.drain_events(timeout=1)
        assert bench.describe()["leased"] == 1
        held[0].ack()
        assert bench.describe()["depth"] == 1
        assert bench.describe()["consumers"] == []


def test_expiration_is_the_messages_ttl_and_x_message_ttl_the_queues(bench: KombuBench) -> None:
    brief = queue_of("brief", message_ttl=5)
    bench.publish(1, expiration=2)
    bench.publish(2, queue=brief)
    bench.engine.advance("3s")
    assert bench.describe()["depth"] == 0
    assert bench.describe("brief")["depth"] == 1
    bench.engine.advance("3s")
    assert bench.describe("brief")["depth"] == 0


@pytest.mark.parametrize(
    ("kind", "binding", "taken", "not_taken"),
    [
        ("direct", "a.b", ["a.b"], ["a", "a.b.c", "a.*"]),
        ("direct", "", [""], ["a"]),
        ("fanout", "", ["", "a", "a.b"], []),
        ("topic", "a.*", ["a.b", "a.x-1@host"], ["a", "a.b.c"]),
        ("topic", "a.#", ["a", "a.b", "a.b.c"], ["b", "ab"]),
        ("topic", "#.c", ["c", "a.c", "a.b.c"], ["a.d", "ac"]),
        ("topic", "#", ["", "a", "a/b.c"], []),
    ],
)
def test_bindings(
    bench: KombuBench, kind: str, binding: str, taken: list[str], not_taken: list[str]
) -> None:
    exchange = Exchange("ex.change/1", type=kind)
    other = Exchange("other", type=kind)
    queue = Queue("bound", exchange=exchange, routing_key=binding)
    with bench.connect() as connection:
        channel = connection.channel()
        queue(channel).declare()
        producer = Producer(channel)
        for key in taken + not_taken:
            producer.publish([key], exchange=exchange, routing_key=key, declare=[exchange])
            producer.publish("other", exchange=other, routing_key=key, declare=[other])
        assert consume(connection, queue) == [[key] for key in taken]
        queue(channel).unbind_from(exchange, binding)
        producer.publish([taken[0]], exchange=exchange, routing_key=taken[0])
        assert consume(connection, queue) == []


def test_fanout_reaches_every_queue_and_transient_queues_are_deleted(bench: KombuBench) -> None:
    exchange = Exchange("all", type="fanout")
    queues = [Queue(f"q{n}", exchange=exchange, auto_delete=True) for n in range(2)]
    with bench.connect() as connection:
        channel = connection.channel()
        heard: list[Any] = []
        with Consumer(channel, queues, callbacks=[lambda body, m: heard.append(body)], no_ack=True):
            Producer(channel, exchange=exchange).publish("x", delivery_mode=1)
            while len(heard) < 2:
                connection.drain_events(timeout=1)
        assert heard == ["x", "x"]
        assert bench.queues() == []


def test_C3_closing_does_not_ask_an_engine_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait 30 s for each transient queue. Other processes delete them."""
    monkeypatch.setattr("lakequeue.client.consumer.consumer.RETURN_S", 0.2)
    bench = Threaded(Held)
    queues = TransientQueues(bench.connection, looks=False)
    for name in ("a", "b"):
        bench.define(name, subscriptions=[mark_of(UNUSED_S)])
        queues.claim(name)
    bench.wire.let_go.clear()
    queues.close([])
    assert bench.wire.said("describe") == []
    assert not any(map(queues.claims, "ab"))
    bench.wire.let_go.set()
    bench.connection.close()


def test_a_transient_queue_stays_while_any_channel_uses_it(bench: KombuBench) -> None:
    """A sending channel declares the queue of replies too, and may be closed before."""
    replies = queue_of("replies", auto_delete=True)
    with bench.connect() as connection, bench.connect() as other:
        sender, channel = connection.channel(), other.channel()
        replies(sender).declare()
        with Consumer(channel, [replies], callbacks=[lambda body, m: m.ack()]):
            sender.close()
            assert bench.queues() == ["replies"]
            Producer(channel).publish(1, routing_key="replies")
            other.drain_events(timeout=1)
        assert bench.queues() == []


def test_a_process_that_exits_without_closing_leaves_no_transient_queue(bench: KombuBench) -> None:
    """Like a script that waits for a result of Celery's: one channel declares, another consumes."""
    replies = queue_of("replies", auto_delete=True)
    with bench.connect() as connection, bench.connect() as other:
        replies(connection.channel()).declare()
        consumer = Consumer(other.channel(), [replies], callbacks=[print])
        consumer.consume()
        engine_link._at_exit()
        assert bench.queues() == []


def test_other_processes_delete_the_queues_of_a_killed_one(bench: KombuBench) -> None:
    """Its queue has no consumer once its heartbeats are missed; `job/celery_day.py` kills some."""
    rare = queue_of("rare", expires=600)
    used = queue_of("used", exclusive=True)
    link = acquire(Address.of(bench.url.removeprefix("lakequeue+"), {}))
    link.claim("left", {})
    link.transient.forget("left")  # as the engine does for a lost session
    bench.publish(1)
    with bench.connect() as connection:
        channel = connection.channel()
        for queue in (rare, used):
            queue(channel).declare()

        def names_after(look_s: float) -> list[str]:
            link.transient.look(look_s)
            return bench.queues()

        assert names_after(0) == ["left", "rare", "used", "work"]  # it may come into use now
        assert names_after(UNUSED_S) == ["rare", "used", "work"]
        assert names_after(600) == ["used", "work"]
        assert names_after(10_000) == ["used", "work"]
    release(link)
    assert bench.queues() == ["work"]


def test_sizes_purge_and_passive_declarations(bench: KombuBench) -> None:
    bench.publish(1, 2)
    with bench.connect() as connection:
        channel = connection.channel()
        assert channel.queue_declare("work", passive=True).message_count == 2
        assert channel.queue_purge("work") == 2
        assert WORK(channel).queue_declare(passive=True).message_count == 0
        with pytest.raises(ChannelError, match="no queue 'absent'"):
            channel.queue_declare("absent", passive=True)
        channel.queue_delete("work")
        assert bench.queues() == []


def test_a_queue_defined_by_the_operator_is_not_changed(bench: KombuBench) -> None:
    bench.admin.define({"name": "work", "message_type": "json", "max_deliveries": 7})
    bench.publish(1)
    kept = bench.describe()["definition"]
    assert (kept["max_deliveries"], kept["priority"]) == (7, None)


def test_a_deleted_queue_is_recreated_for_a_task(bench: KombuBench) -> None:
    with bench.connect() as connection:
        producer = Producer(connection.channel())
        producer.publish(1, routing_key="work", declare=[WORK])
        bench.admin.delete("work")
        producer.publish(2, routing_key="work")
        assert bench.describe()["depth"] == 1
        producer.publish(3, routing_key="nobody's")  # it is gone, as on RabbitMQ


def test_a_consumer_of_a_deleted_queue_is_cancelled(bench: KombuBench) -> None:
    with bench.holding(WORK) as (connection, _):
        bench.admin.delete("work")
        with pytest.raises(connection.connection_errors):
            connection.drain_events(timeout=1)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.05)


def test_a_memory_engines_time_passes_while_a_call_waits(bench: KombuBench) -> None:
    bench.publish(1, headers={"eta": "2000-01-01T00:00:00+00:00"})
    started = bench.engine.now()
    with bench.connect() as connection:
        consume(connection)
        time.sleep(0.2)
        consume(connection)
    assert (bench.engine.now() - started).total_seconds() >= 0.2


@pytest.mark.parametrize("url", ["kafka://", "rabbit://host", "kafka:host"])
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(lakequeue.ConfigError, match="allowed are 'lakequeue"):
        Connection(f"lakequeue+{url}" if "://" in url else url, transport="lakequeue").connect()


def _almost(**changes: Any) -> bytes:
    """A payload with the fields of a kombu message that no kombu client can have written."""
    properties = {"delivery_info": {}, "body_encoding": "utf-8"} | changes.pop("properties", {})
    fields: dict[str, Any] = {
        "body": "[]", "content-type": "application/json", "content-encoding": "utf-8",
        "headers": {}, "properties": properties,
    }  # fmt: skip
    return json.dumps(fields | changes).encode()


@pytest.mark.parametrize(
    "payload",
    [
        b'{"plain": true}', b"[" * 200_000, _almost(body=1), _almost(headers=[]),
        _almost(headers=None), _almost(properties={"delivery_info": "here"}),
        _almost(properties={"body_encoding": "x"}),
        _almost(body="abc", properties={"body_encoding": "base64"}),
    ],
    ids=["plain", "deep", "body", "list of headers", "no headers", "info", "encoding", "base64"],
)  # fmt: skip
def test_foreign_messages_are_handed_over_as_the_body(bench: KombuBench, payload: bytes) -> None:
    """An error here would end the worker, and then the next one, as the message comes again."""
    with bench.connect() as connection:
        channel = connection.channel()
        channel.queue_declare("work")
        bench.engine.producer().send("work", payload, headers={"by": "hand"})
        message = channel.basic_get("work")
        assert (message.body, message.headers) == (payload, {"by": "hand"})
        if payload == b'{"plain": true}':
            assert message.payload == {"plain": True}
        message.ack()
    assert bench.describe()["depth"] == 0
