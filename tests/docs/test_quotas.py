"""The quota of `docs/concepts/floods.md`, set as it is printed, on a real Kafka."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from lakequeue.streaming.jars import ensure_jars, java_executable
from lakequeue.streaming.kafka.embedded_kafka import EmbeddedKafka

PAGE = Path(__file__).resolve().parents[2] / "docs" / "concepts" / "floods.md"
TOOL = "kafka-configs.sh --bootstrap-server …"

pytestmark = pytest.mark.job


def shell(code: str) -> str:
    done = subprocess.run(["bash", "-ec", code], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kafka_takes_the_quota_of_the_page(kafka: EmbeddedKafka) -> None:
    """With the class that the shell script starts: the embedded Kafka comes without scripts."""
    printed = re.search(
        rf"^    {re.escape(TOOL)} .*\n(?:     .*\n)*", PAGE.read_text(), re.MULTILINE
    )
    assert printed
    tool = f"{java_executable()} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    tool += f" -cp '{ensure_jars().broker[0].parent}/*' kafka.admin.ConfigCommand"
    tool += f" --bootstrap-server {kafka.bootstrap_servers}"
    shell(printed[0].strip().replace(TOOL, tool))
    said = shell(f"{tool} --describe --entity-type users --entity-name a")
    (rate,) = re.findall(r"producer_byte_rate=(\d+)", printed[0])
    assert re.search(rf"user-principal 'a'.*producer_byte_rate={rate}\b", said), said
