"""The settings that the pages make with Kafka's own tools, run on a real Kafka as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from docs.printed import ROOT, fenced
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from lakequeue.protocol.bounds import RECORD_BYTES_MAX
from lakequeue.streaming.jars import ensure_jars, java_executable
from lakequeue.streaming.kafka.embedded_kafka import EmbeddedKafka
from lakequeue.streaming.kafka.topics_admin import ensure_topics

BRIEFLY = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
TOOL = "kafka-configs.sh --bootstrap-server …"

pytestmark = pytest.mark.job


def shell(code: str, **environment: str) -> str:
    done = subprocess.run(
        ["bash", "-ec", code], capture_output=True, text=True, timeout=180,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_retention_of_the_page(kafka: EmbeddedKafka) -> None:
    """The setting is made, and the engine's own settings of the topic stay."""
    ensure_topics(kafka.bootstrap_servers, ["default"], [])
    (code,) = [t for kind, t in fenced(ROOT / "docs/how-to/keep.md") if kind == "sh kafka"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    code = code.replace("127.0.0.1:9092", kafka.bootstrap_servers)
    shell(code, PATH=path, JDK_JAVA_OPTIONS=BRIEFLY)
    with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)) as admin:
        for topic in ("default.deliveries", "default.receipts"):
            resource = ConfigResource(ConfigResourceType.TOPIC, topic)
            said = str(admin.describe_configs([resource]))
            assert re.search(r"retention\.ms'?[^}]*?3600000", said), said[:2000]
            assert str(RECORD_BYTES_MAX) in said


def test_kafka_accepts_the_quota_of_the_page(kafka: EmbeddedKafka) -> None:
    """With the class that the shell script starts: the embedded Kafka comes without scripts."""
    text = (ROOT / "docs/concepts/floods.md").read_text()
    printed = re.search(rf"^    {re.escape(TOOL)} .*\n(?:     .*\n)*", text, re.MULTILINE)
    assert printed
    tool = f"{java_executable()} {BRIEFLY} -cp '{ensure_jars().broker[0].parent}/*'"
    tool += f" kafka.admin.ConfigCommand --bootstrap-server {kafka.bootstrap_servers}"
    shell(printed[0].strip().replace(TOOL, tool))
    said = shell(f"{tool} --describe --entity-type users --entity-name a")
    (rate,) = re.findall(r"producer_byte_rate=(\d+)", printed[0])
    assert re.search(rf"user-principal 'a'.*producer_byte_rate={rate}\b", said), said
