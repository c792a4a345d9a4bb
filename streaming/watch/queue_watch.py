"""Looks at all queues from time to time, while somebody scrapes the metrics.

A look is an ordinary command that the engine answers in parts, so it delays no other client. Its
cost grows with the number of queues, so looks become rarer until they take at most a fiftieth of
the time. While nobody scrapes the metrics, there are no looks.

If a broker or a VPN does not answer, a look still has the others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from ...client.kafka import connect_kafka
from ...protocol import LakequeueError, commands
from ...protocol.signing import Credentials
from ...sinks.queue_figures import Look, QueueFigures

log = logging.getLogger("lakequeue.queue_watch")

EVERY_S = 5.0
SHARE = 50  # looks may take one part in this many of all time
REST_S_MAX = 300.0
UNWANTED_S = 90.0  # after the last scrape, until it ends; Prometheus asks every minute by default
FIRST_S = 2.0  # the first scrape waits for the first look
CLIENT = "lakequeue-metrics"

ANSWER_S = 10.0  # seconds that a silent broker may delay the others
BROKERS_S = 60.0  # how often it asks which brokers there are


class QueueWatch:
    """Looks at an engine's queues. connect: opens a connection to a VPN. credentials: the engine's
    own, once its home is open."""

    def __init__(
        self,
        bootstrap: str,
        vpns: list[str],
        figures: QueueFigures,
        connect: Callable[[str], Any] | None = None,
        every_s: float = EVERY_S,
        credentials: Callable[[], Credentials | None] = lambda: None,
    ) -> None:
        self._vpns, self._figures, self._every_s = vpns, figures, every_s
        self._connect = connect or (
            lambda vpn: connect_kafka(bootstrap, vpn, CLIENT, signed_by=credentials())
        )
        self._brokers: list[dict[str, Any]] = []  # as `Admin.brokers` returned them
        self._brokers_until = 0.0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._seen = threading.Event()
        self._thread: threading.Thread | None = None
        self._wanted_at = 0.0

    def wanted(self) -> None:
        """Note that somebody scrapes the metrics, and look at the queues for a while. The first
        call waits up to `FIRST_S` for a look."""
        self._wanted_at = time.monotonic()
        with self._lock:
            if self._thread is None and not self._stopping.is_set():
                self._thread = threading.Thread(
                    target=self._run, daemon=True, name="lakequeue-queue-watch"
                )
                self._thread.start()
        if not self._seen.is_set():
            self._seen.wait(FIRST_S)

    def stop(self) -> None:
        """Stop looking; does not wait for a running look."""
        self._stopping.set()

    def _run(self) -> None:
        connections: dict[str, Any] = {}
        while True:
            rest_s = self._every_s
            try:
                look = self._look(connections)
                self._figures.seen(look)
                rest_s = min(max(rest_s, SHARE * look.seconds), REST_S_MAX)
                if look.missing:
                    log.info("some queues cannot be inspected: %s", "; ".join(look.missing))
            except Exception as error:  # Kafka is away, or somebody wrote into the directory
                bug = not isinstance(error, LakequeueError)
                log.info("the queues cannot be inspected: %s", error, exc_info=bug)
                _close(connections)
            self._seen.set()
            if self._stopping.wait(rest_s) or not self._still_wanted():
                break
        _close(connections)

    def _still_wanted(self) -> bool:
        with self._lock:
            wanted = time.monotonic() - self._wanted_at < UNWANTED_S
            if not wanted:
                self._thread = None
                self._seen.clear()  # the figures are too old by then
            return wanted

    def look(self) -> Look:
        """Look at all queues once. Raises LakequeueError if one did not answer, since it may have
        the oldest message."""
        connections: dict[str, Any] = {}
        try:
            look = self._look(connections)
        finally:
            _close(connections)
        if look.missing:
            raise LakequeueError(f"not all queues can be inspected: {'; '.join(look.missing)}")
        return look

    def _look(self, connections: dict[str, Any]) -> Look:
        """connections: by VPN; new ones are added."""
        look, errors = Look(), list[LakequeueError]()
        for vpn in self._vpns:
            try:
                if vpn not in connections:
                    connections[vpn] = self._connect(vpn)
                first, *others = self._known_brokers(connections[vpn])
            except LakequeueError as error:
                errors.append(error)
                look.missing.append(f"VPN {vpn!r}: {error}")
                _close({vpn: connections.pop(vpn)} if vpn in connections else {})
                continue
            for broker in (first, *others):
                try:
                    if broker is not first and broker["state"] != "running":
                        raise LakequeueError("it does not run")
                    _look_at(connections[vpn], broker["number"], look)
                    if broker is first:
                        look.bridges += _bridges(connections[vpn])
                except LakequeueError as error:
                    errors.append(error)
                    look.missing.append(f"broker {broker['name']!r} in VPN {vpn!r}: {error}")
        if errors and not look.usage:
            raise errors[0]
        look.time = time.time()
        return look

    def _known_brokers(self, connection: Any) -> list[dict[str, Any]]:
        """The engine's brokers, by number, at most `BROKERS_S` old."""
        now = time.monotonic()
        if now >= self._brokers_until:
            self._brokers, self._brokers_until = connection.brokers(), now + BROKERS_S
        return self._brokers or [{"name": "", "number": connection.number}]


def _look_at(connection: Any, number: int, look: Look) -> None:
    """Ask one broker. Only a broker that answers adds to the time that a look takes."""
    begun = time.monotonic()
    usage = connection.request(commands.Usage(), ANSWER_S, broker=number)
    queues = connection.request_list(commands.Queues(), "after", None, number, ANSWER_S)
    look.usage.append(usage)
    look.queues += [{**queue, "broker": usage["broker"]["name"]} for queue in queues]
    look.seconds += time.monotonic() - begun


def _bridges(connection: Any) -> list[dict[str, Any]]:
    """The bridges of a VPN, without those of a broker that does not answer."""
    try:
        return list(connection.admin().bridges())
    except LakequeueError as error:
        log.info("bridges cannot be inspected: %s", error)
        return []


def _close(connections: dict[str, Any]) -> None:
    for connection in connections.values():
        try:
            connection.close()
        except LakequeueError as error:
            log.info("a connection was not closed in order: %s", error)
    connections.clear()
