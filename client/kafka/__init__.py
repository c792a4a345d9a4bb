"""Which Kafka library a connection uses."""

from __future__ import annotations

import importlib.util
import os

from ...protocol.errors import ConfigError, Problem
from ...protocol.signing import Credentials
from ..connection import Connection, credentials
from ..session.queue_directory import known_brokers, number_of
from ..session.transport import Transport

LIBRARY_VARIABLE = "LAKEQUEUE_KAFKA_LIBRARY"
LIBRARIES = ("confluent-kafka", "kafka-python")


def connect_kafka(
    addresses: str, vpn: str, client_name: str | None, broker: str | None = None,
    signed_by: Credentials | None = None,
) -> Connection:  # fmt: skip
    """A connection over Kafka at these addresses, to a broker by its name; None: the first.
    signed_by: who says its commands; by default as the environment says."""
    name = client_name or f"client-{os.getpid()}"
    signed_by = signed_by or credentials()
    transport = open_kafka(addresses, name)
    try:
        number = 0 if broker is None else number_of(broker, known_brokers(transport, vpn))
        return Connection(transport, vpn, name, number=number, credentials=signed_by)
    except BaseException:
        transport.close()
        raise


def open_kafka(url_host: str, client_name: str, library: str | None = None) -> Transport:
    """Connect to Kafka at ``host:port`` (several with commas; port 9092 when left out).

    library: ``confluent-kafka`` or ``kafka-python``; else ``$LAKEQUEUE_KAFKA_LIBRARY``; else
    confluent-kafka where it is installed, because it is many times faster.
    Raises NotConnected within about 5 s when no broker answers, ConfigError for a library that
    is unknown or not installed.
    """
    chosen = library or os.environ.get(LIBRARY_VARIABLE) or None
    where = "" if library else LIBRARY_VARIABLE
    if chosen is not None and chosen not in LIBRARIES:
        raise ConfigError([Problem(where, "library", chosen, f"one of {', '.join(LIBRARIES)}")])
    installed = importlib.util.find_spec("confluent_kafka") is not None
    if chosen == "confluent-kafka" and not installed:
        allowed = "not installed: pip install confluent-kafka"
        raise ConfigError([Problem(where, "library", chosen, allowed)])
    if chosen == "confluent-kafka" or (chosen is None and installed):
        from .confluent import ConfluentTransport

        return ConfluentTransport(url_host, client_name)
    from .kafka_python import KafkaPythonTransport

    return KafkaPythonTransport(url_host, client_name)
