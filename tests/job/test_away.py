"""Resources of an engine disappear under traffic, and return: room for its tables, Kafka, room for
its state, its worker, the engine itself, its files' contents; and a worker hangs. Nothing is lost,
each fault is reported in a sentence, and the engine continues by itself; so does a backup of it.
One home for all tests, in this order.

Kafka is frozen, so that connections stay open and nothing answers. The disk is full for the
processes that write the state: driver and Java may not let any file grow, as far as the kernel is
concerned.

LAKEQUEUE_AWAY_S: how long each fault lasts (7 s, longer than a silent client keeps its session);
more than 40 also outlasts the loop's transaction.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import deltalake
import lakequeue
import psutil
import pytest
from job.processes import EngineProcess, UpProcess, let_end, loop_workers, runs, until
from job.tables import await_history
from job.traffic import Traffic, drain
from kafka import KafkaProducer
from lakequeue.lake import open_lake, past_replica, read_columns
from lakequeue.lake.past import as_of
from lakequeue.lake.queries_at import admin_of
from lakequeue.protocol.steplog import StepRecord
from lakequeue.sinks.table_damage import LAST, damage
from lakequeue.sources.live import kafka_client
from lakequeue.sources.replay_inputs import read_steps
from lakequeue.state.limits import Limits
from lakequeue.streaming.kafka.topics_admin import ensure_topics
from lakequeue.streaming.loop.worker_process import BELOW, NICE_MAX
from lakequeue.streaming.tables.table_care import MARK
from lakequeue.streaming.tables.table_repair import repair

pytestmark = pytest.mark.job

AWAY_S = float(os.environ.get("LAKEQUEUE_AWAY_S", "7"))
HANGS_S_MAX = 150.0  # 30 s, a check, its end, and a start
SEED = 29
STEPS = "broker-0.steps"
SPARK = "org.apache.spark.deploy.SparkSubmit"
DISK = "64m"
DEEP = 1_500  # more than the live part of a queue holds here: rows are spilled, and loaded again
PLANTED = Path(__file__).parent / "planted"  # see `sitecustomize.py` there
HOME = ".lakequeue"  # as on the page
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "back-up.md"
CONFIG = """
system: {heartbeat_timeout: 5s}
queues:
  - {name: orders, message_type: text, max_per_subscription_backlog: 50}
  - {name: stored, message_type: text, max_per_subscription_backlog: 50}
  - {name: deep, message_type: text, max_per_subscription_backlog: 500}
  - {name: kept, message_type: text}
