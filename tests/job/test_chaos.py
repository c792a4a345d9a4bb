"""Deaths at random moments under traffic, of everything that can die, in one home.

`lakequeue up` serves a producer that repeats its messages and consumers that acknowledge, while
these die by SIGKILL, in an order drawn from a seed:

- *worker*: the Python process that steps;
- *java*: Spark's Java process;
- *kafka*: the embedded broker;
- *driver* (in `make soak`; in `make test` `test_away.py` kills it, alone): the process that the
  user started, alone or with all that it started;
- *frozen*: a worker is frozen (SIGSTOP), its daemon and Spark's Java process die, a successor
  works. It continues (SIGCONT) after longer than any timeout, also that of Kafka's transactions.

A death does not always wait for the recovery from the one before. In the end: no confirmed message
is lost, none came twice without saying so (`traffic.judge`), a replay of every step has the digests
of the log, all records ever written are outputs of the steps (`output_audit.py`), and the Delta
tables have each thing once. No receipt of `durability: delta` came before its message was in the
table.

Then the same home raises an alert, and serves a short day of Celery (`celery_day.py`); in the end
it is stopped while its Kafka hangs.

By default one of each kind dies, except the driver; `make soak` kills `LAKEQUEUE_CHAOS_DEATHS`,
with a seed of its own (`LAKEQUEUE_CHAOS_SEED`). A clean stop in mid-traffic: `test_away.py`.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import lakequeue
import psutil
import pytest
from job.celery_day import HERE, NO_HISTORY, Day
from job.output_audit import UNTRIMMED, judge_what_was_said
from job.processes import UpProcess, gone, loop_workers, runs, thaw, until
from job.tables import check_tables
from job.traffic import Traffic, judge
from lakequeue.lake import read_columns
from lakequeue.sinks.log_writer import transaction_s

pytestmark = pytest.mark.job

DEATHS = int(os.environ.get("LAKEQUEUE_CHAOS_DEATHS", "3"))
SEED = int(os.environ.get("LAKEQUEUE_CHAOS_SEED", "20261126"))
BATCH_S = 5
SETTINGS = (
    *NO_HISTORY, "--set", f"lakequeue.batch_s={BATCH_S}", "--set", "lakequeue.tables_interval_s=12",
)  # fmt: skip
HOME = "home"
FROZEN_S = transaction_s(BATCH_S) + 5  # longer than a transaction of the log may be open
HASTE = 0.3  # the share of deaths that do not wait for traffic
ALONE = 0.5  # the share of drivers that die alone
BACK_S_MAX = 90.0
FIRST = ["worker", "kafka"]  # of each round
DECK = ["worker"] * 5 + ["kafka"] * 2 + ["java"]
SYSTEM = "system: {heartbeat_timeout: 60s}\n"  # with Kafka dead for 12 s no heartbeat arrives
QUEUES = """queues:
  - {name: orders, message_type: text, max_per_subscription_backlog: 50, max_cancels: 0}
  - {name: durable, message_type: text}
  - {name: small, message_type: text, max_spool_usage: 100}
