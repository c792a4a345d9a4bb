"""The retention of `docs/how-to/keep.md`, set as it is printed, on a real Kafka. (What the page
says of a home's backup: `tests/platform/test_up_survives.py`.)"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from lakequeue.streaming.kafka_broker import EmbeddedKafka
from lakequeue.streaming.topics_admin import MESSAGE_BYTES_MAX, ensure_topics

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "keep.md"

pytestmark = pytest.mark.job


def shell(code: str) -> None:
    """Run a command of the page, with the commands of this environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", code], env={**os.environ, "PATH": path},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_retention_of_the_page(kafka: EmbeddedKafka) -> None:
    """It is set, and what the engine set when it made the topic stays."""
    ensure_topics(kafka.bootstrap_servers, ["default"], [])
    found = re.search(r"^```sh kafka\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
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