"""
SETTINGS = (
    "--set", "lakequeue.batch_s=10", "--set", "lakequeue.upkeep_hours=0.02",
    "--set", "lakequeue.retention_days=1", "--set", "lakequeue.tables_interval_s=6",
)  # fmt: skip
OF_THE_BACKUP = (  # upkeep has run by then
    "--set", "lakequeue.upkeep_hours=0", "--set", "lakequeue.history_interval_s=10",
)  # fmt: skip


class SmallDisk:
    """A small file system at a folder; where mounting is forbidden, a folder that nobody may
    write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
        self._mounted = subprocess.run(command, capture_output=True).returncode == 0
        self._ballast = folder / ".ballast"

    def fill(self) -> None:
        """Take all the room."""
        if not self._mounted:
            self._modes(0o500)
            return
        with self._ballast.open("wb", 0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        """Give the room back."""
        self._ballast.unlink() if self._mounted else self._modes(0o700)

    def _modes(self, mode: int) -> None:
        for folder in [self._folder, *(p for p in self._folder.rglob("*") if p.is_dir())]:
            folder.chmod(mode)

    def close(self) -> None:
        if self._mounted:
            subprocess.run(["umount", "-l", str(self._folder)], check=True)
        self._mounted = False


@dataclass
class Place:
    """The engine of this file, and the disk of its tables. freed: when that got room again (epoch,
    s); stored: how often each payload was in the table then."""

    folder: Path
    engine: UpProcess
    disk: SmallDisk
    freed: float = 0.0
    stored: Counter[str] = field(default_factory=Counter)

    @property
    def url(self) -> str:
        return f"kafka://{self.engine.bootstrap}"

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses that it printed when it was ready; a home keeps them."""
        said = next(said for said in self.engine.said if said["event"] == "ready")
        return {name: at for name, at in said["addresses"].items() if name != "tables"}

    @property
    def tables(self) -> Path:
        return self.engine.home / "tables"

    def traffic(self, seed: int) -> Traffic:
        """Traffic, some of it acknowledged."""
        traffic = Traffic(self.url, seed, per_second=10)
        traffic.goes_on(30, 60)
        return traffic

    def said(self, sentence: str) -> int:
        """How often this was logged."""
        return self.engine.log.read_text(errors="replace").count(sentence)

    def logged(self, start: int = 0) -> list[tuple[int, StepRecord]]:
        return read_steps(kafka_client(self.engine.bootstrap, "look"), STEPS, start)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("away")
    (folder / "queues.yaml").write_text(CONFIG)
    disk = SmallDisk(folder / HOME / "tables")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(PLANTED))
        place = Place(folder, UpProcess(folder / HOME, folder / "queues.yaml", *SETTINGS), disk)
        try:
            place.engine.wait_ready()
            yield place
            assert place.engine.terminate() == 0
            said = {line["event"] for line in place.engine.said}
            assert said == {"ready", "goodbye"}, "each line that it printed is JSON"
        finally:
            place.engine.kill()
            disk.close()


@pytest.fixture
def connection(place: Place) -> Iterator[lakequeue.Connection]:
    with lakequeue.connect(place.url) as connection:
        yield connection


def test_sparks_java_maps_the_archive_of_its_classes(place: Place) -> None:
    """(Its creation: `tests/platform/test_jars.py`.)"""
    javas = [process for process in place.engine.family() if runs(process, SPARK)]
    (java,) = [process for process in javas if not runs(process, "-Xshare:dump")]  # makes one
    option = "-XX:SharedArchiveFile="
    found = [word.removeprefix(option) for word in java.cmdline() if word.startswith(option)]
    if not found:
        pytest.skip("no engine of this machine has run for long enough to make one")
    assert found[0] in Path(f"/proc/{java.pid}/maps").read_text()


def payloads(tables: Path) -> Counter[str]:
    rows = read_columns(tables / "messages", ["payload"])["payload"].to_pylist()
    return Counter(payload.decode() for payload in rows)


def test_R1_rows_missed_on_a_full_disk_are_written_once(
    place: Place, connection: lakequeue.Connection
) -> None:
    """Queues continue, the operator is told, and the tables get the rows later."""
    admin, sent = connection.admin(), list[str]()

    def events() -> set[str]:
        return {event["event"] for event in admin.events()}

    def stored() -> Counter[str]:
        return payloads(place.tables)

    with (
        connection.producer() as producer,
        # Its receipt waits as long as the disk is full; a repetition would be a second record.
        connection.producer(durability="delta", pub_ack_time="10m") as durable,
        connection.consumer("stored", max_backlog=50, ack_mode="auto") as consumer,
    ):  # fmt: skip

        def through(text: str) -> None:
            """One message is delivered and acknowledged."""
            producer.send("stored", text, timeout=90)
            sent.append(text)
            until(lambda: (m := consumer.receive(1.0)) and m.payload == text.encode(), 30, text)

        through("before")
        until(lambda: stored()["before"], 60, "the table has the first message")
        place.disk.fill()
        through("full")
        until(lambda: "tables_stopped" in events(), 60, "the alert")
        assert "tables_resumed" not in events()
        waiting = durable.send_async("stored", "durable")
        sent.append("durable")
        for n in range(5):
            through(f"still {n}")
        assert not waiting.done(), "its receipt waits for the tables"
        assert "full" not in stored()
        place.disk.free()
        freed = time.time()
        until(lambda: stored() == Counter(sent), 90, "what was missed is in the table, once")
        assert waiting.result(60).message_id
        until(lambda: "tables_resumed" in events(), 60, "the alert is cleared")
    assert "does not write the tables" in (place.engine.home / "spark.log").read_text()
    place.freed, place.stored = freed, stored()


def test_traffic_continues_after_kafka_was_frozen(place: Place) -> None:
    kafka = place.engine.kafka()
    assert kafka is not None
    traffic = place.traffic(SEED)
    kafka.suspend()
    try:
        until(lambda: place.said("nothing is lost"), 15, "the operator is told")
        time.sleep(AWAY_S)
    finally:
        kafka.resume()
    traffic.goes_on(30, 60)
    until(lambda: place.said("Kafka answers again"), 15, "the operator is told")
    drain(traffic)
    assert place.said("nothing is lost") < max(5.0, AWAY_S / 2), "reported again and again"
    assert not place.said("Traceback")


@contextlib.contextmanager
def full_disk(engine: EngineProcess) -> Iterator[None]:
    """For its driver and its Java process: workers write no files. The driver may still write its
    output, which goes to a file here."""
    before: dict[psutil.Process, tuple[int, int]] = {}
    try:
        for process in engine.family():
            driver = process.pid == engine.process.pid
            java = runs(process, SPARK)  # another one may make an archive of its classes
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


def test_the_state_cannot_be_written(place: Place) -> None:
    traffic = place.traffic(SEED + 1)
    with full_disk(place.engine):
        sentence = "checkpoint cannot be written (File too large)"
        until(lambda: place.said(sentence), 60, "the operator is told")
        time.sleep(AWAY_S)
        assert place.engine.process.poll() is None
    traffic.goes_on(30, 60)
    drain(traffic)
    assert place.said(sentence) <= 2  # of the broker's query, and of the tables'
    assert not place.said("Traceback")


def newest(folder: Path, suffix: str = "") -> Path:
    named = {int(f.stem): f for f in folder.glob(f"*{suffix}") if f.stem.isdecimal()}
    return named[max(named)]


def spoil(home: Path) -> str:
    """Damage a home as a power loss does: the newest batch of the checkpoint, and the newest
    version of a table, with the checkpoint that Delta writes after each tenth. And, as a clean-up
    does, remove a file of another table; returns that file's name."""
    checkpoint, tables = home / "checkpoint" / "broker-0", home / "tables"
    newest(checkpoint / "commits").write_bytes(b"")
    (home / "tables-checkpoint" / "metadata").write_bytes(b"")
    version = newest(tables / "journal" / "_delta_log", ".json")
    for behind in (*version.parent.glob(f"{version.stem}.checkpoint*"), version.parent / LAST):
        behind.unlink(missing_ok=True)
    for file in (newest(checkpoint / "state" / "0" / "0", ".changelog"), version):
        file.write_bytes(file.read_bytes()[:50])
    lost = Path(unquote(deltalake.DeltaTable(tables / "messages").file_uris()[0]))
    lost.unlink()
    return lost.name


def in_journal(tables: Path, event: str) -> Counter[str]:
    rows = read_columns(tables / "journal", ["event", "message_id"]).to_pylist()
    return Counter(row["message_id"] for row in rows if row["event"] == event)


def upkeep_was_beside_writers(place: Place) -> None:
    """Upkeep has run, and all rows that the table had before are still there, once."""
    until(lambda: (place.tables / MARK).stat().st_mtime > place.freed, 150, "upkeep")
    found = payloads(place.tables)
    assert {payload: found[payload] for payload in place.stored} == place.stored
    assert "Deleted" in (place.engine.home / "spark.log").read_text(errors="replace"), (
        "VACUUM prints that, and not into the output that is read as JSON"
    )


def shell(code: str, cwd: Path) -> None:
    """Run a command of the page, with the commands of this environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", code], env={**os.environ, "PATH": path}, cwd=cwd,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def command(start: str) -> str:
    """The one command of the page that begins with this."""
    found = set(re.findall(rf"(?<![\w-]){re.escape(start)} [^`\n]+", PAGE.read_text()))
    assert len(found) == 1, found
    return found.pop()


def start_backup(place: Place) -> None:
    """Start a backup on another disk, as on the page; the original home is deleted. The home is as
    if the driver had died before it learned of the topic "extra", and its files are damaged."""
    home, disk = place.engine.home, place.folder / "another disk"
    (home / "captured.json").unlink()
    shell(command("tar -cSzf"), place.folder)
    place.disk.close()
    shutil.rmtree(home)
    shell(command("tar -xSzf"), place.folder)
    shell(command("mv").replace("/data/lakequeue", f"'{disk}'"), place.folder)
    assert not home.exists()
    lost = spoil(disk)
    assert lost in damage(disk / "tables")
    assert len(repair(disk)) == 2
    assert damage(disk / "tables") == ""
    place.engine = UpProcess(disk, place.folder / "queues.yaml", *SETTINGS, *OF_THE_BACKUP)
    place.engine.wait_ready()
    assert place.said("commits/")
    assert place.said("goes back to its newest whole batch") == 1


def capture_and_keep(place: Place, connection: lakequeue.Connection) -> int:
    """A queue captures a topic that is created after it; of another queue's five messages only the
    last is left. Returns its id."""
    admin, producer = connection.admin(), connection.producer()
    admin.define({"name": "plain", "message_type": "text", "underlying_topic": "extra"})
    ensure_topics(place.engine.bootstrap, [], ["extra"])
    ids = [producer.send("kept", f"{n}").message_id for n in range(5)]
    with connection.consumer("kept", ack_mode="individual", max_backlog=4) as consumer:
        for _ in range(4):
            message = consumer.receive(120)
            assert message is not None
            message.ack()
    until(lambda: admin.describe("kept")["depth"] == 1, 30, "the acks")
    captured = place.engine.home / "captured.json"
    until(
        lambda: captured.exists() and "extra" in captured.read_text(),
        30,
        "the engine knows the topic",
    )
    return int(ids[-1])


def what_was_kept_comes(place: Place, connection: lakequeue.Connection, last: int) -> None:
    """Acknowledged messages stay gone, others come once; ids continue."""
    with connection.consumer("kept", ack_mode="individual") as consumer:
        message = consumer.receive(120)
        assert message is not None
        assert (message.payload, int(message.id)) == (b"4", last)
        message.ack()
        assert consumer.receive(1) is None
    producer = KafkaProducer(bootstrap_servers=place.engine.bootstrap)
    producer.send("extra", b"seen").get(timeout=30)
    producer.close()
    message = connection.consumer("plain").receive(120)
    assert message is not None
    assert message.payload == b"seen"
    assert int(message.id) > last


def test_R1_a_deep_queue_survives_a_killed_worker_and_a_damaged_backup(
    place: Place, connection: lakequeue.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traffic continues over a kill of the worker, and of the driver, after which all other
    processes end by themselves. A backup, made and moved with the commands of the page, serves the
    remaining traffic, at the same ports: all waiting messages are read from the checkpoint, whose
    newest batch is unreadable. Repaired tables get their missing rows, once."""
    monkeypatch.setattr(past_replica, "LIMITS", Limits(live_rows=1_000, segment_rows=128))
    ports = json.loads((place.engine.home / "ports.json").read_text())
    addresses = place.addresses
    assert addresses["Kafka"] == place.url
    assert place.url.startswith("kafka://127.0.0.1:")
    assert f":{ports['metrics']}/" in addresses["metrics"]
    producer = connection.producer(window=5_000)
    for n in range(DEEP):
        producer.send_async("deep", b"%d" % n)
    producer.flush(180)
    last = capture_and_keep(place, connection)
    traffic = place.traffic(SEED + 2)
    for worker in loop_workers(place.engine):
        worker.kill()
    traffic.goes_on(30, 60)
    assert not place.said("Traceback")
    upkeep_was_beside_writers(place)
    before = place.logged()[-1][1].step
    place.engine.process.kill()
    until(lambda: not place.engine.family(), 60, "Kafka and Spark end without their driver")
    place.engine.process.wait(30)
    start_backup(place)
    assert place.addresses == addresses
    traffic.goes_on(30, 60)
    drain(traffic)
    what_was_kept_comes(place, connection, last)
    with connection.consumer("deep", ack_mode="client", max_backlog=500) as consumer:
        for n in range(DEEP):
            message = consumer.receive(timeout=90)
            assert message is not None, f"{n} is missing"
            assert message.payload == b"%d" % n
            if n % 100 == 99:
                message.ack()
    until(lambda: connection.admin().describe("deep")["depth"] == 0, 30, "it is empty")
    numbers = [r.step for _, r in place.logged()]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert numbers[-1] > before
    ids = {sent.result().message_id for sent in traffic.sent.values()}
    until(lambda: ids <= set(in_journal(place.tables, "acknowledged")), 60, "the tables have them")
    for event in ("spooled", "acknowledged"):
        assert set(in_journal(place.tables, event).values()) == {1}, f"{event} more than once"
    await_history(place.tables, connection, "deep")

    def known() -> bool:
        with open_lake(place.engine.home) as lake:
            now = as_of(lake, place.engine.home, "broker-0")
        return not now.notes and not admin_of(now).browse("deep")

    until(known, 60, "the history has all of it, and no gap")


def java_yields(engine: EngineProcess) -> bool:
    """Whether there is one worker, and Spark's Java process has a lower priority: a higher nice
    value, as far as there is one."""
    found = []
    for worker in loop_workers(engine):
        with contextlib.suppress(psutil.Error):  # it has just ended
            above = [process for process in worker.parents() if process.name() == "java"]
            found += [(worker.nice(), java.nice()) for java in above]
    print(found)  # shown where the test fails
    return [java >= min(worker + BELOW, NICE_MAX) for worker, java in found] == [True]


def test_a_hanging_worker_is_restarted(place: Place, connection: lakequeue.Connection) -> None:
    """Like one that waits for ever in a call: Spark would never notice."""
    traffic = place.traffic(SEED + 3)
    (worker,) = loop_workers(place.engine)
    worker.send_signal(signal.SIGSTOP)
    try:
        traffic.goes_on(30, HANGS_S_MAX)
    finally:
        let_end(worker)  # if it was not killed
    drain(traffic)
    until(lambda: java_yields(place.engine), 90, "one worker, to which Java yields")
    assert place.said("broker 'broker-0' hangs")
    assert "broker_stuck" in [e["event"] for e in connection.admin().events()]
    until(lambda: connection.admin().brokers()[0]["state"] == "running", 60, "it is running")
