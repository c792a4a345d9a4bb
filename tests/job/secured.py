"""A Kafka that asks who is there: the embedded broker with a listener for SASL beside its own."""

from __future__ import annotations

import json
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from lakequeue.streaming import EmbeddedKafka
from lakequeue.streaming.kafka_broker import free_port

USER, PASSWORD = "engine", 'a "quoted\\ secret'
_MODULES = "org.apache.kafka.common.security"


class SecuredKafka(EmbeddedKafka):
    """``secured``: the address at which it asks for credentials. The one without is for itself,
    and for the judge."""

    @property
    def secured(self) -> str:
        return f"{self.host}:{self._secured_port()}"

    def _secured_port(self) -> int:
        memory = self.home / "secured.json"
        if not memory.exists():
            memory.write_text(json.dumps(free_port(besides=self.port)))
        return json.loads(memory.read_text())

    def _configure(self) -> None:
        super()._configure()
        file = self.home / "server.properties"
        plain, asks = f"PLAINTEXT://{self.bootstrap_servers}", f"SASL_PLAINTEXT://{self.secured}"
        text = file.read_text().replace(plain, f"{plain},{asks}")
        named = "protocol.map=PLAINTEXT:PLAINTEXT"
        text = text.replace(named, f"{named},SASL_PLAINTEXT:SASL_PLAINTEXT")
        password = PASSWORD.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\")
        text += (
            "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512\n"
            "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config="
            f"{_MODULES}.scram.ScramLoginModule required;\n"
            "listener.name.sasl_plaintext.plain.sasl.jaas.config="
            f'{_MODULES}.plain.PlainLoginModule required user_{USER}="{password}";\n'
        )
        file.write_text(text)

    def add_user(self) -> None:
        """For SCRAM; PLAIN's stands in the properties."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        wanted = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
        for answer in admin.alter_user_scram_credentials([wanted]).values():
            answer.result(20)


def settings_file(folder: Path, mechanism: str, password: str = PASSWORD) -> Path:
    """What `LAKEQUEUE_KAFKA_SETTINGS` names."""
    file = folder / f"kafka-{mechanism}-{len(password)}.properties"
    file.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f"sasl.username={USER}\nsasl.password={password}\n"
    )
    return file
