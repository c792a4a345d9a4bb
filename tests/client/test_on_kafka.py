"""The whole client on real Kafka, with a step behind the topics instead of the job.

Real threads, an event loop, forks and signals (C3). What is lost on the way, and who goes away and
comes back: `tests/sim` and `test_transports.py`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lakequeue
import lakequeue.aio
import pytest
from client.stub_engine import StubEngine
from client.threaded import wait_for
from lakequeue.protocol import NotConnected

pytestmark = pytest.mark.job

QUEUES = ("fork", "signal", "aio", "threads")
PATIENCE_S = 90


@pytest.fixture(scope="module")
def stub(kafka: Any) -> Iterator[StubEngine]:
    queues = [
        {"name": name, "message_type": "text", "max_per_subscription_backlog": 1000}
        for name in QUEUES
    ]
    # No session is given up: on a machine that stands still for a while that is no mistake.
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
    """Producers are used by several threads; messages are settled from another thread."""
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


def test_aio_on_kafka(stub: StubEngine) -> None:
    async def main() -> None:
        url = f"kafka://{stub.bootstrap}"
        async with await lakequeue.aio.connect(url, client_name="aio") as connection:
            consumer = await connection.consumer("aio", ack_mode="auto", max_backlog=100)
            seen: list[bytes] = []

            async def work(message: Any) -> None:
                await asyncio.sleep(0)
                seen.append(message.payload)

            consumer.on_message(work)
            producer = connection.producer()
            await asyncio.gather(*(producer.send("aio", str(n)) for n in range(50)))
            while len(seen) < 50:
                await asyncio.sleep(0.02)
            assert seen == [str(n).encode() for n in range(50)]
            await consumer.close()
            assert (await connection.admin().describe("aio"))["depth"] == 0

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_a_forked_child_is_refused_at_once(connection: Any) -> None:
    """receive() would otherwise wait for a thread that is not there."""
    producer = connection.producer()
    consumer = connection.consumer("fork", max_backlog=10)
    producer.send("fork", b"parent")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        told = []
        for call in (
            lambda: producer.send("fork", b"child"), consumer.receive,
            lambda: connection.consumer("fork"), connection.admin,
        ):  # fmt: skip
            try:
                call()
                told.append("no error")
            except NotConnected as error:
                told.append(str(error))
        consumer.close()
        connection.close()
        os.write(write, "\n".join(told).encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    told = os.read(read, 10_000).decode().splitlines()
    expected = f"this connection was opened in process {os.getpid()}; open a new one after a fork"
    assert told == [expected] * 4
    message = consumer.receive(timeout=PATIENCE_S)
    message.ack()
    consumer.close()
    wait_for(lambda: depth(connection, "fork") == 0)


def test_C3_a_signal_ends_receive_and_what_was_held_returns_at_once(
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
    assert process.wait(30) == 0
    heir = connection.consumer("signal", ack_mode="individual", max_backlog=10)
    message = heir.receive(timeout=10)  # long before heartbeats would be missed
    assert message.redelivered
    message.ack()
    heir.close()
    wait_for(lambda: depth(connection, "signal") == 0)