"""
ALERT_S_MAX = 10.0  # a second on an idle machine: the journal is gathered for that long
STOP_S_MAX = 60.0  # of a SIGTERM, in all: 3 s on an idle machine
TOLD = {
    "java": ("Spark's Java process ended", "signal 9", "started again"),
    "kafka": ("Kafka ended", "signal 9", "started again"),
}
TOLD_AGAIN = {"java": ("Spark runs again",), "kafka": ("Kafka runs again",)}


@dataclass
class Chaos:
    """The home, its engine, and the processes frozen meanwhile."""

    folder: Path
    chance: random.Random
    engines: list[UpProcess] = field(default_factory=list)
    frozen: list[tuple[float, psutil.Process]] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)

    @property
    def engine(self) -> UpProcess:
        return self.engines[-1]

    def start(self) -> None:
        config = self.folder / "queues.yaml"
        config.write_text(SYSTEM + QUEUES)
        self.engines.append(UpProcess(self.folder / HOME, config, *SETTINGS, *UNTRIMMED))
        self.engine.wait_ready()

    @property
    def url(self) -> str:
        return f"kafka://{self.engine.bootstrap}"

    def heard(self, *words: str) -> bool:
        lines = self.engine.log.read_text(errors="replace").splitlines()
        return any(all(word in line for word in words) for line in lines)

    def workers(self) -> list[psutil.Process]:
        frozen = {process.pid for _, process in self.frozen}
        return [w for w in loop_workers(self.engine) if w.pid not in frozen]

    def java(self) -> psutil.Process | None:
        return next(
            (p for p in self.engine.family() if runs(p, "org.apache.spark.deploy.SparkSubmit")),
            None,
        )

    def die(self, kind: str) -> None:
        """One death, as soon as there is a process to kill."""
        {
            "worker": self._worker, "java": lambda: self._one(self.java),
            "kafka": lambda: self._one(self.engine.kafka), "frozen": self._freeze,
            "driver": self._driver,
        }[kind]()  # fmt: skip
        self.done[kind] += 1

    def _one(self, find: Callable[[], psutil.Process | None]) -> None:
        victim = self._found(find)
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
        until(lambda: gone(victim), 20, "it is dead")

    def _worker(self) -> None:
        for worker in self._found(self.workers):
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()

    def _freeze(self) -> None:
        """First the worker, then the process that would end it, then the one that waits for it."""
        workers = self._found(self.workers)
        for worker in workers:
            daemon = worker.parent()
            worker.send_signal(signal.SIGSTOP)
            self.frozen.append((time.monotonic(), worker))
            if daemon is not None:
                daemon.kill()
        self._one(self.java)

    def _driver(self) -> None:
        """Alone: Spark's processes end by themselves after some time; the next start does not
        wait."""
        if self.chance.random() < ALONE:
            self.engine.process.kill()
            self.engine.process.wait(30)
        else:
            self.engine.kill()
        self.start()

    def _found(self, find: Callable):
        """The process to kill. An engine that gave up, after five restarts in five minutes, is
        started again, as it asks for."""

        def look():
            if self.engine.process.poll() is not None:
                assert "not started again" in self.engine.errors(), self.engine.errors()
                self.start()
            return find()

        return until(look, BACK_S_MAX, "there is somebody to die")

    def thaw(self) -> None:
        """Frozen processes continue, after longer than any timeout, and notice that they are
        replaced."""
        for since, worker in self.frozen:
            time.sleep(max(0.0, since + FROZEN_S - time.monotonic()))
            thaw(worker)
        self.frozen.clear()

    def stop(self) -> None:
        """Stop it cleanly and soon, with its children."""
        old, begun = self.engine, time.monotonic()
        # The process that archives Java's classes does not touch the home.
        family = psutil.Process(old.process.pid).children(recursive=True)
        children = [child for child in family if not runs(child, "-Xshare:dump")]
        assert old.terminate() == 0, old.errors()
        assert time.monotonic() - begun < STOP_S_MAX, old.errors()
        assert not [child for child in children if not gone(child)], "its home may still change"
        assert old.said[-1]["event"] == "goodbye"
        until(lambda: not old.family(), 30, "all its processes have ended")

    def kill(self) -> None:
        for engine in self.engines:
            engine.kill()


class DurableSender(threading.Thread):
    """Sends one message after the other with `durability="delta"`, and looks into the table at each
    receipt. early: messages whose receipt came before their row."""

    def __init__(self, url: str, tables: Path) -> None:
        super().__init__(daemon=True)
        self._url, self._tables, self._stopping = url, tables, threading.Event()
        self.sent, self.early = 0, list[bytes]()
        self.failure: BaseException | None = None

    def run(self) -> None:
        """The thread."""
        try:
            self._send()
        except BaseException as error:
            self.failure = error

    def _send(self) -> None:
        with (
            lakequeue.connect(self._url) as connection,
            connection.producer(durability="delta") as producer,
        ):
            while not self._stopping.is_set():
                payload = f"durable {self.sent}".encode()
                producer.send("durable", payload, timeout=300)
                found = read_columns(self._tables / "messages", ["payload"])["payload"]
                if payload not in found.to_pylist():
                    self.early.append(payload)
                self.sent += 1

    def finish(self) -> None:
        """Wait for the receipt of the last one."""
        self._stopping.set()
        self.join(120)
        assert not self.is_alive(), "a receipt never came"
        if self.failure is not None:
            raise self.failure


@pytest.fixture(scope="module")
def chaos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chaos]:
    one = Chaos(tmp_path_factory.mktemp("chaos"), random.Random(SEED))
    try:
        one.start()
        yield one
    finally:
        print(one.engine.errors())  # shown where the test failed
        one.kill()


def deaths(chance: random.Random) -> Iterator[list[str]]:
    """The deaths, in rounds that begin with one of each kind: a driver early, because it kills
    frozen processes too; then one is frozen, with the rest of the round as its time. A short run
    spares the driver."""
    left = DEATHS
    while left > 0:
        deck = chance.sample(FIRST, len(FIRST)) + chance.sample(DECK, len(DECK))
        at = chance.randrange(len(FIRST) + 1)
        deck[at:at] = ["driver", "frozen"] if left > len(FIRST) + 1 else ["frozen"]
        yield deck[:left]
        left -= len(deck)


def test_nothing_is_lost_whatever_dies(chaos: Chaos) -> None:
    print(f"LAKEQUEUE_CHAOS_SEED={SEED} LAKEQUEUE_CHAOS_DEATHS={DEATHS}")
    chance = chaos.chance
    bootstrap = chaos.engine.bootstrap
    url, tables = chaos.url, chaos.folder / HOME / "tables"
    traffic, durable = Traffic(url, SEED, per_second=8), DurableSender(url, tables)
    durable.start()
    traffic.goes_on(30, 60)
    until(lambda: durable.sent or durable.failure, 60, "both have begun")
    begun = time.monotonic()
    for kinds in deaths(chance):
        for kind in kinds:
            time.sleep(chance.uniform(0.0, 1.5))
            at = time.monotonic()
            chaos.die(kind)
            back = 0.0 if chance.random() < HASTE else traffic.goes_on(10, BACK_S_MAX)
            print(f"{at - begun:6.1f} s {kind}: {back:.1f} s without a word", flush=True)
        traffic.goes_on(15, BACK_S_MAX)
        chaos.thaw()
    traffic.finish_producing()
    durable.finish()
    admin = traffic.connections[0].admin()
    until(lambda: admin.describe("orders")["depth"] == 0, 90, "the queue is drained")
    counters, events = admin.describe("orders"), admin.events()
    stored = admin.describe("durable")["counters"]["spooled"]
    traffic.finish_consuming()
    judge(traffic, set())
    assert len(traffic.acked) == len(set(traffic.acked)), "acknowledged, and delivered again"
    assert counters["spooled"] == counters["acknowledged"] == len(traffic.sent)
    assert not [e for e in events if e["event"] == "session_lost"], (
        "they were connected all the time"
    )
    assert not durable.early, "a receipt came before the message was in the table"
    assert stored == durable.sent > 0, "stored once each"
    home = chaos.folder / HOME
    check_tables(tables, bootstrap, {f.result().message_id for f in traffic.sent.values()})
    counts = judge_what_was_said(bootstrap, home)
    print(f"{dict(chaos.done)}, {len(traffic.sent)} messages, {counts}")
    died = chaos.done.keys() | ({"java"} if chaos.done["frozen"] else set())
    for kind in TOLD.keys() & died:
        assert chaos.heard(*TOLD[kind])
        assert chaos.heard(*TOLD_AGAIN[kind])
    assert not chaos.heard("Traceback"), chaos.engine.errors()
    assert not chaos.heard("%3|"), "a library's lines, dozens a second"


def test_S9_an_alert_is_logged_at_once(chaos: Chaos) -> None:
    """And not at the end of the batch, which takes up to 30 s by default."""
    with lakequeue.connect(chaos.url) as connection:
        consumer = connection.consumer("small", ack_mode="individual")
        connection.producer().send("small", "x" * 60)
        told = ("spool_usage_high: queue 'small'", "at 60.0 % of 100")
        until(lambda: chaos.heard(*told), ALERT_S_MAX, "the alert")
        message = consumer.receive(120)
        assert message is not None
        message.ack()
        until(lambda: chaos.heard("spool_usage_cleared: queue 'small'"), ALERT_S_MAX, "its end")


def test_a_day_of_celery_and_an_end_while_kafka_hangs(
    chaos: Chaos, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of the day Kafka dies. After the day Kafka hangs (it is stopped, not dead):
    nothing answers and nothing restarts it. SIGTERM ends everything nevertheless. The last test of
    this home."""
    monkeypatch.syspath_prepend(str(HERE))

    def outage(engine: UpProcess) -> UpProcess:
        chaos.die("kafka")
        return engine

    day = Day(chaos.folder, chaos.engine, tasks=120, kills=2, workers=2, seed=37, outage=outage)
    told = day.run()
    assert told["tasks"] + told["not known to be stored"] >= 120
    assert told["outages"] == 1
    assert told["explained by trace"] >= 10
    kafka = chaos.engine.kafka()
    assert kafka is not None
    kafka.suspend()
    time.sleep(1)
    chaos.stop()
    assert not chaos.heard("Traceback"), chaos.engine.errors()
