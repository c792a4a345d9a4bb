"""Both Kafka transports on a real broker: the same tests, the same results."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from lakequeue.client.kafka import LIBRARIES, confluent, kafka_bounds, open_kafka
from lakequeue.client.session.transport import Record, Transport
from lakequeue.protocol.errors import NotConnected, Rejected

pytestmark = pytest.mark.job

WAIT_SECONDS = 60.0
_numbers = itertools.count(int(time.time()))
Open = Callable[[], Transport]


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_transport(kafka: Any, library: str) -> Iterator[Open]:
    opened: list[Transport] = []

    def one() -> Transport:
        opened.append(open_kafka(kafka.bootstrap_servers, "test", library))
        return opened[-1]

    yield one
    for transport in opened:
        transport.close()


@pytest.fixture
def topic(kafka: Any) -> str:
    return make_topic(kafka, 4)


def make_topic(kafka: Any, partitions: int) -> str:
    from kafka.admin import KafkaAdminClient, NewTopic

    name = f"transport-{next(_numbers)}"
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    try:
        admin.create_topics([NewTopic(name, partitions, 1)])
    finally:
        admin.close()
    return name


def collect(transport: Transport, count: int, seconds: float = WAIT_SECONDS) -> list[Record]:
    """Poll until ``count`` records have come or the time is up; then a little longer."""
    found: list[Record] = []
    deadline = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < deadline:
        found += transport.poll(0.5)
    return found + transport.poll(0.2)


def test_a_record_arrives_as_it_was_sent(kafka: Any, open_transport: Open, topic: str) -> None:
    """A command goes to its broker's partition. A foreign one may have no value, and headers
    without a value."""
    transport = open_transport()
    assert transport.partitions(topic) == 4
    for partition in range(4):
        transport.listen(topic, partition)
    before = time.time() * 1000 - 1
    headers = [("a", b"1"), ("a", b"\xff\x00"), ("lq-ü", b"")]
    transport.publish(topic, b"v", b"k", headers, 3)
    transport.publish(topic, b"", None, [], 2)
    transport.command(topic, b"one", b"{}")
    assert transport.flush(60)
    found = {record.value: record for record in collect(transport, 3)}
    assert len(found) == 3
    full, empty, command = found[b"v"], found[b""], found[b"{}"]
    assert (full.topic, full.partition, full.offset) == (topic, 3, 0)
    assert (full.key, full.headers) == (b"k", headers)
    assert before <= full.timestamp <= time.time() * 1000
    assert (empty.partition, empty.key, empty.headers) == (2, None, [])
    assert (command.key, command.headers) == (b"one", [])
    for number in range(8):
        transport.command(topic, b"client", b"%d" % number, number % 4)
    placed = {record.value: record.partition for record in collect(transport, 8)}
    assert placed == {b"%d" % number: number % 4 for number in range(8)}
    other = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    other.produce(topic, None, b"k", 0, headers=[("h", None)])
    assert other.flush(60) == 0
    (record,) = collect(transport, 1)
    assert (record.key, record.value, record.headers) == (b"k", None, [("h", b"")])


def test_partition_order_bounded_polls_and_several_threads(
    open_transport: Open, topic: str
) -> None:
    transport = open_transport()
    transport.listen(topic, 1)
    for number in range(10_000):
        transport.publish(topic, b"%d" % number, None, [], 1)
    assert transport.flush(WAIT_SECONDS)
    found: list[Record] = []
    while len(found) < 10_000:
        polled = transport.poll(5)
        assert polled
        assert len(polled) <= 4_500
        found += polled
    assert [int(record.value or b"") for record in found] == list(range(10_000))
    assert [record.offset for record in found] == list(range(10_000))
    for partition in (0, 2, 3):
        transport.listen(topic, partition)

    def publish(thread: int) -> None:
        for number in range(1_000):
            transport.publish(topic, b"%d" % number, b"t%d" % thread, [], thread % 4)

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    found = collect(transport, 6_000)
    for thread in threads:
        thread.join()
    assert transport.flush(60)
    assert len(found) == 6_000
    for name in range(6):
        mine = [int(record.value or b"") for record in found if record.key == b"t%d" % name]
        assert mine == list(range(1_000))


def test_listening_starts_at_the_end_polls_time_out_and_a_closed_one_refuses(
    open_transport: Open, topic: str
) -> None:
    transport = open_transport()
    started = time.monotonic()
    assert transport.poll(0.3) == []  # no partitions yet
    waited = time.monotonic() - started
    transport.publish(topic, b"before", None, [], 0)
    assert transport.flush(60)
    transport.listen(topic, 0)  # no poll yet: the position is fixed all the same
    transport.publish(topic, b"after", None, [], 0)
    assert transport.flush(60)
    transport.listen(topic, 0)  # again: no gap, nothing twice
    assert [record.value for record in collect(transport, 1)] == [b"after"]
    started = time.monotonic()
    assert transport.poll(0.3) == []
    assert transport.poll(0) == []
    assert 0.6 <= waited + time.monotonic() - started < 30.0
    delays = []
    for _ in range(20):
        started = time.monotonic()
        transport.publish(topic, b"x", None, [], 0)
        assert transport.poll(5)
        delays.append(time.monotonic() - started)
    assert sorted(delays)[10] < 2.5, "polls wait for their full timeout"
    transport.close()
    transport.close()
    for call in (
        lambda: transport.publish(topic, b"", None, []), lambda: transport.listen(topic, 1),
        lambda: transport.command(topic, b"", b""), lambda: transport.partitions(topic),
        lambda: transport.poll(0), lambda: transport.flush(0),
    ):  # fmt: skip
        with pytest.raises(NotConnected, match="closed"):
            call()


def test_listening_to_more_partitions_while_another_thread_polls(
    kafka: Any, open_transport: Open
) -> None:
    topic = make_topic(kafka, 12)
    transport, sender = open_transport(), open_transport()
    transport.listen(topic, 0)
    found: list[Record] = []
    stop = threading.Event()

    def receive() -> None:
        while not stop.is_set():
            found.extend(transport.poll(1))

    receiver = threading.Thread(target=receive)
    receiver.start()
    try:
        for number in range(6_000):
            if number % 500 == 0 and number:
                transport.listen(topic, number // 500)
            for partition in {0, number // 500}:
                sender.publish(topic, b"%d" % number, None, [], partition)
        assert sender.flush(WAIT_SECONDS)
        expected = 6_000 + 11 * 500
        deadline = time.monotonic() + WAIT_SECONDS
        while len(found) < expected and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
    finally:
        stop.set()
        receiver.join()
    assert len(found) == expected
    for partition in range(12):
        first = partition * 500
        values = [int(r.value or b"") for r in found if r.partition == partition]
        assert values == list(range(first, first + 500) if partition else range(6_000))


def test_large_records(open_transport: Open, topic: str) -> None:
    transport = open_transport()
    transport.listen(topic, 0)
    large = os.urandom(10 * 1024 * 1024)
    for _ in range(4):
        transport.publish(topic, large, None, [("h", b"1")], 0)
    with pytest.raises(Rejected, match="message_too_large"):
        transport.publish(topic, bytes(13 * 1024 * 1024), None, [], 0)
    assert transport.flush(WAIT_SECONDS)
    polls: list[int] = []
    while sum(polls) < 4:
        records = transport.poll(5)
        assert records
        assert all(record.value == large for record in records)
        polls.append(len(records))
    assert max(polls) <= 2  # 8 MB, and the record that exceeds them


def test_a_stalled_consumer_is_replaced(
    kafka: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confluent, "_WATCH_SECONDS", 1.0)
    made = confluent.ConfluentTransport(kafka.bootstrap_servers, "test")
    with contextlib.closing(made) as transport:
        transport.listen(topic, 0)
        transport.listen(topic, 1)
        for phase in range(2):
            for number in range(100):
                transport.publish(topic, b"%d" % (100 * phase + number), None, [], number % 2)
            assert transport.flush(60)
            found = collect(transport, 100)
            assert sorted(int(record.value or b"") for record in found) == [
                *range(100 * phase, 100 * phase + 100)
            ]
            consumer = transport._consumer
            assert consumer is not None
            # As librdkafka did by itself after a restart of the broker.
            consumer.pause(consumer.assignment())
        assert transport.poll(2.5) == []
        assert transport._consumer is consumer  # no records to read: no reason to replace it


def test_missing_topics(open_transport: Open, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_bounds, "FULL_SECONDS_MAX", 1.0)
    transport = open_transport()
    with pytest.raises(NotConnected, match="'nowhere' does not exist in Kafka at"):
        transport.partitions("nowhere")
    with pytest.raises(NotConnected, match="'nowhere' does not exist"):
        transport.listen("nowhere", 0)
    with pytest.raises(NotConnected, match=r"partition 4 of topic .* does not exist"):
        transport.listen(topic, 4)
    with pytest.raises(NotConnected, match="'nowhere'"):  # noqa: PT012 – now, or with the next call
        transport.publish("nowhere", b"", None, [])
        transport.flush(20)
    assert transport.flush(5)  # reported once


def start_python(kafka: Any, library: str, topic: str, code: str) -> subprocess.Popen[str]:
    """A fresh process: threads, exit and stderr behave as in an application."""
    head = (
        "import logging, os, sys, time\n"
        "from lakequeue.client.kafka import open_kafka\n"
        "from lakequeue.protocol.errors import NotConnected\n"
        f"address, topic, library = {kafka.bootstrap_servers!r}, {topic!r}, {library!r}\n"
        "transport = open_kafka(address, 'test', library)\n"
    )
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-c", head + code], text=True, **pipes)


def test_a_forked_child_is_refused_and_exits_normally(kafka: Any, library: str, topic: str) -> None:
    code = """
