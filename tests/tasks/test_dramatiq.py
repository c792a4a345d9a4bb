"""The broker for Dramatiq, on an engine in the process."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import lakequeue
import pytest
from dramatiq import Worker, actor
from dramatiq.errors import QueueJoinTimeout, QueueNotFound
from lakequeue.client import Producer
from lakequeue.client.producer.producer import SEND_TIMEOUT_S
from lakequeue.tasks import dramatiq_broker
from lakequeue.tasks.dramatiq_broker import LakequeueBroker

_names = itertools.count(1)
WAIT_S = 30.0


class DramatiqBench:
    """A broker, a worker's work, and the engine beneath."""

    def __init__(self) -> None:
        self.url = f"memory://dramatiq-{next(_names)}"
        self.engine = lakequeue.connect(self.url)
        self.admin = self.engine.admin()
        self.broker = LakequeueBroker(self.url, {"dead_message_queue": "dead"})
        self.ran: list[Any] = []
        self._changed = threading.Condition()

    def note(self, what: Any) -> None:
        with self._changed:
            self.ran.append(what)
            self._changed.notify_all()

    def wait(self, count: int) -> list[Any]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.ran) >= count, WAIT_S), self.ran
            return list(self.ran)


@pytest.fixture
def bench() -> Iterator[DramatiqBench]:
    bench = DramatiqBench()
    yield bench
    bench.broker.close()
    bench.engine.close()


def worked(bench: DramatiqBench) -> Worker:
    worker = Worker(bench.broker, worker_threads=1, worker_timeout=50)
    worker.start()
    return worker


def test_messages_run_once_by_priority_and_are_gone(bench: DramatiqBench) -> None:
    note = actor(bench.note, broker=bench.broker)
    for priority in (1, 9, 5):
        note.send_with_options(args=(priority,), broker_priority=priority)
    assert [m.priority for m in bench.admin.browse("default")] == [9, 5, 1]
    worker = worked(bench)
    assert sorted(bench.wait(3)) == [1, 5, 9]
    bench.broker.join("default", timeout=10_000)
    worker.stop()
    assert bench.admin.queues()[1]["name"] == "default"
    assert bench.admin.describe("default")["consumers"] == []
    assert bench.admin.describe("dead")["depth"] == 0


def test_a_delay_is_the_engines(bench: DramatiqBench) -> None:
    note = actor(bench.note, broker=bench.broker)
    note.send_with_options(args=("later",), delay=3_600_000)
    worker = worked(bench)
    note.send("now")
    assert bench.wait(1) == ["now"]
    assert bench.admin.describe("default")["delayed"] == 1
    bench.engine.advance("1h")
    assert bench.wait(2) == ["now", "later"]
    worker.stop()


def test_what_fails_is_tried_again_and_then_dead(bench: DramatiqBench) -> None:
    def fail(what: str) -> None:
        bench.note(what)
        raise RuntimeError("no")

    actor(fail, broker=bench.broker, max_retries=2, min_backoff=10, max_backoff=20).send("x")
    worker = worked(bench)
    assert bench.wait(3) == ["x"] * 3
    bench.broker.join("default", timeout=10_000)
    worker.stop()
    (dead,) = bench.admin.browse("dead")
    assert dead.headers["lq-dead-reason"] == "rejected"


def test_a_worker_waits_until_its_retry_is_stored(
    bench: DramatiqBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the engine is away: Dramatiq acknowledges the message even if sending fails."""
    waits: list[float | None] = []
    send = Producer.send

    def note_wait(*given: Any, timeout: float | None, **options: Any) -> Any:
        waits.append(timeout)
        return send(*given, timeout=timeout, **options)

    def fail() -> None:
        bench.note("ran")
        raise RuntimeError("no")

    monkeypatch.setattr(Producer, "send", note_wait)
    actor(fail, broker=bench.broker, max_retries=1, min_backoff=10, max_backoff=20).send()
    worker = worked(bench)
    bench.wait(2)
    worker.stop()
    assert waits == [SEND_TIMEOUT_S, None]


def test_what_a_worker_holds_returns_when_it_stops(bench: DramatiqBench) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def wait(what: int) -> None:
        begun.set()
        go_on.wait(WAIT_S)
        bench.note(what)

    waits = actor(wait, broker=bench.broker)
    for n in range(3):
        waits.send(n)
    worker = worked(bench)
    assert begun.wait(WAIT_S)
    threading.Timer(0.3, go_on.set).start()
    worker.stop()
    assert bench.ran == [0]
    left = bench.admin.browse("default")
    assert [(m.state, m.delivery_count) for m in left] == [("ready", 0)] * 2, "nobody tried (L5)"
    assert bench.admin.describe("default")["counters"]["canceled"] == 0


def test_threads_that_begin_at_once_share_a_connection(
    bench: DramatiqBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker has a thread for each queue."""
    opened: list[Any] = []

    def connect(url: str) -> Any:
        time.sleep(0.1)
        opened.append(lakequeue.connect(url))
        return opened[-1]

    monkeypatch.setattr(dramatiq_broker, "connect", connect)
    for queue in ("one", "two"):
        actor(bench.note, broker=bench.broker, actor_name=queue, queue_name=queue)
    worker = worked(bench)
    for name in ("one", "two"):
        bench.broker.get_actor(name).send(name)
    assert sorted(bench.wait(2)) == ["one", "two"]
    worker.stop()
    assert len(opened) == 1


def test_join_ends_with_its_timeout_and_flush_empties(bench: DramatiqBench) -> None:
    note = actor(bench.note, broker=bench.broker)
    note.send(1)
    begun = time.monotonic()
    with pytest.raises(QueueJoinTimeout):
        bench.broker.join("default", timeout=200)
    assert time.monotonic() - begun < WAIT_S
    bench.broker.flush_all()
    bench.broker.join("default", timeout=200)
    with pytest.raises(QueueNotFound):
        bench.broker.flush("nobody's")


def test_what_is_no_dramatiq_message_is_dead_and_the_next_one_runs(bench: DramatiqBench) -> None:
    note = actor(bench.note, broker=bench.broker)
    note.send("before")
    for payload in (b"not JSON", b'{"n": 1}', b"[" * 200_000):
        bench.engine.producer().send("default", payload)
    note.send("after")
    worker = worked(bench)
    assert bench.wait(2) == ["before", "after"]
    bench.broker.join("default", timeout=10_000)
    worker.stop()
    dead = bench.admin.browse("dead")
    assert [m.headers["lq-dead-reason"] for m in dead] == ["rejected"] * 3
    assert "Failed to decode message" in dead[0].headers["lq-dead-detail"]
