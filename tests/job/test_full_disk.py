"""The disk of the tables is full: queues go on, it is told, and what was missed is written (R1)."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import lakequeue
import pytest
from job.processes import EngineProcess, until
from lakequeue.cli.delta_reader import read_table
from lakequeue.streaming import EmbeddedKafka
from lakequeue.streaming.tables.table_care import MARK

pytestmark = pytest.mark.job

CONFIG = "queues:\n  - {name: orders, message_type: text, max_per_subscription_backlog: 50}\n"
DISK = "24m"


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


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "home" / "tables")
    yield disk
    disk.close()


def test_the_engine_goes_on_delivering(tmp_path: Path, tables: SmallDisk) -> None:
    config = tmp_path / "queues.yaml"
    config.write_text(CONFIG)
    with EmbeddedKafka(tmp_path / "kafka") as kafka:
        often = ["--set", "lakequeue.upkeep_hours=0.003", "--set", "lakequeue.retention_days=1"]
        engine = EngineProcess(kafka.bootstrap_servers, tmp_path / "home", config, *often)
        try:
            engine.wait_ready()
            with lakequeue.connect(f"kafka://{kafka.bootstrap_servers}") as connection:
                go_through(connection, tables, tmp_path / "home" / "tables")
            log = (tmp_path / "home" / "spark.log").read_text(errors="replace")
            assert "does not write the tables" in log
            assert "Deleted" in log, "VACUUM prints that, and not into what is read as JSON"
            assert engine.terminate() == 0
            said = {line["event"] for line in engine.said}
            assert said == {"ready", "goodbye"}, "each line that it printed is JSON"
        finally:
            engine.kill()


def go_through(connection: lakequeue.Connection, disk: SmallDisk, tables: Path) -> None:
    admin, sent = connection.admin(), list[str]()

    def events() -> set[str]:
        return {event["event"] for event in admin.events()}

    def stored() -> Counter[str]:
        return Counter(p.decode() for p in read_table(tables / "messages", ["payload"])[
            "payload"].to_pylist())  # fmt: skip

    with (
        connection.producer() as producer,
        # Its receipt waits as long as the disk is full; sent again, it would be two records.
        connection.producer(durability="delta", pub_ack_time="10m") as durable,
        connection.consumer("orders", max_backlog=50, ack_mode="auto") as consumer,
    ):  # fmt: skip

        def through(text: str) -> None:
            """One message is acknowledged, and delivered."""
            producer.send("orders", text, timeout=30)
            sent.append(text)
            until(lambda: (m := consumer.receive(1.0)) and m.payload == text.encode(), 30, text)

        through("before")
        until(lambda: stored()["before"], 60, "the table has the first message")
        disk.fill()
        through("full")
        until(lambda: "tables_stopped" in events(), 60, "the alert")
        assert "tables_resumed" not in events()
        waiting = durable.send_async("orders", "durable")
        sent.append("durable")
        for n in range(5):
            through(f"still {n}")
        assert not waiting.done(), "its receipt waits for the tables"
        assert "full" not in stored()
        disk.free()
        freed = time.time()
        until(lambda: stored() == Counter(sent), 90, "what was missed is in the table, once")
        assert waiting.result(60).message_id
        until(lambda: "tables_resumed" in events(), 60, "the alert is cleared")
        until(lambda: (tables / MARK).stat().st_mtime > freed, 90, "upkeep beside the writers")
        assert stored() == Counter(sent)
