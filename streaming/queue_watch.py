"""Looks at all queues now and then, while somebody reads the metrics.

Asking is a command like any other: the engine answers in a step, in parts, so that nobody waits
behind it. It costs what the number of queues makes it cost; so the time between two looks is
stretched until looking takes at most a fiftieth of it. Where nobody reads the metrics, nobody asks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from ..client.kafka_library import connect_kafka
from ..protocol import LakequeueError, commands
from ..sinks.queue_figures import Look, QueueFigures

log = logging.getLogger("lakequeue.queue_watch")

EVERY_S = 5.0
SHARE = 50  # of the time, a look may take one part in so many
REST_S_MAX = 300.0
UNWANTED_S = 90.0  # after the last scrape, until it ends; Prometheus asks every minute by default
FIRST_S = 2.0  # the first scrape waits for the first look
CLIENT = "lakequeue-metrics"

BROKERS_S = 60.0  # how often it asks which brokers there are

Connect = Callable[[str, str | None], Any]
Open = dict[tuple[str, str | None], Any]


class QueueWatch:
    """Of one engine. connect: gives a connection to a VPN of a broker; None: the first one."""

    def __init__(
        self,
        bootstrap: str,
        vpns: list[str],
        figures: QueueFigures,
        connect: Connect | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        self._vpns, self._figures, self._every_s = vpns, figures, every_s
        self._connect = connect or (
            lambda vpn, broker: connect_kafka(bootstrap, vpn, CLIENT, broker)
        )
        self._others: tuple[float, list[str]] = (0.0, [])  # until when, brokers beside the first
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._seen = threading.Event()
        self._thread: threading.Thread | None = None
        self._wanted_at = 0.0

    def wanted(self) -> None:
        """Somebody reads: look from now on, for a while. The first time this waits for a look, if
        the engine answers soon."""
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
        """End the looking; it is not waited for."""
        self._stopping.set()

    def _run(self) -> None:
        open_ones: Open = {}
        while True:
            rest_s = self._every_s
            try:
                look = self._look(open_ones)
                self._figures.seen(look)
                rest_s = min(max(rest_s, SHARE * look.seconds), REST_S_MAX)
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
                self._seen.clear()  # what is known then is old
            return wanted

    def _look(self, open_ones: Open) -> Look:
        look, begun = Look(), time.monotonic()
        for vpn in self._vpns:
            first = self._opened(open_ones, vpn, None)
            for broker in (None, *self._brokers(first, begun)):
                one = self._opened(open_ones, vpn, broker)
                usage = one.request(commands.Usage(), broker=one.number)
                name = usage["broker"]["name"]
                look.usage.append(usage)
                queues = one.request_list(commands.Queues(), "after", broker=one.number)
                look.queues += [{**queue, "broker": name} for queue in queues]
        look.seconds, look.time = time.monotonic() - begun, time.time()
        return look

    def _opened(self, open_ones: Open, vpn: str, broker: str | None) -> Any:
        if (vpn, broker) not in open_ones:
            open_ones[vpn, broker] = self._connect(vpn, broker)
        return open_ones[vpn, broker]

    def _brokers(self, first: Any, now: float) -> list[str]:
        """The brokers that run, beside the first."""
        if now >= self._others[0]:
            known = first.admin().brokers()[1:]
            running = [broker["name"] for broker in known if broker["state"] == "running"]
            self._others = (now + BROKERS_S, running)
        return self._others[1]


def _close(open_ones: Open) -> None:
    for connection in open_ones.values():
        try:
            connection.close()
        except LakequeueError as error:
            log.info("a connection was not closed in order: %s", error)
    open_ones.clear()
