"""A bridge to a second home, with a Kafka and a loop of its own (H1–H3). The copier stops at any
moment, and another one starts there or at an earlier record; and the link is cut under traffic.

Where hosts can be made, the far home is on one of its own: nobody reaches it during the cut, and it
continues alone. Elsewhere its Kafka hangs for as long.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lakequeue
import psutil
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from job.conftest import Job
from job.hosts import Host, Network, NoNetwork
from job.processes import runs, until
from lakequeue.protocol import topics
from lakequeue.streaming import EmbeddedKafka
from lakequeue.streaming.bridges import home_copier
from lakequeue.streaming.bridges.bridge_watch import BridgeWatch
from lakequeue.streaming.bridges.home_copier import HomeCopier
from loop.on_kafka import EPOCH, LoopOnKafka, answers

pytestmark = pytest.mark.job

SILENCE_S = 5.0  # how long a copier waits for an answer here: 30 by default
PAUSE_S_MAX = 3.0  # and between two attempts: 30 by default
CUT_S = 9.0  # longer than that, and than a copier waits for Kafka
OPEN_S_MAX = 90.0
LANES = 3
PER_SECOND = 10
HERE = {
    "name": "here", "message_type": "text", "max_per_subscription_backlog": 100,
    "subscriptions": ["between/>"],
}  # fmt: skip
BRIDGE = {"name": "between", "subscriptions": ["between/>"]}


class FarHome:
    """A Kafka, its loop, and the topics of its bridges, on a host of its own or on this one."""

    def __init__(self, folder: Path, host: Host | None) -> None:
        self._host = host
        with self.there():
            address = "127.0.0.1" if host is None else host.address
            kafka = EmbeddedKafka(folder / "kafka", host=address)
            self.loop = LoopOnKafka(kafka, folder)
            self.loop.begin()
            self.loop.start()
            self._bridges = BridgeWatch(kafka.bootstrap_servers, ["default"])
            self._bridges.open(EPOCH)
            self.url = self.loop.url

    def there(self) -> contextlib.AbstractContextManager[None]:
        """Processes that this thread starts inside are on the home's host."""
        return contextlib.nullcontext() if self._host is None else self._host()

    @property
    def alone(self) -> bool:
        """Whether it continues while nobody reaches it."""
        return self._host is not None

    @contextlib.contextmanager
    def unreachable(self) -> Iterator[None]:
        """Cut it off from the other home."""
        if self._host is not None:
            with self._host.cut_off():
                yield
            return
        kafka = next(
            p for p in psutil.Process().children(recursive=True)
            if runs(p, f"{self.loop.kafka.home}/server.properties")
        )  # fmt: skip
        kafka.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            kafka.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """It stops cleanly, and wrote no error."""
        with self.there():
            assert "stopped:broker-0" in self.loop.stop(self.loop.workers[-1])
        assert "Traceback" not in (self.loop.folder / "stderr-0").read_text()

    def kill(self) -> None:
        self._bridges.stop()
        for worker in self.loop.workers:
            worker.kill()
        self.loop.kafka.stop()


@pytest.fixture
def host() -> Iterator[Host | None]:
    """None where none can be made."""
    with contextlib.ExitStack() as stack:
        found: Host | None = None
        try:
            (found,) = stack.enter_context(Network(1)).hosts
        except NoNetwork as error:
            print(f"Kafka hangs, as no network of one's own can be made here: {error}")
        yield found


class Sender:
    """Sends numbers to each lane, all the time; took: the seconds until each receipt came."""

    def __init__(self, connection: lakequeue.Connection) -> None:
        self.sent: list[Any] = []
        self.took: list[float] = []
        self._producer = connection.producer(window=1_000)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(1 / PER_SECOND):
            n, begun = len(self.sent), time.monotonic()
            future = self._producer.send_async(f"between/{n % LANES}", str(n).encode())
            future.add_done_callback(lambda _, at=begun: self.took.append(time.monotonic() - at))
            self.sent.append(future)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(60)
        self._producer.flush(60)


def take(consumer: lakequeue.Consumer, got: list[int], timeout: float) -> bool:
    message = consumer.receive(timeout=timeout)
    if message is None:
        return False
    got.append(int(message.payload))
    message.ack()
    return True


