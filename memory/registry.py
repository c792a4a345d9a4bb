"""Connections to engines in this process, and which connections share an engine.

A named engine lives as long as a connection to it is open, so tests do not see what others left.
With ``keep=true`` it outlives its connections.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from ..client.connection import Connection
from ..client.values import content, text_of, whole
from ..conf import load
from ..definitions import Configuration, parse_configuration
from ..protocol import ConfigError, NotConnected
from ..protocol.bounds import TOPIC_CHARACTERS_MAX, shown
from ..protocol.signing import Credentials
from .in_process import MemoryEngine
from .inline import Inline
from .loopback import MemoryTransport

CLIENT_NAME = "client"


@dataclass(slots=True)
class _SharedEngine:
    """A named engine. users: its open connections."""

    engine: MemoryEngine
    users: int = 0
    keep: bool = False


_named: dict[str, _SharedEngine] = {}
_of_parent: set[str] = set()
_lock = threading.RLock()  # reentrant: a dropped connection may be noticed while it is held


def _after_fork() -> None:
    """A forked child has copies of the engines: both processes would deliver the same messages."""
    global _lock
    _lock = threading.RLock()  # another thread may have held it
    _of_parent.update(_named)
    _named.clear()


os.register_at_fork(after_in_child=_after_fork)


class MemoryConnection(Connection):
    """A connection to an engine in this process, attached to one of its brokers. It keeps a named
    engine alive until it is closed or dropped. ``engine``: for tests that look inside."""

    def __init__(
        self, engine: MemoryEngine, vpn: str, client_name: str, broker: str | None = None,
        signed_by: Credentials | None = None, name: str = "",
    ) -> None:  # fmt: skip
        # First, because the rest may fail.
        self._release = weakref.finalize(self, _leave, name, _named.get(name))
        self._release.atexit = False
        self.engine = engine
        number = engine.broker(broker).home.number
        super().__init__(
            MemoryTransport(engine), vpn, client_name, Inline(engine), number, signed_by
        )

    def advance(self, duration: str | float) -> None:
        """Move the clock, stopping at every deadline on the way. duration: such as `'30s'`, or
        seconds."""
        self.check_open()
        self.engine.advance(duration)

    def publish_raw(
        self, topic: str, value: bytes, key: bytes | None = None,
        headers: dict[str, bytes] | None = None, timestamp: int | None = None,
        partition: int = 0,
    ) -> None:  # fmt: skip
        """Put a plain record on a topic, as any Kafka producer would write it. timestamp: epoch ms,
        by default now. Raises ConfigError."""
        self.check_open()
        text_of(topic, "topic", TOPIC_CHARACTERS_MAX)
        payload = content(value, "value")
        own_key = None if key is None else content(key, "key")
        if not isinstance(headers, Mapping | None):
            raise ConfigError(f"headers: {shown(headers)} – allowed is a mapping of names to bytes")
        given = []
        for name, own in (headers or {}).items():
            known = text_of(name, "headers", TOPIC_CHARACTERS_MAX)
            given.append((known, content(own, f"headers: {shown(name)}")))
        if timestamp is not None:
            whole(timestamp, "timestamp", -(1 << 63), (1 << 63) - 1)
        whole(partition, "partition", 0, (1 << 31) - 1)
        self.engine.publish(topic, payload, own_key, given, timestamp, partition=partition)
        self.runner.sent()

    def attend(self) -> None:
        """Do the background thread's duties."""
        self.runner.sent()

    def close(self) -> None:
        """See `Connection.close`; the last one ends the engine."""
        try:
            super().close()
        finally:
            self._release()


def open_memory(
    name: str,
    query: str,
    vpn: str,
    client_name: str | None,
    config: Mapping[str, Any] | str | None,
    broker: str | None = None,
    signed_by: Credentials | None = None,
) -> MemoryConnection:
    """Connect to the engine with this name, or to a new one. query: of the URL, ``config=FILE`` and
    ``keep=true``. broker: by name; None for the first. Raises ConfigError; NotConnected in a forked
    child if the parent has the engine."""
    options = parse_qs(query, keep_blank_values=True)
    for key in options:
        if key not in ("config", "keep"):
            raise ConfigError(f"url: {key!r} – allowed in a memory:// url are 'config' and 'keep'")
    keep = options.get("keep", ["false"])[-1]
    if keep not in ("true", "false") or (keep == "true" and not name):
        raise ConfigError(f"keep: {keep!r} – allowed are true and false, for an engine with a name")
    source = config if config is not None else options.get("config", [None])[-1]
    configuration = _configuration(source)
    client_name = client_name or CLIENT_NAME
    if not name:
        return MemoryConnection(_engine(configuration), vpn, client_name, broker, signed_by)
    if name in _of_parent:
        raise NotConnected(
            f"the engine of memory://{name} is in the process that this one was forked from – "
            "start its own with another name, or use an engine on Kafka"
        )
    made: MemoryEngine | None = None
    while (named := _join(name, made, keep == "true")) is None:
        made = _engine(configuration)
    try:
        if configuration is not None and named.engine is not made:
            named.engine.configure(configuration)
    except BaseException:
        _leave(name, named)
        raise
    return MemoryConnection(named.engine, vpn, client_name, broker, signed_by, name)


def _join(name: str, made: MemoryEngine | None, keep: bool) -> _SharedEngine | None:
    """The engine with this name, with one more user; the given one if there is none yet. The holder
    of the lock waits for no engine: a thread in an engine may notice a dropped connection, and
    wait for the lock."""
    with _lock:
        named = _named.get(name)
        if named is None and made is not None:
            named = _named[name] = _SharedEngine(made)
        if named is not None:
            named.users += 1
            named.keep = named.keep or keep
        return named


def _find(name: str) -> MemoryEngine | None:
    """The engine with this name, while it lives."""
    with _lock:
        named = _named.get(name)
        return None if named is None else named.engine


def _leave(name: str, named: _SharedEngine | None) -> None:
    with _lock:
        if named is None or _named.get(name) is not named:  # without a name, or the parent's
            return
        named.users -= 1
        if not named.users and not named.keep:
            del _named[name]


def _engine(configuration: Configuration | None) -> MemoryEngine:
    engine = MemoryEngine()
    engine.homes.find = _find
    if configuration is not None:
        engine.configure(configuration)
    engine.checking = os.environ.get("LAKEQUEUE_CHECK") == "1"
    return engine


def _configuration(source: Mapping[str, Any] | str | None) -> Configuration | None:
    if source and isinstance(source, str):
        return load(source)
    if source == "" or not isinstance(source, Mapping | None):
        raise ConfigError(f"config: {shown(source)} – allowed are a mapping and the path of a file")
    return None if source is None else parse_configuration(dict(source))