transport.listen(topic, 0); transport.partitions(topic)
parent = os.getpid()
transport.publish(topic, b'parent', None, [], 0)
started = time.monotonic()
got = []
# A thread that looks for an address holds a lock of the C library, which a child would inherit.
while not got and time.monotonic() - started < 60:
    got += [r.value for r in transport.poll(1)]
child = os.fork()
if child == 0:
    calls = [lambda: transport.publish(topic, b'child', None, [], 0),
             lambda: transport.command(topic, b'k', b'child'), lambda: transport.poll(0),
             lambda: transport.listen(topic, 1), lambda: transport.partitions(topic),
             lambda: transport.flush(0), transport.close]
    for call in calls:
        try:
            call()
            sys.exit(3)
        except NotConnected as error:
            assert f'opened in process {parent}; open a new one after fork' in str(error)
    transport = open_kafka(address, 'child', library)
    transport.publish(topic, b'child', None, [], 0)
    assert transport.flush(60)
    transport.close()
    del transport
    sys.exit(0)
status = os.waitpid(child, 0)[1]
assert transport.flush(60)
while len(got) < 2 and time.monotonic() - started < 60:
    got += [r.value for r in transport.poll(1)]
transport.close()
print(status, *sorted(got))
"""
    process = start_python(kafka, library, topic, code)
    output, errors = process.communicate(timeout=120)
    assert errors == ""
    status, *values = output.split()
    assert status == "0"
    assert values == ["b'child'", "b'parent'"]


class Stream:
    """One library sends and receives all the time; the records that came, and the errors."""

    def __init__(self, transport: Transport, topic: str) -> None:
        self.sent, self.found = 0, list[Record]()
        self.troubles: list[BaseException] = []
        self.transport, self._topic = transport, topic
        self._stop = threading.Event()
        self._receiver = threading.Thread(target=self._receive)
        transport.listen(topic, 0)
        self._receiver.start()

    def _receive(self) -> None:
        try:
            while not self._stop.is_set():
                self.found.extend(self.transport.poll(0.5))
        except BaseException as error:
            self.troubles.append(error)

    def send(self) -> None:
        self.transport.publish(self._topic, b"%d" % self.sent, None, [], 0)
        self.sent += 1

    def all_came(self) -> bool:
        return len(self.found) >= self.sent

    def end(self) -> None:
        self._stop.set()
        self._receiver.join()


QUIET = """
transport.partitions(topic)
transport.listen(topic, 0)
quiet = time.monotonic() + 1
while time.monotonic() < quiet:
    transport.poll(0.1)
