"""Time without traffic: deadlines are met, and an engine without work does nothing.

The test reads the topic `default.journal`, of which the engine notices nothing: a client's requests
would be traffic themselves, and so would heartbeats; the subscription here has no session.
"""

from __future__ import annotations

import time

import lakequeue
import pytest
from job.conftest import BATCH_S, Job
from job.output_audit import on_the_wire
from job.processes import SLOWER, until
from lakequeue.protocol import commands, journal_encoding
from lakequeue.streaming.watch import step_watch

pytestmark = pytest.mark.job

LATE_MS_MAX = 30_000 * SLOWER  # only a limit: on an idle machine it takes 1 s and a batch


def journaled(job: Job, event: str, message_id: str) -> tuple[dict, int] | None:
    """The row of an event of a message, and when Kafka took it (epoch, ms)."""
    wanted = event, int(message_id)
    records = on_the_wire(job.kafka.bootstrap_servers, "default.journal", 1)
    for record in (one for one in records if one.headers()):  # others may write there too
        for row in journal_encoding.decode(record.value()).to_pylist():
            if (row["event"], row["message_id"]) == wanted:
                return row, record.timestamp()[1]
    return None


def hold(connection: lakequeue.Connection) -> str:
    """A subscription without heartbeats; returns its id."""
    name = connection.new_name("hold")
    connection.request(
        commands.Subscribe(queue="clock", subscription=name, inbox=connection.inbox, max_backlog=1)
    )
    return name


def work(job: Job) -> float:
    """The number of steps so far."""
    sample = job.engine.metrics.registry.get_sample_value
    return sample("lakequeue_steps_total", {"broker": "broker-0"}) or 0.0


def test_a_lease_ends_without_traffic(job: Job, connection: lakequeue.Connection) -> None:
    brief = {"name": "clock", "message_type": "text", "lease_period": "3s"}
    connection.admin().define(brief | {"max_per_subscription_backlog": 50})
    name = hold(connection)
    message = connection.producer().send("clock", "x").message_id
    sent, _ = until(lambda: journaled(job, "delivered", message), 10, "it is delivered")
    ended, written_ms = until(lambda: journaled(job, "lease_ended", message), 20, "its lease ends")
    connection.command(commands.Unsubscribe(queue="clock", subscription=name))
    connection.admin().purge("clock")
    due_ms = sent["time"] + 3_000
    assert ended["time"] >= due_ms
    assert written_ms - due_ms <= LATE_MS_MAX


def test_an_idle_engine_does_nothing(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """For longer than a batch. Leftovers of earlier tests may become due once more before; after a
    scrape of all metrics the engine looks at its queues for 90 s. On a slow machine a batch lasts
    longer than ten seconds, and the watch would send a command."""
    monkeypatch.setattr(step_watch, "PROBE_S", 3_600.0)
    steps, since = work(job), time.monotonic()

    def idle() -> bool:
        nonlocal steps, since
        if work(job) != steps:
            steps, since = work(job), time.monotonic()
        return time.monotonic() - since > 2 + BATCH_S

    until(idle, 60, "no steps without an input")
    assert work(job) > 0