def begin_again(job: Job, from_the_first: bool) -> None:
    """Stop the copier, and start another one at its position, or at the very first record."""
    copiers, name = job.engine.bridges._copiers, ("default", "broker-0", "between")
    before = copiers[name]
    before.stop()
    before.join(60)
    assert not before.is_alive()
    if from_the_first:
        group = f"lakequeue.bridge.{job.engine.epoch}.default.between"
        place = TopicPartition(topics.topic("broker-0", topics.BRIDGE_OUT), 0, 0, "{}")
        admin = AdminClient({"bootstrap.servers": job.kafka.bootstrap_servers})
        asked = ConsumerGroupTopicPartitions(group, [place])
        for done in admin.alter_consumer_group_offsets([asked]).values():
            done.result(90)
    copiers[name] = HomeCopier(job.kafka.bootstrap_servers, job.engine.epoch, before.bridge)
    copiers[name].start()


def test_H1_H2_nothing_is_lost_or_doubled_over_new_copiers_and_a_cut_link(
    job: Job, connection: lakequeue.Connection, host: Host | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(home_copier, "SILENCE_S", SILENCE_S)
    monkeypatch.setattr(home_copier, "PAUSE_S_MAX", PAUSE_S_MAX)
    far = FarHome(tmp_path, host)
    try:
        with far.there():
            there = lakequeue.connect(far.url, client_name="far")
            until(lambda: answers(there), 30, "the far home answers")
            there.admin().define(HERE)
        with there:
            crosses(job, connection, far, there)
        far.stop()
    finally:
        far.kill()


def crosses(
    job: Job, here: lakequeue.Connection, far: FarHome, there: lakequeue.Connection
) -> None:
    # Copied records stay, and may be copied again.
    job.engine.bridges._trimmed_at = time.monotonic() + 3_600
    near = here.admin()
    near.define({"name": "stays", "message_type": "text", "subscriptions": ["between/>"]})
    near.bridge({**BRIDGE, "to": far.url})

    def seen() -> dict[str, Any]:
        return near.describe_bridge("between")

    def all_there(count: int) -> None:
        while len(got) < count:
            assert take(consumer, got, OPEN_S_MAX), f"{len(got)} of {count}"

    until(lambda: "define bridge 'between' there" in seen()["why"], 40, "its sentence")
    with far.there():
        there.admin().bridge({**BRIDGE, "from": job.url, "to": "broker-0"})
        consumer = there.consumer("here", max_backlog=100)
    until(lambda: seen()["state"] == "open", 60, "that it is open")
    got: list[int] = []
    sender = Sender(here)
    for from_the_first in (False, True):
        all_there(len(got) + 25)
        begin_again(job, from_the_first)
    all_there(len(got) + 25)
    with far.unreachable():
        begun = time.monotonic()
        receipts = len(sender.took)
        while time.monotonic() - begun < CUT_S:
            if not (take(consumer, got, 0.5) or far.alone):
                time.sleep(1)
        during = sender.took[receipts:]
        assert len(during) > CUT_S * PER_SECOND / 10, "producers here wait for the link"
        until(lambda: seen()["state"] == "waiting", 20, "that nobody is reached")
        about = seen()
        assert about["waiting"] + about["on_its_way"] > 0
        cut_off, so_far = len(sender.sent), len(got)
    begun = time.monotonic()
    all_there(cut_off)
    print(
        f"cut for {CUT_S:.0f} s: {cut_off - so_far} messages waited, the longest receipt took "
        f"{max(during):.2f} s; all were there {time.monotonic() - begun:.1f} s after"
    )
    sender.stop()
    all_there(len(sender.sent))
    assert not take(consumer, got, 2)
    assert not [f for f in sender.sent if f.exception()]
    assert Counter(got) == Counter(range(len(sender.sent)))
    lanes: dict[int, list[int]] = defaultdict(list)
    for n in got:
        lanes[n % LANES].append(n)
    assert all(lane == sorted(lane) for lane in lanes.values())
    until(lambda: seen()["taken"] == len(sender.sent), 60, "all answers")
    assert (seen()["state"], seen()["waiting"]) == ("open", 0)
    assert near.describe("stays")["depth"] == len(sender.sent)
    arrived = there.admin().describe_bridge("between")
    assert (arrived["taken"], arrived["state"]) == (len(sender.sent), "open")
    assert arrived["repeated"] > 0
    assert arrived["home"] == {"epoch": job.engine.epoch, "broker": "broker-0"}
    near.bridge({**BRIDGE, "to": job.url})
    until(lambda: "is this home itself" in seen()["why"], 30, "that it is home")
    near.delete_bridge("between")
    near.purge("stays")
    near.delete("stays")
