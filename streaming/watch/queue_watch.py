"""Looks at all queues from time to time, while somebody reads the metrics.

A look is a command like any other: the engine answers in a step, in parts, so it delays no one. Its
cost grows with the number of queues, so the time between looks is stretched until they take at most
a fiftieth of it. While nobody reads the metrics, there are no looks.

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

Connect = Callable[[str, str | None], Any]
Open = dict[tuple[str, str | None], Any]


class QueueWatch:
    """Looks at an engine's queues. connect: opens a connection to a VPN of a broker; None: the
    first broker. credentials: the engine's own, once its home is open."""

    def __init__(
        self,
        bootstrap: str,
        vpns: list[str],
        figures: QueueFigures,
        connect: Connect | None = None,
        every_s: float = EVERY_S,
        credentials: Callable[[], Credentials | None] = lambda: None,
    ) -> None:
        self._vpns, self._figures, self._every_s = vpns, figures, every_s
        self._connect = connect or (
            lambda vpn, broker: connect_kafka(bootstrap, vpn, CLIENT, broker, credentials())
        )
        # Until when the others are known; of each broker besides the first whether it runs.
        self._others: tuple[float, dict[str, bool]] = (0.0, {})
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._seen = threading.Event()
        self._thread: threading.Thread | None = None
        self._wanted_at = 0.0

    def wanted(self) -> None:
        """Somebody reads the metrics: look for a while from now on. The first call waits for a
        look, if the engine answers soon."""
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
        open_ones: Open = {}
        while True:
            rest_s = self._every_s
            try:
                look = self._look(open_ones)
                self._figures.seen(look)
                rest_s = min(max(rest_s, SHARE * look.seconds), REST_S_MAX)
                if look.missing:
                    log.info("some queues cannot be looked at: %s", "; ".join(look.missing))
            except LakequeueError as error:  # the engine or Kafka is away
                log.info("the queues cannot be looked at: %s", error)
                _close(open_ones)
            self._seen.set()
            if self._stopping.wait(rest_s) or not self._still_wanted():
                break
        _close(open_ones)

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
        open_ones: Open = {}
        try:
            look = self._look(open_ones)
        finally:
            _close(open_ones)
        if look.missing:
            raise LakequeueError(f"not all queues can be looked at: {'; '.join(look.missing)}")
        return look

    def _look(self, open_ones: Open) -> Look:
        look, errors = Look(), list[LakequeueError]()

        def attempt(vpn: str, broker: str | None, what: Callable[[Any], None]) -> bool:
            """Ask one broker. Returns False if it did not answer; the look notes why."""
            begun = time.monotonic()
            try:
                what(self._opened(open_ones, vpn, broker))
                # only a broker that answers costs time
                look.seconds += time.monotonic() - begun
                return True
            except LakequeueError as error:
                errors.append(error)
                whose = "the first broker" if broker is None else f"broker {broker!r}"
                look.missing.append(f"{whose} in VPN {vpn!r}: {error}")
                if failed := open_ones.pop((vpn, broker), None):
                    _close({(vpn, broker): failed})
                return False

        def look_at(one: Any) -> None:
            usage = one.request(commands.Usage(), ANSWER_S, broker=one.number)
            queues = one.request_list(commands.Queues(), "after", None, one.number, ANSWER_S)
            look.usage.append(usage)
            look.queues += [{**queue, "broker": usage["broker"]["name"]} for queue in queues]

        for vpn in self._vpns:
            first_answers = attempt(vpn, None, look_at) and attempt(
                vpn, None, self._ask_for_brokers
            )
            for broker, runs in self._others[1].items():
                if runs:
                    attempt(vpn, broker, look_at)
                else:
                    look.missing.append(f"broker {broker!r} in VPN {vpn!r}: it does not run")
            if first_answers:
                look.bridges += _bridges(open_ones[vpn, None])
        if errors and not look.usage:
            raise errors[0]
        look.time = time.time()
        return look

    def _opened(self, open_ones: Open, vpn: str, broker: str | None) -> Any:
        if (vpn, broker) not in open_ones:
            open_ones[vpn, broker] = self._connect(vpn, broker)
        return open_ones[vpn, broker]

    def _ask_for_brokers(self, first: Any) -> None:
        """Look up the other brokers, now and then."""
        now = time.monotonic()
        if now >= self._others[0]:
            known = first.admin().brokers()[1:]
            running = {broker["name"]: broker["state"] == "running" for broker in known}
            self._others = (now + BROKERS_S, running)


def _bridges(first: Any) -> list[dict[str, Any]]:
    """The bridges of a VPN. A broker that is away does not report its own; those of the others are
    complete."""
    try:
        return list(first.admin().bridges())
    except LakequeueError as error:
        log.info("bridges cannot be looked at: %s", error)
        return []


def _close(open_ones: Open) -> None:
    for connection in open_ones.values():
        try:
            connection.close()
        except LakequeueError as error:
            log.info("a connection was not closed in order: %s", error)
    open_ones.clear()
