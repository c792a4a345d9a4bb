"""The broker for Dramatiq, on an engine in the process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lakequeue
import pytest
from dramatiq import Worker, actor
from dramatiq.errors import QueueJoinTimeout, QueueNotFound
from dramatiq.worker import _WorkerThread
from lakequeue.client import Message, Producer
from lakequeue.client.producer.producer import SEND_TIMEOUT_S
from lakequeue.protocol import NotConnected
from lakequeue.tasks import dramatiq_broker
from lakequeue.tasks.dramatiq_broker import LakequeueBroker
from tasks.noted import WAIT_S, Noted


class DramatiqBench(Noted):
    """A broker, its worker's notes, and the engine beneath."""

    def __init__(self) -> None:
        super().__init__("dramatiq")
        self.broker = LakequeueBroker(f"memory://{self.name}", {"dead_message_queue": "dead"})

    def actor(self, work: Any = None, **options: Any) -> Any:
        """An actor; by default it notes its argument."""
        return actor(work or self.note, broker=self.broker, **options)

    @contextmanager
    def worker(self) -> Iterator[None]:
        worker = Worker(self.broker, worker_threads=1, worker_timeout=50)
        worker.start()
        yield
        worker.stop()

    def work_off(self) -> None:
        self.broker.join("default", timeout=10_000)


@pytest.fixture
def bench() -> Iterator[DramatiqBench]:
    bench = DramatiqBench()
    yield bench
    bench.broker.close()
    bench.engine.close()


def test_messages_run_once_by_priority_and_leave_nothing(bench: DramatiqBench) -> None:
    note = bench.actor()
    for priority in (1, 9, 5):
        note.send_with_options(args=(priority,), broker_priority=priority)
    assert [m.priority for m in bench.admin.browse("default")] == [9, 5, 1]
    with bench.worker():
        assert sorted(bench.wait(3)) == [1, 5, 9]
        bench.work_off()
    assert bench.queues() == ["dead", "default"]
    assert bench.describe("default")["consumers"] == []
    assert bench.describe("dead")["depth"] == 0


def test_a_delay_waits_in_the_engine(bench: DramatiqBench) -> None:
    note = bench.actor()
    note.send_with_options(args=("later",), delay=3_600_000)
    with bench.worker():
        note.send("now")
        assert bench.wait(1) == ["now"]
        assert bench.describe("default")["delayed"] == 1
        bench.engine.advance("1h")
        assert bench.wait(2) == ["now", "later"]


def test_a_failing_message_is_retried_and_then_dead(
    bench: DramatiqBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker waits until its retry is stored, however long the engine is away: Dramatiq
    acknowledges the message even if sending fails."""
    waits: list[float | None] = []
    send = Producer.send

    def note_wait(*given: Any, timeout: float | None, **options: Any) -> Any:
        waits.append(timeout)
        return send(*given, timeout=timeout, **options)

    def fail(what: str) -> None:
        bench.note(what)
        raise RuntimeError("no")

    monkeypatch.setattr(Producer, "send", note_wait)
    bench.actor(fail, max_retries=2, min_backoff=10, max_backoff=20).send("x")
    with bench.worker():
        assert bench.wait(3) == ["x"] * 3
        bench.work_off()
    (dead,) = bench.admin.browse("dead")
    assert dead.headers["lq-dead-reason"] == "rejected"
    assert waits == [SEND_TIMEOUT_S, None, None]


def test_a_stopping_worker_returns_its_messages(
    bench: DramatiqBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, stop = threading.Event(), threading.Event(), _WorkerThread.stop

    def stopped(thread: _WorkerThread) -> None:
        stop(thread)
        go_on.set()

    def wait(what: int) -> None:
        begun.set()
        go_on.wait(WAIT_S)
        bench.note(what)

    monkeypatch.setattr(_WorkerThread, "stop", stopped)
    waits = bench.actor(wait)
    for n in range(3):
        waits.send(n)
    with bench.worker():
        assert begun.wait(WAIT_S)
    assert bench.ran == [0]
    left = bench.admin.browse("default")
    assert [(m.state, m.delivery_count) for m in left] == [("ready", 0)] * 2, (
        "an attempt was counted (L5)"
    )
    assert bench.describe("default")["counters"]["canceled"] == 0


@pytest.mark.parametrize("kind", ["send", "reject"])
def test_a_send_or_reject_that_kafka_did_not_take_is_repeated(
    bench: DramatiqBench, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A retry, or the end of a message that failed for good."""
    monkeypatch.setattr(dramatiq_broker, "AGAIN_S", 0)
    monkeypatch.setattr("dramatiq.worker.POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0)
    of = Producer if kind == "send" else Message
    really, refused = getattr(of, kind), []

    def once(*given: Any, **options: Any) -> Any:
        if not refused and isinstance(threading.current_thread(), _WorkerThread):
            refused.append(kind)
            raise NotConnected("Kafka is away")
        return really(*given, **options)

    def fail(what: int) -> None:
        bench.note(what)
        raise ValueError("a mistake of the application")

    bench.actor(fail, max_retries=1, min_backoff=1).send(1)
    monkeypatch.setattr(of, kind, once)
    with bench.worker():
        assert bench.wait(2) == [1, 1]
        bench.work_off()
    assert (refused, len(bench.admin.browse("dead"))) == ([kind], 1)


def test_threads_starting_at_once_share_a_connection(
    bench: DramatiqBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker has a thread for each queue."""
    opened: list[Any] = []

    def connect(url: str) -> Any:
        time.sleep(0.1)
        opened.append(lakequeue.connect(url))
        return opened[-1]

    monkeypatch.setattr(dramatiq_broker, "connect", connect)
    actors = [bench.actor(actor_name=queue, queue_name=queue) for queue in ("one", "two")]
    with bench.worker():
        for one in actors:
            one.send(one.queue_name)
        assert sorted(bench.wait(2)) == ["one", "two"]
    assert len(opened) == 1


def test_join_ends_with_its_timeout_and_flush_empties(bench: DramatiqBench) -> None:
    bench.actor().send(1)
    begun = time.monotonic()
    with pytest.raises(QueueJoinTimeout):
        bench.broker.join("default", timeout=200)
    assert time.monotonic() - begun < WAIT_S
    bench.broker.flush_all()
    bench.broker.join("default", timeout=200)
    with pytest.raises(QueueNotFound):
        bench.broker.flush("nobody's")


def test_a_foreign_message_dies_and_the_next_one_runs(bench: DramatiqBench) -> None:
    note = bench.actor()
    note.send("before")
    for payload in (b"not JSON", b'{"n": 1}', b"[" * 200_000):
        bench.engine.producer().send("default", payload)
    note.send("after")
    with bench.worker():
        assert bench.wait(2) == ["before", "after"]
        bench.work_off()
    dead = bench.admin.browse("dead")
    assert [m.headers["lq-dead-reason"] for m in dead] == ["rejected"] * 3
    assert "Failed to decode message" in dead[0].headers["lq-dead-detail"]
