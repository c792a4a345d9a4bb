"""The common part of both Kafka transports: checks, bounds, addresses, log lines.

`confluent` and `kafka_python` give the same guarantees, errors and bounds. Only their speed
differs.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import re
import socket
import struct
import threading
import time
import weakref
from abc import abstractmethod
from typing import Any

from ...protocol.bounds import shown
from ...protocol.errors import ConfigError, NotConnected, Reason, Rejected
from ...protocol.kafka_settings import VARIABLE, authenticated, encrypted, kafka_settings
from ..session.repeats import Repeats
from ..session.transport import Record, Transport
from . import kafka_bounds as bounds

LOGGER = logging.getLogger("lakequeue.client")

PORT_DEFAULT = 9092
ADDRESS = (
    "allowed is host:port, such as 127.0.0.1:9092, with a port of 1 to 65535; several with commas "
    "between them"
)
SLICE_SECONDS = 0.05  # how long Ctrl-C, close() and a new `listen` wait for a running poll


class KafkaTransport(Transport):
    """The base of both transports: checks every call, tracks what is listened to, and reports the
    loss of an earlier record."""

    # The library's objects, which must never be destroyed in a forked child.
    _producer: Any = None
    _consumer: Any = None
    _admin: Any = None

    def __init__(self, bootstrap: str, client_name: str) -> None:
        self.bootstrap = bootstrap
        self.client_name = client_name
        self._process = os.getpid()
        self._closed = False
        self._closing = threading.Lock()
        self._failure: str | None = None
        self._consuming = threading.Lock()  # the library's consumer has one user at a time
        self._listening = threading.Condition()
        self._listened: set[tuple[str, int]] = set()
        # not read yet: topic, partition, first offset
        self._wanted: list[tuple[str, int, int]] = []
        _open.add(self)

    def command(self, topic: str, key: bytes, value: bytes, partition: int = 0) -> None:
        self.publish(topic, value, key, [], partition)

    def newest(self, topic: str) -> dict[bytes, bytes]:
        """See `Transport.newest`. Uses a reader of its own, so listening goes on."""
        self._check()
        found: dict[bytes, bytes] = {}
        for key, value in self._all(topic, self._end(topic, 0)):
            if key is not None and value is not None:
                found[key] = value
            elif key is not None:
                found.pop(key, None)
        return found

    @abstractmethod
    def _all(self, topic: str, end: int) -> list[tuple[bytes | None, bytes | None]]:
        """Keys and values of a topic's partition 0, up to an offset. Raises NotConnected."""

    def listen(self, topic: str, partition: int) -> None:
        """See `Transport.listen`. Looks up the end now, so later records arrive."""
        self._check()
        place = (topic, partition)
        with self._listening:
            if place in self._listened:
                return
        offset = self._end(topic, partition)
        with self._listening:
            if place not in self._listened:
                self._listened.add(place)
                self._wanted.append((topic, partition, offset))
                self._listening.notify_all()

    @abstractmethod
    def _end(self, topic: str, partition: int) -> int:
        """The offset after the last record. Raises NotConnected if the partition or Kafka is
        missing."""

    def poll(self, timeout: float) -> list[Record]:
        """See `Transport.poll`. Notices `listen` and `close` within `SLICE_SECONDS`."""
        self._check()
        deadline = time.monotonic() + timeout
        while True:
            left = max(0.0, deadline - time.monotonic())
            with self._listening:
                if not self._listened:
                    self._listening.wait(min(left, SLICE_SECONDS))
                some = bool(self._listened)
            if some:
                with self._consuming:
                    self._check()
                    records = self._take(min(left, SLICE_SECONDS))
                if records:
                    return records
            if time.monotonic() >= deadline:
                return []
            self._check()

    @abstractmethod
    def _take(self, timeout: float) -> list[Record]:
        """One round of the library's consumer. The caller has exclusive use of it."""

    def _take_wanted(self) -> list[tuple[str, int, int]]:
        with self._listening:
            wanted, self._wanted = self._wanted, []
        return wanted

    def _check(self) -> None:
        if os.getpid() != self._process:
            raise NotConnected(
                f"this connection was opened in process {self._process}; open a new one after fork"
            )
        if self._closed:
            raise NotConnected("this connection is closed")
        if self._failure is not None:
            self._raise_failure()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise NotConnected(failure)

    def _no_room(self, waiting: int) -> NotConnected:
        return NotConnected(
            f"{waiting:,} records are waiting for Kafka at {self.bootstrap}, which has taken none "
            f"for {bounds.FULL_SECONDS_MAX:.0f} s; is it running? (lakequeue doctor)"
        )

    def _begin_close(self) -> bool:
        if os.getpid() != self._process:
            self._check()
        with self._closing:
            first, self._closed = not self._closed, True
        return first

    def _lost(self, topic: str, reason: str) -> None:
        self._failure = f"a record for topic {topic!r} is lost: {reason}"
        LOGGER.warning(self._failure)

    def _forget(self) -> None:
        # In a forked child the libraries' threads do not exist. Their destructors would wait for
        # them for ever, or send again what the parent is sending.
        for handle in (self._producer, self._consumer, self._admin):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


_open: weakref.WeakSet[KafkaTransport] = weakref.WeakSet()


