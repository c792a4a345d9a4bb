"""What applications import: `connect` gives a connection, over Kafka or in memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ..protocol import ConfigError
from .admin import Admin, Redriven
from .connection import Connection
from .consumer import Consumer
from .message import BrowsedMessage, Message
from .producer import Producer, Receipt

__all__ = [
    "Admin",
    "BrowsedMessage",
    "Connection",
    "Consumer",
    "Message",
    "Producer",
    "Receipt",
    "Redriven",
    "connect",
]

_engines: dict[str, Any] = {}
_engines_lock = threading.Lock()


def connect(
    url: str,
    *,
    vpn: str = "default",
    client_name: str | None = None,
    broker: str | None = None,
    config: Mapping[str, Any] | str | None = None,
) -> Connection:
    """Connect to an engine.

    url: ``kafka://host:port[,host:port]``, or ``memory://[name][?config=FILE]`` for an engine in
    this process (two connections to one name share it; without a name it is a new one).
    broker: the broker to talk to; None for the only one. config (memory only): a configuration as
    a mapping or a file's path. Raises ConfigError for an address that is not understood,
    NotConnected when Kafka does not answer.
    """
    parts = urlsplit(url)
    if broker not in (None, "broker-0"):
        raise ConfigError(f"broker: {broker!r} – this version has one broker, 'broker-0'")
    if parts.scheme == "memory":
        return _memory(parts.netloc, parse_qs(parts.query), vpn, client_name or "client", config)
    if parts.scheme == "kafka" and parts.netloc:
        if config is not None:
            raise ConfigError("config: only for memory://; over Kafka the engine has its own")
        from .kafka import open_kafka

        name = client_name or f"client-{os.getpid()}"
        return Connection(open_kafka(parts.netloc, name), vpn, name)
    raise ConfigError(f"url: {url!r} – allowed are 'kafka://HOST:PORT' and 'memory://NAME'")


def _memory(
    name: str,
    query: dict[str, list[str]],
    vpn: str,
    client_name: str,
    config: Mapping[str, Any] | str | None,
) -> Connection:
    from ..conf import load
    from ..definitions import parse_configuration
    from .memory import MemoryEngine, MemoryTransport

    unknown = set(query) - {"config"}
    if unknown:
        raise ConfigError(f"url: {sorted(unknown)[0]!r} – allowed in a memory:// url is 'config'")
    source: Any = config if config is not None else next(iter(query.get("config", [])), None)
    configuration = None
    if isinstance(source, str):
        configuration = load(source)
    elif source is not None:
        configuration = parse_configuration(dict(source))
    with _engines_lock:
        engine = _engines.get(name) if name else None
        if engine is None:
            engine = MemoryEngine(configuration)
            engine.checking = os.environ.get("LAKEQUEUE_CHECK") == "1"
            if name:
                _engines[name] = engine
        elif configuration is not None:
            engine.configure(configuration)
    return Connection(MemoryTransport(engine), vpn, client_name, memory=engine)
