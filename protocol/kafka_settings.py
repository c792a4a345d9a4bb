"""Kafka's connection settings, for clients, the loop and Spark.

The variable ``$LAKEQUEUE_KAFKA_SETTINGS`` names a file of ``name=value`` lines. The names are
librdkafka's, and most are Java's, too:

    security.protocol=SASL_SSL
    sasl.mechanism=SCRAM-SHA-512
    sasl.username=engine
    sasl.password=…
    ssl.ca.location=/etc/kafka/ca.pem

A bridge to another Kafka names such a file in the folder ``$LAKEQUEUE_CREDENTIALS``. Its contents
never appear in a definition, a topic or a log.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import ConfigError, Problem

VARIABLE = "LAKEQUEUE_KAFKA_SETTINGS"
FOLDER_VARIABLE = "LAKEQUEUE_CREDENTIALS"
# Our name: Java's name, kafka-python's name.
NAMES = {
    "security.protocol": ("security.protocol", "security_protocol"),
    "sasl.mechanism": ("sasl.mechanism", "sasl_mechanism"),
    "sasl.username": ("", "sasl_plain_username"),
    "sasl.password": ("", "sasl_plain_password"),
    "ssl.ca.location": ("ssl.truststore.location", "ssl_cafile"),
    "socket.timeout.ms": ("request.timeout.ms", "request_timeout_ms"),
}
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
}
# Kafka's error codes from a partition's former leader. librdkafka keeps asking that leader for
# minutes, unless a call that lists the topics refreshes its metadata.
OLD_LEADER = (6, 74, 75)  # not leader, fenced leader epoch, unknown leader epoch
_VALUES = {"security.protocol": PROTOCOLS, "sasl.mechanism": tuple(MECHANISMS)}


def kafka_settings(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The file's settings under librdkafka's names; empty without a file.

    Raises ConfigError with all problems.
    """
    name = (os.environ if environment is None else environment).get(VARIABLE)
    return settings_in(name, VARIABLE) if name else {}


def credentials(name: str, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The settings for another Kafka: the file of this name in the folder
    ``$LAKEQUEUE_CREDENTIALS``. Raises ConfigError."""
    folder = (os.environ if environment is None else environment).get(FOLDER_VARIABLE)
    if not folder:
        allowed = f"is a file in the folder {FOLDER_VARIABLE}, which is not set"
        raise ConfigError([Problem("", "credentials", name, allowed)])
    return settings_in(str(Path(folder, name)), "credentials")


def settings_in(name: str, source: str) -> dict[str, str]:
    """The settings in a file. source: the variable or key that named it. Raises ConfigError."""
    try:
        lines = Path(name).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([Problem("", source, name, f"must name a file ({error})")]) from error
    settings: dict[str, str] = {}
    problems = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        key, equals, value = (part.strip() for part in text.partition("="))
        where = f"{name}, line {number}"
        if not equals or key not in NAMES:
            allowed = f"must be name=value, with a name of {', '.join(NAMES)}"
            shown = key if equals else "this line"  # it may contain a password
            problems.append(Problem(where, shown, "", allowed))
        elif key in _VALUES and value not in _VALUES[key]:
            problems.append(Problem(where, key, value, f"must be {', '.join(_VALUES[key])}"))
        elif key.endswith(".ms") and not value.isdecimal():
            problems.append(Problem(where, key, value, "must be milliseconds"))
        settings[key] = value
    if problems:
        raise ConfigError(problems)
    return settings


def encrypted(settings: Mapping[str, str]) -> bool:
    """Whether connections use TLS."""
    return settings.get("security.protocol", "").endswith("SSL")


def authenticated(settings: Mapping[str, str]) -> bool:
    """Whether connections need credentials."""
    return settings.get("security.protocol", "").startswith("SASL")


def for_java(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings for Java's clients."""
    out = {NAMES[k][0]: v for k, v in settings.items() if NAMES[k][0]}
    if "sasl.username" in settings:
        module = MECHANISMS[settings.get("sasl.mechanism", "PLAIN")]
        user, password = settings["sasl.username"], settings.get("sasl.password", "")
        out["sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{module} required "
            f'username="{_quoted(user)}" password="{_quoted(password)}";'
        )
    if "ssl.ca.location" in settings:
        out["ssl.truststore.type"] = "PEM"
    return out


def for_spark(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings as options of Spark's Kafka source and sink."""
    return {f"kafka.{k}": v for k, v in for_java(settings).items()}


def for_kafka_python(settings: Mapping[str, str]) -> dict[str, Any]:
    """The settings as arguments of kafka-python."""
    return {
        NAMES[k][1]: int(v) if k.endswith(".ms") else v for k, v in settings.items()
    }  # fmt: skip


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
