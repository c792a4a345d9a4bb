"""The client's public names: `connect` returns a connection, over Kafka or in memory."""

from __future__ import annotations

import logging
import pkgutil
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from ..protocol import ConfigError
from ..protocol.bounds import NAME_CHARACTERS_MAX, shown
from .admin import Admin, Redriven
from .connection import Connection, credentials
from .consumer.consumer import Consumer
from .kafka import connect_kafka
from .message import BrowsedMessage, Message
from .producer.producer import Producer, Receipt
from .session.requests import NAME_MAX
from .values import text_of

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

ADDRESSES = "allowed are 'kafka://HOST:PORT' and 'memory://NAME'"
# By name: it stands above the client, and only tests need it.
MEMORY = "lakequeue.memory:open_memory"
URL_MAX = KEY_MAX = 100_000  # characters

# A library does not print. Without this, Python's last-resort handler would write to stderr.
logging.getLogger("lakequeue").addHandler(logging.NullHandler())


def connect(
    url: str,
    *,
    vpn: str = "default",
    client_name: str | None = None,
    broker: str | None = None,
    config: Mapping[str, Any] | str | None = None,
    key: str | None = None,
) -> Connection:
    """Connect to an engine.

    url: ``kafka://host:port[,host:port]``, or ``memory://[name][?config=FILE][&keep=true]`` for an
    engine in this process. Connections to the same memory name share one engine, which ends with
    the last close unless it is kept; without a name each call makes a new one. vpn: the message VPN
    (tenant). client_name: shown to administrators; by default ``client-PID``. broker: the name of
    the broker to talk to; None for the first. config (memory only): a configuration as a mapping,
    or the path of a file. key: ``NAME:KEY``, to sign commands if the engine requires it; by default
    ``$LAKEQUEUE_CLIENT_KEY``, or the content of the file ``$LAKEQUEUE_CLIENT_KEY_FILE``.

    Raises ConfigError for an address it does not understand or an unknown broker, NotConnected
    (within about 5 s) if Kafka does not answer.
    """
    try:
        parts = urlsplit(text_of(url, "url", URL_MAX))
    except ConfigError:
        raise ConfigError(f"url: {shown(url)} – {ADDRESSES}") from None
    except ValueError as error:
        raise ConfigError(f"url: {shown(url)} – {error}; {ADDRESSES}") from error
    # Before anything is asked for an answer.
    text_of(vpn, "vpn", NAME_MAX)
    for what, name, most in (
        ("client_name", client_name, NAME_MAX), ("broker", broker, NAME_CHARACTERS_MAX)
    ):  # fmt: skip
        if name is not None:
            text_of(name, what, most)
    signed_by = credentials(None if key is None else text_of(key, "key", KEY_MAX))
    if parts.path.strip("/") or parts.fragment or (parts.query and parts.scheme == "kafka"):
        raise ConfigError(f"url: {shown(url)} – {ADDRESSES}; a VPN or a broker: vpn=, broker=")
    if parts.scheme == "memory":
        open_memory = pkgutil.resolve_name(MEMORY)
        return open_memory(parts.netloc, parts.query, vpn, client_name, config, broker, signed_by)
    if parts.scheme == "kafka" and parts.netloc:
        if config is not None:
            raise ConfigError(
                "config: works on memory:// only; over Kafka, give it to `lakequeue up`"
            )
        return connect_kafka(parts.netloc, vpn, client_name, broker, signed_by)
    raise ConfigError(f"url: {shown(url)} – {ADDRESSES}")
