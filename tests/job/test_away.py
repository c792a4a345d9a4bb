"""What the engine needs goes away under traffic, and comes back: Kafka, room for the state,
and room for the tables.

A sentence each, no end of the engine, nothing lost, and it goes on by itself. Kafka is frozen, so
that connections stay open and nothing answers. The disk is full for those who write the state:
driver and Java may not let any file grow, as the kernel sees it.

LAKEQUEUE_AWAY_S: how long each is away (10, twice as long as a silent client keeps its session);
more than 40 also outlives the loop's transaction.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import lakequeue
import psutil
import pytest
from job.processes import EngineProcess, until
from job.traffic import Traffic, judge
from lakequeue.cli.delta_reader import read_table
from lakequeue.sources.live import kafka_client
from lakequeue.sources.log_reader import read_steps
from lakequeue.streaming import EmbeddedKafka
from lakequeue.streaming.table_care import MARK

pytestmark = pytest.mark.job

AWAY_S = float(os.environ.get("LAKEQUEUE_AWAY_S", "10"))
SEED = 29
DISK = "24m"  # of the tables
STEPS = "broker-0.steps"
CONFIG = """
system: {heartbeat_timeout: 5s}
queues:
  - {name: orders, message_type: text, max_per_subscription_backlog: 50}
"""
SETTINGS = (
    "--set", "lakequeue.batch_s=3", "--set", "lakequeue.upkeep_hours=0.003",
    "--set", "lakequeue.retention_days=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("away")


class SmallDisk:
    """A small file system at a folder; where one may not mount, a folder that nobody may write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
        self._mounted = subprocess.run(command, capture_output=True).returncode == 0
        self._ballast = folder / ".ballast"

    def fill(self) -> None:
        """There is no room any more."""
        if not self._mounted:
            self._modes(0o500)
            return
        with self._ballast.open("wb", 0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        """There is room again."""
        self._ballast.unlink() if self._mounted else self._modes(0o700)

    def _modes(self, mode: int) -> None:
        for folder in [self._folder, *(p for p in self._folder.rglob("*") if p.is_dir())]:
            folder.chmod(mode)

    def close(self) -> None:
        if self._mounted:
            subprocess.run(["umount", "-l", str(self._folder)], check=True)


@pytest.fixture(scope="module")
def tables(folder: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(folder / "home" / "tables")
    yield disk
    disk.close()


@pytest.fixture(scope="module")
def engine(folder: Path, tables: SmallDisk) -> Iterator[tuple[EngineProcess, str]]:
    (folder / "queues.yaml").write_text(CONFIG)
    with EmbeddedKafka(folder / "kafka") as kafka:
        address = kafka.bootstrap_servers
        engine = EngineProcess(address, folder / "home", folder / "queues.yaml", *SETTINGS)
        try:
            yield engine.wait_ready(), address
            assert engine.terminate() == 0
            assert engine.said[-1]["event"] == "goodbye", "each line that it printed is JSON"
            numbers = [r.step for _, r in read_steps(kafka_client(address, "look"), STEPS, 0)]
            assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]
        finally:
            engine.kill()


def goes_on(traffic: Traffic, seconds: float) -> None:
    enough = len(traffic.acked) + 60
    until(lambda: len(traffic.acked) >= enough or traffic.errors, seconds, "traffic goes on")


def drained(traffic: Traffic) -> None:
    traffic.finish_producing()
    admin = traffic.connections[0].admin()
    until(lambda: admin.describe("orders")["depth"] == 0, 90, "the queue is drained")
    traffic.finish_consuming()
    judge(traffic, set())


def said(engine: EngineProcess, sentence: str) -> int:
    return engine.log.read_text(errors="replace").count(sentence)


def test_kafka_is_frozen(engine: tuple[EngineProcess, str], folder: Path) -> None:
    process, address = engine
    kafka = next(  # other tests may have one too
        child for child in psutil.Process().children(recursive=True)
        if "kafka.Kafka" in child.cmdline() and str(folder) in " ".join(child.cmdline())
    )  # fmt: skip
    traffic = Traffic(f"kafka://{address}", SEED)
    goes_on(traffic, 60)
    kafka.suspend()
    try:
        until(lambda: said(process, "nothing is lost"), 15, "the operator is told")
        time.sleep(AWAY_S)
    finally:
        kafka.resume()
    goes_on(traffic, 60)
    until(lambda: said(process, "Kafka answers again"), 15, "the operator is told")
    drained(traffic)
    assert said(process, "nothing is lost") == 1
    assert not said(process, "Traceback")


@contextlib.contextmanager
def full_disk(engine: EngineProcess) -> Iterator[None]:
    """For its driver and its Java process: workers write no files. The driver may still write its
    lines, which are a file here."""
    before: dict[psutil.Process, tuple[int, int]] = {}
    try:
        for process in engine.family():
            driver, java = process.pid == engine.process.pid, process.name() == "java"
            if driver or java:
                before[process] = process.rlimit(resource.RLIMIT_FSIZE)
                room = 0 if java else 500_000
                process.rlimit(resource.RLIMIT_FSIZE, (room, before[process][1]))
        assert len(before) == 2
        yield
    finally:
        for process in engine.family():  # also those that were started meanwhile
            with contextlib.suppress(psutil.Error):
                process.rlimit(resource.RLIMIT_FSIZE, next(iter(before.values())))


def test_the_state_cannot_be_written(engine: tuple[EngineProcess, str]) -> None:
    process, address = engine
    traffic = Traffic(f"kafka://{address}", SEED + 1)
    goes_on(traffic, 60)
    with full_disk(process):
        sentence = "checkpoint cannot be written (File too large)"
        until(lambda: said(process, sentence), 60, "the operator is told")
        time.sleep(AWAY_S)
        assert process.process.poll() is None
    goes_on(traffic, 60)
    drained(traffic)
    assert said(process, sentence) <= 2  # of the broker's query, and of the tables'
    assert not said(process, "Traceback")


def test_R1_the_tables_cannot_be_written(
    engine: tuple[EngineProcess, str], folder: Path, tables: SmallDisk
) -> None:
    """Queues go on, it is told, and what was missed is written."""
    _, address = engine
    with lakequeue.connect(f"kafka://{address}") as connection:
        go_through(connection, tables, folder / "home" / "tables")
    log = (folder / "home" / "spark.log").read_text(errors="replace")
    assert "does not write the tables" in log
    assert "Deleted" in log, "VACUUM prints that, and not into what is read as JSON"


def go_through(connection: lakequeue.Connection, disk: SmallDisk, tables: Path) -> None:
    admin, sent = connection.admin(), list[str]()

    def events() -> set[str]:
        return {event["event"] for event in admin.events()}

    def stored() -> Counter[str]:
        rows = read_table(tables / "messages", ["payload"])["payload"].to_pylist()
        return Counter(p.decode() for p in rows if p.startswith(b"disk "))

    with (
        connection.producer() as producer, connection.producer(durability="delta") as durable,
        connection.consumer("orders", max_backlog=50, ack_mode="auto") as consumer,
    ):  # fmt: skip

        def through(text: str) -> None:
            """One message is acknowledged, and delivered."""
            text = f"disk {text}"
            producer.send("orders", text, timeout=30)
            sent.append(text)
            until(lambda: (m := consumer.receive(1.0)) and m.payload == text.encode(), 30, text)

        through("before")
        until(lambda: stored()["disk before"], 60, "the table has the first message")
        disk.fill()
        through("full")
        until(lambda: "tables_stopped" in events(), 60, "the alert")
        assert "tables_resumed" not in events()
        waiting = durable.send_async("orders", "disk durable")
        sent.append("disk durable")
        for n in range(5):
            through(f"still {n}")
        assert not waiting.done(), "its receipt waits for the tables"
        assert "disk full" not in stored()
        disk.free()
        freed = time.time()
        until(lambda: stored() == Counter(sent), 90, "what was missed is in the table, once")
        assert waiting.result(60).message_id
        until(lambda: "tables_resumed" in events(), 60, "the alert is cleared")
        until(lambda: (tables / MARK).stat().st_mtime > freed, 90, "upkeep beside the writers")
        assert stored() == Counter(sent)
