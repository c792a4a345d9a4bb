"""The transport as over Kafka: the client's threads read, a pipe wakes the worker's loop."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lakequeue
import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.asynchronous import Hub, set_event_loop
from kombu.exceptions import OperationalError
from kombu.pools import producers
from lakequeue.tasks import engine_link
from lakequeue.tasks import flow as flow_module
from lakequeue.tasks.flow import Flow
from tasks.noted import WAIT_S

from client import threaded

WORK = Queue("work", exchange=Exchange(""), routing_key="work")
_numbers = itertools.count(1)


class LoopBench:
    """An engine, and a kombu connection to it with threads."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.engine = threaded.engine()
        self.admin = threaded.connect(self.engine, "admin")[0].admin()
        self.opened: list[Any] = []
        self.url = f"lakequeue+kafka://bench-{next(_numbers)}:1"
        self.wire: Any = threaded.Wire(self.engine)  # of the last one
        patch.setattr(engine_link, "connect", self.open)

    def open(self, *_: Any, **__: Any) -> Any:
        connection, self.wire = threaded.connect(self.engine, kind=type(self.wire))
        self.opened.append(connection)
        return connection

    def depth(self, queue: str = "work") -> int:
        return self.admin.describe(queue)["depth"]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> LoopBench:
    return LoopBench(monkeypatch)


def publish(channel: Any, *bodies: Any, queue: Queue = WORK, **options: Any) -> None:
    producer = Producer(channel)
    for body in bodies:
        producer.publish(body, routing_key=queue.name, declare=[queue], **options)


@contextmanager
def consuming(
    connection: Connection, prefetch: int, *queues: Queue
) -> Iterator[tuple[Any, list[Any]]]:
    """In a loop: a function that runs it until a condition holds, and the messages that came."""
    hub, channel, held = Hub(), connection.channel(), list[Any]()

    def turn(until: Callable[[], Any]) -> None:
        deadline = time.monotonic() + WAIT_S
        loop = hub.create_loop()
        hub.call_repeatedly(0.05, lambda: None)  # it checks its timers
        while not until():
            assert time.monotonic() < deadline
            next(loop)

    channel.basic_qos(0, prefetch, False)
    connection.register_with_event_loop(hub)
    with Consumer(channel, queues, callbacks=[lambda _, message: held.append(message)]):
        yield turn, held
    connection.transport.unregister_from_event_loop(connection, hub)
    hub.close()


def test_messages_and_free_room_wake_the_loop(bench: LoopBench) -> None:
    with Connection(bench.url) as sender, Connection(bench.url) as connection:
        with consuming(connection, 2, WORK) as (turn, held):
            sending = threading.Thread(target=publish, args=(sender.channel(), *range(6)))
            sending.start()
            turn(lambda: len(held) == 2)
            sending.join()
            assert [message.payload for message in held] == [0, 1]
            for n in range(2, 6):
                # From another thread, as the pool's: the loop learns of the free room.
                threading.Thread(target=held[n - 2].ack).start()
                turn(lambda n=n: len(held) == n + 1)
            for message in held[4:]:
                message.ack()
    assert bench.depth() == 0


def test_messages_behind_another_queues_task_go_to_other_workers(bench: LoopBench) -> None:
    other = Queue("other", exchange=Exchange(""), routing_key="other")
    with Connection(bench.url) as connection:
        for queue in (WORK, other):
            publish(connection.channel(), queue.name, queue=queue)
        with consuming(connection, 1, WORK, other) as (turn, held):
            turn(lambda: held)
            waiting = "other" if held[0].payload == "work" else "work"

            def free() -> bool:
                described = bench.admin.describe(waiting)
                return described["ready"] == 1 and described["consumers"][0]["backlog"] == 0

            turn(free)
            held[0].ack()
            turn(lambda: len(held) == 2)
            assert not held[1].delivery_info["redelivered"]
            held[1].ack()


