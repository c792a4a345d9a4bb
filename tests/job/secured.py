"""A Kafka with authentication: the embedded broker with listeners for SASL, with and without TLS,
beside its own; each user's permissions, as in docs/concepts/security.md; and users who use them,
and try more."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lakequeue
import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from job.processes import until
from lakequeue.protocol.kafka_settings import kafka_settings
from lakequeue.streaming import EmbeddedKafka
from lakequeue.streaming.kafka.embedded_kafka import free_port

USER, PASSWORD = "engine", 'a "quoted\\ secret'
KEY = "0123456789-app-key"  # of the client "app", to the engine
LITERAL, PREFIX = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
_MODULES = "org.apache.kafka.common.security"


class SecuredKafka(EmbeddedKafka):
    """``secured``, and over TLS ``encrypted``: the addresses that require credentials. The one
    without is for itself, and for the judge, who may do everything."""

    @property
    def secured(self) -> str:
        return f"{self.host}:{self._port_of('secured')}"

    @property
    def encrypted(self) -> str:
        return f"{self.host}:{self._port_of('encrypted')}"

    @property
    def certificate(self) -> Path:
        """Its self-signed certificate, which is also that of the authority."""
        return self.home / "certificate.pem"

    def _port_of(self, name: str) -> int:
        memory = self.home / f"{name}.json"
        if not memory.exists():
            memory.write_text(json.dumps(free_port(besides=self.port)))
        return json.loads(memory.read_text())

    def _make_certificate(self) -> Path:
        key, both = self.home / "key.pem", self.home / "keystore.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30",
             "-keyout", key, "-out", self.certificate, "-subj", "/CN=lakequeue",
             "-addext", f"subjectAltName=IP:{self.host}"],
            check=True, capture_output=True,
        )  # fmt: skip
        both.write_text(key.read_text() + self.certificate.read_text())
        return both

    def _configure(self) -> None:
        super()._configure()
        file = self.home / "server.properties"
        plain = f"PLAINTEXT://{self.bootstrap_servers}"
        asks = f"SASL_PLAINTEXT://{self.secured},SASL_SSL://{self.encrypted}"
        text = file.read_text().replace(plain, f"{plain},{asks}")
        named = "protocol.map=PLAINTEXT:PLAINTEXT"
        more = "SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"
        text = text.replace(named, f"{named},{more}")
        password = PASSWORD.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\")
        text += (
            "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512\n"
            "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config="
            f"{_MODULES}.scram.ScramLoginModule required;\n"
            "listener.name.sasl_plaintext.plain.sasl.jaas.config="
            f'{_MODULES}.plain.PlainLoginModule required user_{USER}="{password}";\n'
            "listener.name.sasl_ssl.sasl.enabled.mechanisms=SCRAM-SHA-512\n"
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config="
            f"{_MODULES}.scram.ScramLoginModule required;\n"
            "listener.name.sasl_ssl.ssl.keystore.type=PEM\n"
            f"listener.name.sasl_ssl.ssl.keystore.location={self._make_certificate()}\n"
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
            "super.users=User:ANONYMOUS\n"
        )
        file.write_text(text)

    def add_user(self, user: str = USER) -> None:
        """Add a user for SCRAM; PLAIN's are in the properties."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        wanted = UserScramCredentialUpsertion(user, info, PASSWORD.encode())
        admin = self._admin()  # it answers as long as it is held
        for answer in admin.alter_user_scram_credentials([wanted]).values():
            answer.result(90)

    def allow_engine(self, vpns: Sequence[str], brokers: Sequence[str]) -> None:
        """Allow everything that begins with a VPN's or a broker's name, and what belongs to it."""
        topics = [f"{name}." for name in (*vpns, *brokers)]
        self._allow(USER, [(ResourceType.TOPIC, t, PREFIX, [AclOperation.ALL]) for t in topics])
        named = [AclOperation.WRITE, AclOperation.DESCRIBE]
        logs = [(ResourceType.TRANSACTIONAL_ID, f"lakequeue-{b}.", PREFIX, named) for b in brokers]
        self._allow(USER, logs)
        self._allow(USER, [(ResourceType.GROUP, "*", LITERAL, [AclOperation.READ])])

    def allow_client(self, user: str, vpn: str) -> None:
        """Allow what the page on security lists, and nothing else."""
        write = [AclOperation.WRITE, AclOperation.DESCRIBE]
        read = [AclOperation.READ, AclOperation.DESCRIBE]
        kinds = {"publish": write, "commands": write, "deliveries": read, "receipts": read,
                 "directory": read, "engine": read}  # fmt: skip
        self._allow(
            user, [(ResourceType.TOPIC, f"{vpn}.{k}", LITERAL, ops) for k, ops in kinds.items()]
        )

    def _allow(self, user: str, resources: list[Any]) -> None:
        rules = [
            AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
            for kind, name, pattern, operations in resources
            for operation in operations
        ]
        admin = self._admin()
        for answer in admin.create_acls(rules).values():
            answer.result(90)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers})


