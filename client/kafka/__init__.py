"""Kafka transports: confluent-kafka and kafka-python behind one interface."""

from __future__ import annotations

import importlib
import os
import sys

from ...protocol.errors import ConfigError, Problem
from ...protocol.signing import Credentials
from ..connection import Connection, credentials
from ..session.queue_directory import known_brokers, number_of
from ..session.transport import Transport

LIBRARY_VARIABLE = "LAKEQUEUE_KAFKA_LIBRARY"
TRANSPORTS = {
    "confluent-kafka": (".confluent", "ConfluentTransport"),
    "kafka-python": (".kafka_python", "KafkaPythonTransport"),
}
LIBRARIES = tuple(TRANSPORTS)
_PATCHES = {  # the module, its question, and what that calls threads
    "gevent.monkey": ("is_module_patched", "threading"),
    "eventlet.patcher": ("is_monkey_patched", "thread"),
}


def connect_kafka(
    addresses: str, vpn: str, client_name: str | None, broker: str | None = None,
    signed_by: Credentials | None = None,
) -> Connection:  # fmt: skip
    """Connect over Kafka, to a broker by its name; None for the first. signed_by: the key that
    signs commands; by default from the environment. Raises as `lakequeue.connect`."""
    name = client_name or f"client-{os.getpid()}"
    signed_by = signed_by or credentials()
    transport = open_kafka(addresses, name)
    try:
        number = 0 if broker is None else number_of(broker, known_brokers(transport, vpn))
        return Connection(transport, vpn, name, number=number, credentials=signed_by)
    except BaseException:  # also Ctrl-C: nobody else could close it
        transport.close()
        raise


def open_kafka(url_host: str, client_name: str, library: str | None = None) -> Transport:
    """Connect to Kafka at ``host:port`` (several with commas; the port defaults to 9092).

    library: ``confluent-kafka`` or ``kafka-python``; by default ``$LAKEQUEUE_KAFKA_LIBRARY``, else
    confluent-kafka, because it is many times faster; but kafka-python where gevent or eventlet has
    replaced threads. Raises NotConnected within about 5 s if no broker answers, ConfigError for an
    unknown library.
    """
    chosen = library or os.environ.get(LIBRARY_VARIABLE)
    if not chosen:
        chosen = "kafka-python" if threads_are_green() else "confluent-kafka"
    if chosen not in LIBRARIES:
        where = "" if library else LIBRARY_VARIABLE
        raise ConfigError([Problem(where, "library", chosen, f"one of {', '.join(LIBRARIES)}")])
    module, transport = TRANSPORTS[chosen]  # by name: only the library that is used is loaded
    return getattr(importlib.import_module(module, __package__), transport)(url_host, client_name)


def threads_are_green() -> bool:
    """Whether gevent or eventlet has replaced threads: they share one, and whatever waits in
    librdkafka would stop them all."""
    return any(
        module in sys.modules and getattr(sys.modules[module], question)(threads)
        for module, (question, threads) in _PATCHES.items()
    )