print('ready', flush=True)
sys.stdin.readline()
kept = []
class Keep(logging.Handler):
    def emit(self, record): kept.append(record.levelno)
away = time.monotonic() + 1.5
while time.monotonic() < away:
    transport.publish(topic, b'x', None, [], 0)
    transport.poll(0.1)
logging.getLogger('lakequeue.client').addHandler(Keep())
try:
    transport.partitions(topic)
except NotConnected as error:
    print(error)
print(len(kept), max(kept, default=0), flush=True)
sys.stdin.readline()
print(transport.flush(90), flush=True)
transport.close()
"""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def test_an_outage_loses_nothing_and_prints_nothing(
    kafka: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both libraries in one outage. Streams continue after it without a loss, in order; a full
    buffer blocks and then refuses; an application's output stays its own."""
    topics = {name: [make_topic(kafka, 1) for _ in range(3)] for name in LIBRARIES}
    streams = [
        Stream(open_kafka(kafka.bootstrap_servers, "test", name), first)
        for name, (first, *_) in topics.items()
    ]
    applications = [start_python(kafka, name, topics[name][1], QUIET) for name in LIBRARIES]
    full = {}
    for name in LIBRARIES:
        full[name] = open_kafka(kafka.bootstrap_servers, "test", name)
        full[name].publish(topics[name][2], b"first", None, [], 0)
        assert full[name].flush(60)

    def send(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for stream in streams:
                stream.send()
            time.sleep(0.005)

    try:
        send(1.0)
        for process in applications:
            assert process.stdout.readline() == "ready\n"
        kafka.stop()
        cpu, wall = time.process_time(), time.monotonic()
        send(2.0)
        assert not any(stream.transport.flush(0.5) for stream in streams), (
            "it waits, and reports that"
        )
        assert (time.process_time() - cpu) / (time.monotonic() - wall) < 1.0
        for process in applications:
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            told = process.stdout.readline()
            assert told.startswith(f"no Kafka broker answers at {kafka.bootstrap_servers} – ")
            lines, level = map(int, process.stdout.readline().split())
            assert lines < 30
            assert level <= logging.WARNING
        for bound, value in (("BUFFER_RECORDS_MAX", 1_000), ("FULL_SECONDS_MAX", 1.0),
                             ("CLOSE_SECONDS_MAX", 0.5)):  # fmt: skip
            monkeypatch.setattr(kafka_bounds, bound, value)
        for name, transport in full.items():
            accepted = 0
            with pytest.raises(NotConnected, match="are waiting for Kafka"):  # noqa: PT012
                while accepted <= 2_000:
                    transport.publish(topics[name][2], b"x", None, [], 0)
                    accepted += 1
            assert accepted == 1_000
            started = time.monotonic()
            for _ in range(20):  # the next ones do not wait, too
                with pytest.raises(NotConnected, match="are waiting for Kafka"):
                    transport.publish(topics[name][2], b"x", None, [], 0)
            transport.close()  # unsent records do not delay it
            assert time.monotonic() - started < 20
        monkeypatch.undo()
        kafka.stop()
        kafka.start()
        send(1.0)
        for stream in streams:
            assert stream.transport.flush(60)
            wait_until(stream.all_came)
        for process in applications:
            output, errors = process.communicate("\n", timeout=120)
            assert (output, errors, process.returncode) == ("True\n", "", 0)
    finally:
        if not kafka.running:
            kafka.stop()
            kafka.start()
        for stream in streams:
            stream.end()
            stream.transport.close()
        for process in applications:
            process.kill()
    for stream in streams:
        assert not stream.troubles
        assert [int(r.value or b"") for r in stream.found] == list(range(stream.sent))
