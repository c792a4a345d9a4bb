"""A Celery worker on an engine in the process: threads, no Kafka."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import import_module
from runpy import run_module
from typing import Any

import lakequeue
import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery.exceptions import Reject
from client.threaded import wait_for
from lakequeue.tasks import engine_link
from tasks.noted import WAIT_S, Noted


class CeleryBench(Noted):
    """An application, its results, and the engine beneath."""

    def __init__(self) -> None:
        super().__init__("celery")
        self.app = Celery(
            self.name, broker=f"lakequeue+memory://{self.name}", backend="cache+memory://",
            broker_transport_options={"queues": {"dead_message_queue": "dead"}},
        )  # fmt: skip
        self.app.conf.update(task_acks_late=True, worker_prefetch_multiplier=1)

    @property
    def task(self) -> Any:
        """A task that notes its argument."""

        @self.app.task(name="note")
        def note(what: Any) -> None:
            self.note(what)

        return note

    def worker(self, **options: Any) -> Any:
        return start_worker(
            self.app, pool="threads", concurrency=1, perform_ping_check=False,
            shutdown_timeout=WAIT_S, **options,
        )  # fmt: skip


@pytest.fixture
def bench(quick_drains: None) -> Iterator[CeleryBench]:
    bench = CeleryBench()
    yield bench
    bench.app.close()
    bench.engine.close()


def test_tasks_run_by_priority_and_leave_nothing(bench: CeleryBench) -> None:
    note = bench.task
    for priority in (1, 5, 9):
        note.apply_async((priority,), priority=priority)
    with bench.worker():
        assert bench.wait(3) == [9, 5, 1]
    assert bench.describe("celery")["depth"] == 0


def test_an_eta_waits_in_the_broker(bench: CeleryBench) -> None:
    note = bench.task
    for n in range(20):
        note.apply_async((n,), eta=datetime.now(UTC) + timedelta(hours=1))
    with bench.worker():
        note.delay("now")
        bench.wait(1)
        assert bench.describe("celery")["delayed"] == 20
        bench.engine.advance("1h")
        assert sorted(map(str, bench.wait(21))) == sorted(map(str, [*range(20), "now"]))


def test_retries_wait_in_the_broker(bench: CeleryBench) -> None:
    def flaky(self: Any) -> None:
        bench.note(self.request.retries)
        if self.request.retries < 2:
            raise self.retry(countdown=0.2)

    task = bench.app.task(flaky, name="flaky", bind=True)
    with bench.worker():
        task.delay()
        assert bench.wait(3) == [0, 1, 2]


def test_a_task_that_is_sent_while_the_engine_restarts_waits_for_it(
    bench: CeleryBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """See docs/how-to/celery.md. Celery alone gives up after three attempts in 0.6 s."""
    attempts = itertools.count(1)

    def connect(*given: Any, **options: Any) -> Any:
        if next(attempts) <= 8:
            raise lakequeue.NotConnected("no Kafka broker answers")
        return lakequeue.connect(*given, **options)

    monkeypatch.setattr(engine_link, "connect", connect)
    bench.app.conf.update(
        broker_transport_options={"connect_retries_timeout": 60},
        task_publish_retry_policy={"max_retries": None, "interval_start": 0, "interval_step": 0},
    )
    bench.task.delay("x")
    assert next(attempts) == 10
    assert bench.describe("celery")["depth"] == 1


def test_an_expired_task_does_not_run_and_a_rejected_one_is_dead(bench: CeleryBench) -> None:
    def refuse() -> None:
        bench.note("refused")
        raise Reject("no", requeue=False)

    bench.task.apply_async(("late",), expires=60)
    bench.engine.advance("61s")
    task = bench.app.task(refuse, name="refuse")
    with bench.worker():
        task.delay()
        # Noted before it is raised: a worker that ends meanwhile rejects nothing.
        wait_for(lambda: len(bench.admin.browse("dead")) == 2)
    assert bench.ran == ["refused"]
    dead = bench.admin.browse("dead")
    assert [m.headers["lq-dead-reason"] for m in dead] == ["expired", "rejected"]


def test_the_worker_answers_remote_control(bench: CeleryBench) -> None:
    with bench.worker() as worker:
        inspect = bench.app.control.inspect(timeout=5, destination=[worker.hostname])
        assert inspect.ping() == {worker.hostname: {"ok": "pong"}}
        assert [q["name"] for q in inspect.active_queues()[worker.hostname]] == ["celery"]
    assert bench.queues() == ["celery", "dead"], "transient queues were left behind"


def test_the_example_application_does_its_work(bench: CeleryBench) -> None:
    shop = import_module("lakequeue.examples.celery_shop")
    shop.app.conf.update(broker_url=bench.app.conf.broker_url, result_backend="cache+memory://")
    bench.app = shop.app
    shop.make_report.apply_async((0.1,))
    charged = shop.charge.apply_async((1,), priority=9)
    reminded = shop.send_reminder.apply_async((1,), countdown=3600)
    with bench.worker():
        assert charged.get(timeout=WAIT_S) == "order 1 is paid"
        assert bench.describe("shop")["delayed"] == 1
        bench.engine.advance("1h")
        assert reminded.get(timeout=WAIT_S) == "order 1: how do you like it?"


def test_the_example_programs_worker_knows_its_tasks(
    bench: CeleryBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m` runs the module under another name than the one that a worker imports."""
    worker = import_module("lakequeue.examples.celery_shop")
    known = set(worker.app.tasks)  # now: applications of one process share their definitions
    monkeypatch.setenv("SHOP_BROKER", bench.app.conf.broker_url)
    monkeypatch.setattr("sys.argv", ["celery_shop"])
    program = run_module("lakequeue.examples.celery_shop", run_name="__main__")
    program["app"].close()
    sent = [json.loads(m.payload) for m in bench.admin.browse("shop")]
    names = {message["headers"]["task"] for message in sent}
    assert len(names) == 3
    assert names <= known


def test_the_example_program_without_a_broker_gets_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOP_BROKER", "lakequeue+kafka://127.0.0.1:1")
    monkeypatch.setattr("sys.argv", ["celery_shop"])
    with pytest.raises(SystemExit, match=r"^no Kafka broker answers at 127.0.0.1:1 .*$"):
        run_module("lakequeue.examples.celery_shop", run_name="__main__")
