"""The whole client on real Kafka, with a step behind the topics instead of the job.

Real threads and signals (C3). Losses, and clients that go away and come back: `tests/sim` and
`test_transports.py`. Forks and event loops: `test_sessions.py` and `test_aio.py`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lakequeue
import pytest
from client.stub_engine import StubEngine
from client.threaded import wait_for

pytestmark = pytest.mark.job

QUEUES = ("signal", "threads")
PATIENCE_S = 90


@pytest.fixture(scope="module")
def stub(kafka: Any) -> Iterator[StubEngine]:
    queues = [
        {"name": name, "message_type": "text", "max_per_subscription_backlog": 1000}
        for name in QUEUES
    ]
    # No session may be lost just because the machine stands still for a while.
    system = {"heartbeat_timeout": "10m"}
    with StubEngine(kafka.bootstrap_servers, {"queues": queues, "system": system}) as engine:
        yield engine


@pytest.fixture
def connection(stub: StubEngine) -> Iterator[Any]:
    with lakequeue.connect(f"kafka://{stub.bootstrap}", client_name="test") as connection:
        yield connection


def depth(connection: Any, queue: str) -> int:
    return int(connection.admin().describe(queue)["depth"])


def test_many_threads_one_connection(connection: Any) -> None:
    """Threads share producers; messages are settled in another thread."""
    producer = connection.producer(window=50)
    consumer = connection.consumer("threads", ack_mode="individual", max_backlog=500)
    messages: list[Any] = []
    with ThreadPoolExecutor(8) as threads:
        sent = [threads.submit(producer.send, "threads", b"x") for _ in range(160)]
        while len(messages) < 160:
            messages += consumer.receive_many(200, timeout=PATIENCE_S)
        for one in [*sent, *(threads.submit(message.ack) for message in messages)]:
            one.result()
    assert len({m.id for m in messages}) == 160
    wait_for(lambda: depth(connection, "threads") == 0)


def test_C3_a_signal_ends_receive_and_returns_held_messages_at_once(
    stub: StubEngine, connection: Any
) -> None:
    code = f"""
import signal, sys, lakequeue
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
try:
    with lakequeue.connect("kafka://{stub.bootstrap}") as connection:
        with connection.consumer("signal", ack_mode="individual", max_backlog=10) as consumer:
            assert consumer.receive(timeout=60) is not None
            print("ready", flush=True)
            consumer.receive()
except KeyboardInterrupt:
    print("ended", flush=True)
"""
    connection.producer().send("signal", b"x")
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "ended\n"
    assert process.wait(PATIENCE_S) == 0
    heir = connection.consumer("signal", ack_mode="individual", max_backlog=10)
    message = heir.receive(timeout=PATIENCE_S)  # long before heartbeats would be missed
    assert message.redelivered
    message.ack()
    heir.close()
    wait_for(lambda: depth(connection, "signal") == 0)
