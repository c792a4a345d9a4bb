"""The commands of `keep.md` and `back-up.md` in `docs/how-to`, run on a real Kafka and Spark."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lakequeue
import psutil
import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from lakequeue.streaming.kafka.embedded_kafka import EmbeddedKafka
from lakequeue.streaming.kafka.topics_admin import MESSAGE_BYTES_MAX, ensure_topics

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to"
QUEUES = """
queues:
  - {name: orders, message_type: json, max_per_subscription_backlog: 10}
"""

pytestmark = pytest.mark.job


def shell(code: str, cwd: Path | None = None) -> None:
    """Run a command of the page, with the commands of this environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", code], env={**os.environ, "PATH": path}, cwd=cwd,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def command(start: str) -> str:
    """The one command of the page about backups that begins so."""
    page = (HOW_TO / "back-up.md").read_text()
    found = set(re.findall(rf"(?<![\w-]){re.escape(start)} [^`\n]+", page))
    assert len(found) == 1, found
    return found.pop()


def alive(one: psutil.Process) -> bool:
    """Whether it can still write something."""
    try:
        return one.is_running() and one.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def up(folder: Path, home: str = ".lakequeue") -> Iterator[str]:
    """`lakequeue up` in a folder, ended in good order; gives its address."""
    log = folder / "up.stderr"
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "lakequeue.cli", "up", "--home", home, "--config",
             "queues.yaml", "--port", "0", "--json"],
            cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said, log.read_text()
        address = json.loads(said)["addresses"]["Kafka"]
        yield "kafka://" + address.removeprefix("kafka://")
        others = psutil.Process(process.pid).children(recursive=True)
        assert {"java"} <= {one.name() for one in others}
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 0, log.read_text()
        assert not [one for one in others if alive(one)], "its home may still change"
    finally:
        process.kill()
        process.wait()


def test_backup_restore_and_another_disk(tmp_path: Path) -> None:
    """What was acknowledged stays gone, what was not comes once, the ids go on."""
    (tmp_path / "queues.yaml").write_text(QUEUES)
    with up(tmp_path) as address, lakequeue.connect(address) as connection:
        producer = connection.producer()
        ids = [producer.send("orders", b"{}").message_id for _ in range(5)]
        with connection.consumer("orders", ack_mode="individual", max_backlog=4) as consumer:
            for _ in range(4):
                message = consumer.receive(30)
                assert message is not None
                message.ack()
    shell(command("tar -cSzf"), tmp_path)
    shutil.rmtree(tmp_path / ".lakequeue")
    shell(command("tar -xSzf"), tmp_path)
    disk = tmp_path / "another disk"
    shell(command("mv").replace("/data/lakequeue", f"'{disk}'"), tmp_path)
    assert not (tmp_path / ".lakequeue").exists()
    with up(tmp_path, str(disk)) as address, lakequeue.connect(address) as connection:
        with connection.consumer("orders", ack_mode="individual", max_backlog=10) as consumer:
            message = consumer.receive(30)
            assert message is not None
            assert message.id == ids[4]
            message.ack()
            assert consumer.receive(3) is None
        receipt = connection.producer().send("orders", b"{}")
        assert receipt.message_id == str(int(ids[4]) + 1)


def test_the_retention_of_the_page(kafka: EmbeddedKafka) -> None:
    """It is set, and what the engine set when it made the topic stays."""
    ensure_topics(kafka.bootstrap_servers, ["default"], [])
    page = (HOW_TO / "keep.md").read_text()
    found = re.search(r"^```sh kafka\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert found
    code = found[1].replace("127.0.0.1:9092", kafka.bootstrap_servers)
    shell(code)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    try:
        for topic in ("default.deliveries", "default.receipts"):
            resource = ConfigResource(ConfigResourceType.TOPIC, topic)
            said = str(admin.describe_configs([resource]))
            assert re.search(r"retention\.ms'?[^}]*?3600000", said), said[:2000]
            assert str(MESSAGE_BYTES_MAX) in said
    finally:
        admin.close()