def test_connections_of_a_process_share_one_and_a_fork_opens_its_own(bench: LoopBench) -> None:
    with Connection(bench.url) as one, Connection(bench.url) as two:
        one.connect(), two.connect()
        assert len(bench.opened) == 1
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            try:
                said = f"{one.transport.verify_connection(one)} {len(engine_link._links)}"
                os.write(writer, said.encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reader, 100) == b"False 0"
        os.close(reader), os.close(writer)
    assert not bench.opened[0].is_open


def test_without_confirmation_a_publish_is_sent_before_the_end(bench: LoopBench) -> None:
    with Connection(bench.url, transport_options={"confirm_publish": False}) as connection:
        publish(connection.channel(), *range(50))
    assert bench.depth() == 50


def test_C3_a_process_ends_soon_while_the_engine_is_away(
    bench: LoopBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited 30 s for each address."""
    monkeypatch.setattr(engine_link, "EXIT_S", 0.2)
    monkeypatch.setattr(engine_link, "_links", {})
    bench.wire = threaded.Held(bench.engine)
    waits, flush, wires = list[float](), lakequeue.Producer.flush, list[Any]()

    def note_wait(producer: Any, timeout: float = 30.0) -> None:
        waits.append(timeout)
        flush(producer, timeout)

    with ExitStack() as stack:
        for vpn in ("default", "other"):
            options = {"confirm_publish": False, "client_name": vpn}
            connection = Connection(f"{bench.url}/default", transport_options=options)
            channel = stack.enter_context(connection).channel()
            Queue(vpn, auto_delete=True)(channel).declare()
            wires.append(bench.wire)
            bench.wire.let_go.clear()
            publish(channel, 1, queue=Queue(vpn, auto_delete=True))
        said = [wire.said("describe", "set_backlog") for wire in wires]
        with monkeypatch.context() as patch:
            patch.setattr(lakequeue.Producer, "flush", note_wait)
            engine_link._at_exit()
        asked = [wire.said("describe", "set_backlog") for wire in wires]
        for wire in wires:
            wire.let_go.set()
    assert 0 < waits[0] <= 0.2
    assert waits[1:] == [0]
    assert asked == said


def test_messages_published_by_threads_at_once_share_a_record(bench: LoopBench) -> None:
    bench.wire = threaded.Slow(bench.engine)
    with Connection(bench.url) as connection, ThreadPoolExecutor(5) as threads:
        publish(connection.channel(), "alone")  # at once
        sent = [threads.submit(publish, connection.channel(), "together") for _ in range(5)]
        producer = connection.transport.link.producer
        threaded.wait_for(lambda: len(producer.unacknowledged()) == 5, WAIT_S)
        assert bench.wire.sizes == [1]
        bench.wire.acked()
        for one in sent:
            one.result(WAIT_S)
        assert bench.wire.sizes == [1, 5]
        assert bench.depth() == 6
        bench.wire.acked()


def test_a_publish_waits_for_its_answer_as_its_policy_allows(
    bench: LoopBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While an engine restarts. Celery rejects a task whose retry cannot be sent, for good."""
    bench.wire = threaded.Held(bench.engine)
    monkeypatch.setattr(engine_link, "CONFIRM_S", 0.1)

    def publish(body: str, most: int | None) -> None:
        options = {"retry": True, "retry_policy": {"max_retries": most}}
        with pool.acquire(block=True) as producer:
            producer.publish(body, routing_key="work", declare=[WORK], **options)

    with Connection(bench.url) as connection, ThreadPoolExecutor(1) as threads:
        pool = producers[connection]
        publish("first", 0)
        bench.wire.let_go.clear()
        waiting = threads.submit(publish, "second", None)
        threaded.wait_for(lambda: "waiting on" in caplog.text, WAIT_S)
        assert not waiting.done()
        bench.wire.let_go.set()
        waiting.result(WAIT_S)
        bench.wire.let_go.clear()
        with pytest.raises(OperationalError):
            publish("third", 0)
        threading.Timer(0.5, bench.wire.let_go.set).start()
        pool.force_close_all()  # it waits for the answer
    assert bench.depth() == 3


def test_a_connection_lost_during_a_declaration_is_reopened(
    bench: LoopBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kombu opens another, and publishes in the channel that it closed."""
    errors, look = iter([lakequeue.NotConnected("no answer")]), engine_link.EngineLink.look

    def fail_once(link: engine_link.EngineLink, queue: str) -> Any:
        for error in errors:
            raise error
        return look(link, queue)

    monkeypatch.setattr(engine_link.EngineLink, "look", fail_once)
    with Connection(bench.url) as connection:
        Producer(connection).publish("x", routing_key="work", declare=[WORK], retry=True)
    assert bench.depth() == 1


@pytest.mark.parametrize(("gather_s", "held_when_sent"), [(60, [6, 0]), (0, [6, 5, 4, 3, 2, 1, 0])])
def test_consecutive_acks_are_sent_together(
    gather_s: int, held_when_sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one at once, and the last one. The client sends those between, at half of the
    prefetch."""
    monkeypatch.setattr(flow_module, "GATHER_S", gather_s)
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    sent: list[int] = []
    consumer = SimpleNamespace(
        has_messages=False, is_closed=False, send_acks=lambda: sent.append(flow.held)
    )
    connection = SimpleNamespace(consumer=lambda *_, **__: consumer)
    link: Any = SimpleNamespace(connection=connection, consumers=SimpleNamespace(add=print))
    flow = Flow(link, "work", 8, False, lambda *_: None)
    flow.held = 7
    for _ in range(7):
        flow.settled(True)
    assert sent == held_when_sent


def test_a_lost_connection_is_one_of_kombus_connection_errors(bench: LoopBench) -> None:
    with Connection(bench.url) as connection:
        with Consumer(connection.channel(), [WORK], callbacks=[print]):
            bench.opened[0].close()
            with pytest.raises(connection.connection_errors):
                connection.drain_events(timeout=1)
        connection.close()
        connection.connect()
        Producer(connection.channel()).publish(1, routing_key="work", declare=[WORK])
        assert bench.depth() == 1


@pytest.mark.parametrize(
    "options",
    [{"pool": "solo"}, {"pool": "threads"},
     {"pool": "prefork", "concurrency": 1, "autoscale": "4,1"}],
    ids=["solo", "threads", "prefork that grows"],
)  # fmt: skip
def test_a_worker_runs_on_the_event_loop(
    bench: LoopBench, options: dict[str, Any], tmp_path: Path
) -> None:
    app = Celery("loop", broker=bench.url, backend="cache+memory://")
    app.set_default()  # for the pool's threads and processes
    set_event_loop(None)  # Celery would take the previous worker's, which is closed
    app.conf.update(task_acks_late=True, worker_prefetch_multiplier=1)
    log = tmp_path / "ran"
    log.touch()

    # The name is unique among the tests: Celery keeps the first task of a name in a process.
    @app.task(name="note_in_file")
    def note(n: int, path: str) -> None:
        time.sleep(0.05)
        with open(path, "a") as file:
            file.write(f"{n} {os.getpid()}\n")

    def ran() -> list[list[str]]:
        return [line.split() for line in log.read_text().splitlines()]

    with start_worker(app, perform_ping_check=False, shutdown_timeout=WAIT_S, **options):
        for n in range(20):
            note.delay(n, str(log))
        threaded.wait_for(lambda: len(ran()) == 20, WAIT_S)
        assert app.control.ping(timeout=5, limit=1)
        threaded.wait_for(lambda: not bench.admin.describe("celery")["depth"], WAIT_S)
    assert sorted(int(n) for n, _ in ran()) == list(range(20))
    processes = {pid for _, pid in ran()}
    if options["pool"] == "prefork":
        assert str(os.getpid()) not in processes
        assert len(processes) > 1
    app.close()
