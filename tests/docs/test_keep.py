"""The commands of `docs/how-to/keep.md`, run on a real Kafka."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from lakequeue.protocol.bounds import RECORD_BYTES_MAX
from lakequeue.streaming.kafka.embedded_kafka import EmbeddedKafka
from lakequeue.streaming.kafka.topics_admin import ensure_topics

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to"

pytestmark = pytest.mark.job


def test_the_retention_of_the_page(kafka: EmbeddedKafka) -> None:
    """It is set, and what the engine set when it made the topic stays."""
    ensure_topics(kafka.bootstrap_servers, ["default"], [])
    page = (HOW_TO / "keep.md").read_text()
    found = re.search(r"^```sh kafka\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert found
    code = found[1].replace("127.0.0.1:9092", kafka.bootstrap_servers)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    briefly = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    subprocess.run(["bash", "-ec", code], env={**os.environ, "PATH": path} | briefly, check=True)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    try:
        for topic in ("default.deliveries", "default.receipts"):
            resource = ConfigResource(ConfigResourceType.TOPIC, topic)
            said = str(admin.describe_configs([resource]))
            assert re.search(r"retention\.ms'?[^}]*?3600000", said), said[:2000]
            assert str(RECORD_BYTES_MAX) in said
    finally:
        admin.close()
