"""Kafka's settings, said once: what the file may say, and that every client takes it."""

from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka import KafkaConsumer
from lakequeue.protocol.errors import ConfigError
from lakequeue.protocol.kafka_settings import (
    FOLDER_VARIABLE,
    NAMES,
    VARIABLE,
    credentials,
    encrypted,
    for_java,
    for_kafka_python,
    for_spark,
    kafka_settings,
)

FILE = """
# what our Kafka asks for
security.protocol=SASL_SSL
sasl.mechanism = SCRAM-SHA-512
sasl.username=engine
sasl.password=a"b=c
ssl.ca.location=/etc/ca.pem
socket.timeout.ms=30000
"""


def read(folder: Path, text: str) -> dict[str, str]:
    file = folder / "kafka.properties"
    file.write_text(text)
    return kafka_settings({VARIABLE: str(file)})


def test_one_file_for_all(tmp_path: Path) -> None:
    settings = read(tmp_path, FILE)
    assert settings["sasl.password"] == 'a"b=c'
    assert set(settings) == set(NAMES)
    assert encrypted(settings)
    java = for_java(settings)
    assert java["sasl.jaas.config"] == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="engine" password="a\\"b=c";'
    )
    assert (java["ssl.truststore.location"], java["ssl.truststore.type"]) == ("/etc/ca.pem", "PEM")
    assert for_spark(settings)["kafka.request.timeout.ms"] == "30000"
    assert for_kafka_python(settings)["request_timeout_ms"] == 30_000


def test_the_libraries_know_the_names(tmp_path: Path) -> None:
    settings = read(tmp_path, FILE)
    del settings["ssl.ca.location"]  # librdkafka reads it at once
    Producer(settings)
    assert set(for_kafka_python(settings)) <= set(KafkaConsumer.DEFAULT_CONFIG)


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, "a=b\nnonsense\nsecurity.protocol=TLS\nsocket.timeout.ms=soon\n")
    assert [p.where.rpartition(" ")[2] for p in caught.value.problems] == ["1", "2", "3", "4"]
    with pytest.raises(ConfigError, match=VARIABLE):
        kafka_settings({VARIABLE: str(tmp_path / "nowhere")})


def test_credentials_of_another_kafka_are_a_file_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "east").write_text(FILE)
    there = {FOLDER_VARIABLE: str(tmp_path)}
    assert credentials("east", there)["sasl.password"] == 'a"b=c'
    with pytest.raises(ConfigError, match=r"credentials: '.*/west' – must name a file"):
        credentials("west", there)
    (tmp_path / "east").write_text("sasl.password secret\n")
    with pytest.raises(ConfigError) as caught:
        credentials("east", there)
    assert "line 1: this line: '' – must be name=value" in str(caught.value)
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match=f"'east' – is a file in the folder {FOLDER_VARIABLE}"):
        credentials("east", {})
