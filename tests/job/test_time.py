"""Time without traffic: a deadline is acted on, and an engine without work does nothing.

What happens is read from the topic `default.journal`, which tells the engine nothing: a client that
asks would be traffic itself. So do heartbeats; the subscription here has no session.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import lakequeue
import pytest
from job.conftest import BATCH_S, Job, in_real_time
from job.processes import until
from kafka import KafkaConsumer, TopicPartition
from lakequeue.protocol import commands, journal_encoding

pytestmark = pytest.mark.job

LATE_MS_MAX = 30_000  # that it comes at all: 1 s and a batch on an idle machine
JOURNAL = TopicPartition("default.journal", 0)


class Watcher:
    """Reads the journal as it is written, from now on."""

    def __init__(self, bootstrap: str) -> None:
        self.rows: list[tuple[dict, int]] = []  # (row, when Kafka took it, epoch ms)
        self._consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
        self._consumer.assign([JOURNAL])
        end = self._consumer.end_offsets([JOURNAL])[JOURNAL]
        self._consumer.seek(JOURNAL, end)

    def wait(self, event: str, message_id: str, seconds: float) -> tuple[dict, int]:
        def look() -> tuple[dict, int] | None:
            for records in self._consumer.poll(200).values():
                for record in records:
                    rows = journal_encoding.decode(record.value).to_pylist()
                    self.rows += [(row, record.timestamp) for row in rows]
            wanted = (event, int(message_id))
            return next(
                (r for r in self.rows if (r[0]["event"], r[0]["message_id"]) == wanted), None
            )

        return until(look, seconds, f"{event} of message {message_id}")

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def watcher(job: Job) -> Iterator[Watcher]:
    watcher = Watcher(job.kafka.bootstrap_servers)
    yield watcher
    watcher.close()


@pytest.fixture
def clock(connection: lakequeue.Connection) -> Iterator[lakequeue.Connection]:
    """A connection, and the queue `clock` empty and as it was."""
    connection.admin().define(
        {"name": "clock", "message_type": "text", "max_per_subscription_backlog": 50}
    )
    yield connection
    connection.admin().purge("clock")


def hold(connection: lakequeue.Connection) -> str:
    """A subscription that no heartbeat keeps alive; its id."""
    name = connection.new_name("hold")
    connection.request(
        commands.Subscribe(queue="clock", subscription=name, inbox=connection.inbox, max_backlog=1)
    )
    return name


def work(job: Job) -> float:
    """Steps so far."""
    sample = job.engine.metrics.registry.get_sample_value
    return sample("lakequeue_steps_total", {"broker": "broker-0"}) or 0.0


@in_real_time
def test_a_lease_that_ends(clock: lakequeue.Connection, watcher: Watcher) -> None:
    clock.admin().define(
        {
            "name": "clock", "message_type": "text", "max_per_subscription_backlog": 50,
            "lease_period": "3s",
        }
    )  # fmt: skip
    name = hold(clock)
    message = clock.producer().send("clock", "x").message_id
    sent, _ = watcher.wait("delivered", message, 10)
    ended, written_ms = watcher.wait("lease_ended", message, 20)
    clock.command(commands.Unsubscribe(queue="clock", subscription=name))
    due_ms = sent["time"] + 3_000
    assert ended["time"] >= due_ms
    assert written_ms - due_ms <= LATE_MS_MAX


@in_real_time
def test_an_idle_engine_does_nothing(job: Job) -> None:
    """Nothing in a batch and more. What earlier tests left may come due once more before."""
    steps, since = work(job), time.monotonic()

    def idle() -> bool:
        nonlocal steps, since
        if work(job) != steps:
            steps, since = work(job), time.monotonic()
        return time.monotonic() - since > 2 + BATCH_S

    until(idle, 20, "no steps without an input")
    assert work(job) > 0