def settings_file(
    folder: Path, mechanism: str, password: str = PASSWORD, user: str = USER,
    certificate: Path | None = None,
) -> Path:  # fmt: skip
    """The file for `LAKEQUEUE_KAFKA_SETTINGS`. certificate: of the Kafka, over TLS."""
    file = folder / f"kafka-{user}-{mechanism}-{len(password)}.properties"
    protocol = "SASL_PLAINTEXT" if certificate is None else "SASL_SSL"
    file.write_text(
        f"security.protocol={protocol}\nsasl.mechanism={mechanism}\n"
        f"sasl.username={user}\nsasl.password={password}\n"
        + (f"ssl.ca.location={certificate}\n" if certificate else "")
    )
    return file


def one_message(url: str, vpn: str) -> str:
    with lakequeue.connect(url, vpn=vpn) as connection:
        receipt = connection.producer().send("orders", vpn.encode())
        with connection.consumer("orders", ack_mode="individual") as consumer:
            message = consumer.receive(120)
            assert message is not None
            assert message.payload == vpn.encode()
            message.ack()
        admin = connection.admin()
        until(lambda: admin.describe("orders")["depth"] == 0, 20, "acknowledged")
    return str(receipt.message_id)


def nothing_beyond_its_vpn(kafka: SecuredKafka) -> None:
    """Kafka denies a client of VPN `left` the topics of another VPN and of brokers, and writing to
    those topics of its own VPN that only the engine writes."""
    settings = {"bootstrap.servers": kafka.encrypted, **kafka_settings()}
    refusals: dict[str, int] = {}
    producer = Producer(settings)
    written = ["right.publish", "right.commands", "left.directory", "left.deliveries",
               "a.instructions", "a.mesh", "a.control", "a.steps"]  # fmt: skip
    for topic in written:
        producer.produce(
            topic, b"{}", on_delivery=lambda error, m, t=topic: refusals.update({t: error.code()})
        )
    producer.flush(90)
    denied = KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert {t for t, code in refusals.items() if code == denied} >= {*written}
    consumer = Consumer({**settings, "group.id": "left"})
    for topic in ("right.deliveries", "right.receipts", "right.journal", "a.steps"):
        error = consumer.list_topics(topic, timeout=90).topics[topic].error
        assert error is not None, topic
        assert error.code() == denied
    consumer.close()
    with pytest.raises(lakequeue.LakequeueError):
        lakequeue.connect(f"kafka://{kafka.encrypted}", vpn="right", key=f"app:{KEY}")


def nothing_without_the_right(kafka: SecuredKafka) -> None:
    """The engine refuses clients without a key, with another's key, or without a right to the
    queue."""
    url = f"kafka://{kafka.encrypted}"
    with lakequeue.connect(url, vpn="left", key="app:another-key-0123") as connection:
        with pytest.raises(lakequeue.PermissionDenied, match="has another key than the one"):
            connection.admin().describe("orders")
    with lakequeue.connect(url, vpn="left", key=f"app:{KEY}") as connection:
        with pytest.raises(lakequeue.PermissionDenied, match="has 'read-only' on queue 'others'"):
            connection.consumer("others")
        assert connection.admin().describe("others")["depth"] == 0
        assert connection.admin().usage()["vpn"]["refused"]["permission_denied"] >= 2
