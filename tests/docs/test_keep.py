"""The retention that `docs/how-to/keep.md` sets, run as it is printed, on a real Kafka. Its backup
is in tests/platform/test_up_survives.py, between the death of an engine and its next start."""

from __future__ import annotations

import re

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from keep_page import PAGE, shell
from lakequeue.streaming.kafka_broker import EmbeddedKafka
from lakequeue.streaming.topics_admin import MESSAGE_BYTES_MAX, ensure_topics


@pytest.mark.job
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
