"""A bridge to a second home, with a Kafka and an engine of its own, and the link between the two is
cut for a minute under traffic (H1–H3).

Where one may make hosts, the far home is on one of its own: nobody reaches it meanwhile, and it
goes on alone. Elsewhere its Kafka hangs for as long.
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
from job.hosts import Host, Network, NoNetwork
from job.processes import EngineProcess, until
from lakequeue.streaming import EmbeddedKafka

pytestmark = pytest.mark.job

CUT_S = 60.0
OPEN_S_MAX = 90.0
LANES = 3
PER_SECOND = 100
CONFIG = "brokers: [{name}]\nqueues:\n  - {{name: here, message_type: text, {keys}}}\n"
BACKLOG = "max_per_subscription_backlog: 100"


class OneHome:
    """A Kafka and an engine, on a host of its own or on this one."""

    def __init__(self, folder: Path, name: str, keys: str, host: Host | None = None) -> None:
        self._host = host
        folder.mkdir()
        config = folder / "queues.yaml"
        config.write_text(CONFIG.format(name=name, keys=keys))
        with self.there():
            address = "127.0.0.1" if host is None else host.address
            self.kafka = EmbeddedKafka(folder / "kafka", host=address)
            self.kafka.start()
            self.url = f"kafka://{self.kafka.bootstrap_servers}"
            self.engine = EngineProcess(
                self.kafka.bootstrap_servers, folder / "home", config,
                "--set", "lakequeue.batch_s=5",
            )  # fmt: skip

    def there(self) -> contextlib.AbstractContextManager[None]:
        """What this thread starts meanwhile is where the home is."""
        return contextlib.nullcontext() if self._host is None else self._host()

    @contextlib.contextmanager
    def unreachable(self) -> Iterator[None]:
        """For the other home."""
        if self._host is not None:
            with self._host.cut_off():
                yield
            return
        kafka = next(
            p for p in psutil.Process().children(recursive=True)
            if f"{self.kafka.home}/server.properties" in p.cmdline()
        )  # fmt: skip
        kafka.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            kafka.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.engine.kill()
        self.kafka.stop()


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    """None where none can be made."""
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(Network(2)).hosts
        except NoNetwork as error:
            print(f"Kafka hangs, as no network of one's own can be made here: {error}")
            found = []
        yield found


class Sender:
    """Sends numbers to each lane, all the time; took: how long each receipt did."""

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


def test_H1_H2_a_link_that_is_cut_for_a_minute_loses_and_doubles_nothing(
    hosts: list[Host], tmp_path: Path
) -> None:
    near_keys = f"{BACKLOG}, subscriptions: ['between/>']"
    homes: list[OneHome] = []
    try:
        homes.append(OneHome(tmp_path / "far", "far", BACKLOG, hosts[0] if hosts else None))
        homes.append(OneHome(tmp_path / "near", "near", near_keys))
        far, near = homes
        for home in homes:
            home.engine.wait_ready()
        bridge = {"name": "between", "subscriptions": ["between/>"]}
        with far.there():
            there = lakequeue.connect(far.url, client_name="far")
            there.admin().bridge({**bridge, "from": near.url, "to": "far"})
            there.admin().subscribe_topic("here", "between/>")
            consumer = there.consumer("here", max_backlog=100)
        here = lakequeue.connect(near.url, client_name="near")
        here.admin().bridge({**bridge, "from": "near", "to": far.url})

        def seen() -> dict[str, Any]:
            return here.admin().describe_bridge("between")

        until(lambda: seen()["state"] == "open", 60, "that it is open")
        got: list[int] = []
        sender = Sender(here)
        while len(got) < 300:
            assert take(consumer, got, OPEN_S_MAX)
        with far.unreachable():
            begun = time.monotonic()
            receipts = len(sender.took)
            while time.monotonic() - begun < CUT_S:
                if not (take(consumer, got, 0.5) or hosts):
                    time.sleep(1)
            during = sender.took[receipts:]
            assert len(during) > CUT_S * PER_SECOND / 4, "producers here wait for the link"
            about = seen()
            assert about["state"] == "waiting"
            assert about["waiting"] + about["on_its_way"] > 0
            cut_off, so_far = len(sender.sent), len(got)
        begun = time.monotonic()
        while len(got) < cut_off:
            assert take(consumer, got, OPEN_S_MAX), f"{len(got)} of {cut_off}"
        print(
            f"cut for {CUT_S:.0f} s: {cut_off - so_far} messages waited, the longest receipt took "
            f"{max(during):.2f} s; all were there {time.monotonic() - begun:.1f} s after"
        )
        sender.stop()
        while len(got) < len(sender.sent):
            assert take(consumer, got, OPEN_S_MAX), f"{len(got)} of {len(sender.sent)}"
        assert not take(consumer, got, 2)
        assert not [f for f in sender.sent if f.exception()]
        assert Counter(got) == Counter(range(len(sender.sent)))
        lanes: dict[int, list[int]] = defaultdict(list)
        for n in got:
            lanes[n % LANES].append(n)
        assert all(lane == sorted(lane) for lane in lanes.values())
        until(lambda: seen()["taken"] == len(sender.sent), 60, "all answers")
        assert (seen()["state"], seen()["waiting"]) == ("open", 0)
        assert here.admin().describe("here")["depth"] == len(sender.sent)
        for connection in (here, there):
            connection.close()
        for home in homes:
            assert home.engine.terminate() == 0
            assert "Traceback" not in home.engine.errors()
    finally:
        for home in homes:
            home.kill()