def _after_fork() -> None:
    for transport in list(_open):
        with contextlib.suppress(Exception):  # one must not keep the others from it
            transport._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def servers(bootstrap: str) -> list[tuple[str, int]]:
    """Parse ``host:port,host:port``; the port defaults to 9092. Raises ConfigError."""
    found: list[tuple[str, int]] = []
    for part in filter(None, (piece.strip() for piece in bootstrap.split(","))):
        match = re.fullmatch(r"(\[[^\]]+\]|[^:\s]+)(?::(\d{1,5}))?", part)
        if match is None or not 0 < int(match[2] or PORT_DEFAULT) < 65_536:
            raise ConfigError(f"Kafka's address: {shown(part)} – {ADDRESS}")
        found.append((match[1].strip("[]"), int(match[2] or PORT_DEFAULT)))
    if not found:
        raise ConfigError(f"Kafka's address: {shown(bootstrap)} – {ADDRESS}")
    return found


def reach(bootstrap: str) -> str:
    """The same addresses, each with its port, once a broker has answered. Raises NotConnected, or
    ConfigError for a malformed address."""
    addresses = ",".join(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in servers(bootstrap)
    )
    require_broker(addresses)
    return addresses


def no_answer(bootstrap: str, reason: str) -> NotConnected:
    return NotConnected(f"no Kafka broker answers at {bootstrap} – {reason}")


def no_kafka(bootstrap: str, said: str) -> NotConnected:
    """The error for a peer that answers in another protocol, or not at all."""
    return no_answer(bootstrap, f"what listens there is no Kafka, or is too slow ({said})")


def too_large(value_bytes: int) -> Rejected:
    allowed = f"{bounds.MESSAGE_BYTES_MAX:,} are allowed"
    return Rejected(Reason.MESSAGE_TOO_LARGE, detail=f"{value_bytes:,} bytes, and {allowed}")


def require_broker(bootstrap: str, seconds: float = bounds.OPEN_SECONDS_MAX) -> None:
    """Raise NotConnected unless a Kafka broker answers at one of the addresses in time.

    The libraries would try for their whole timeout without saying why. A broker that requires
    credentials answers only the first question.
    """
    reason = "no time left"
    addresses = servers(bootstrap)
    settings = kafka_settings()
    deadline = time.monotonic() + seconds
    for left, (host, port) in zip(range(len(addresses), 0, -1), addresses, strict=True):
        until = time.monotonic() + max(0.2, (deadline - time.monotonic()) / left)
        try:
            with socket.create_connection((host, port), until - time.monotonic()) as peer:
                if encrypted(settings):
                    return
                greeted = ask(peer, _HELLO, until) is not None
                if greeted and (authenticated(settings) or ask(peer, METADATA, until) is not None):
                    return
            hung_up = time.monotonic() < until
            if hung_up:  # raises OSError if it was killed just now
                socket.create_connection((host, port), max(0.2, until - time.monotonic())).close()
            if hung_up and greeted:
                raise NotConnected(
                    f"Kafka at {bootstrap} asks for credentials: name a file that has "
                    f"them in {VARIABLE} (security.protocol, sasl.username, …)"
                )
            said = "does not speak Kafka" if hung_up else "does not answer in time"
            reason = f"something listens there but {said}"
        except TimeoutError:
            reason = "it does not accept a connection in time"
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
    raise no_answer(bootstrap, reason)


def refused(bootstrap: str, reason: str) -> NotConnected:
    """The error for credentials that Kafka does not accept."""
    return NotConnected(f"Kafka at {bootstrap} refuses the credentials in {VARIABLE} – {reason}")


# Size, api_key 18 (ApiVersions, which brokers answer to everybody), version 0, correlation id, no
# client id. The answer begins with its size and the same correlation id. Then api_key 3 (Metadata,
# which brokers answer to authenticated peers only), version 4, for no topic.
_HELLO = struct.pack(">ihhih", 10, 18, 0, 0x6C717565, -1)
METADATA = struct.pack(">ihhihib", 15, 3, 4, 0x6C717565, -1, 0, 0)
_ANSWER = struct.Struct(">ii")
_ANSWER_BYTES_MAX = 100_000


def ask(peer: socket.socket, question: bytes, until: float) -> bytes | None:
    """A peer's answer to a request, behind the correlation id; None if it does not answer as Kafka
    does, in time (monotonic s)."""
    try:
        peer.sendall(question)
        size, correlation = _ANSWER.unpack(_exactly(peer, _ANSWER.size, until))
        if not 4 < size < _ANSWER_BYTES_MAX or correlation != 0x6C717565:
            return None
        return _exactly(peer, size - 4, until)
    except OSError:
        return None


def _exactly(peer: socket.socket, size: int, until: float) -> bytes:
    """This many bytes; raises OSError if they do not come in time."""
    found = b""
    while len(found) < size:
        peer.settimeout(max(0.01, until - time.monotonic()))
        if not (part := peer.recv(size - len(found))):
            raise ConnectionResetError
        found += part
    return found


class LibraryLog(logging.Handler):
    """Passes a Kafka library's log on to `lakequeue.client`, at most as warnings, without what it
    repeats."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._repeats = Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
            if self._repeats.is_news(text):
                LOGGER.log(min(record.levelno, logging.WARNING), "%s: %s", record.name, text)
        except Exception:  # an error here must not end a library's thread
            self.handleError(record)
