"""A VPN at a moment: the newest snapshot of its queues on all brokers, and its recent past.

A snapshot is taken on request if the last one is too old, so a page that is not open costs the
engine nothing. The slower a snapshot is, the older it may become, up to `OLDEST_S`. Rates are
between two snapshots. For charts, the past of at most `QUEUES_KEPT` queues is kept.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ..client.message import moment
from ..protocol import LakequeueError, NotConnected, commands
from ..protocol.descriptions import add_up
from .broker_status import BrokerLook, ask_all, silence
from .queue_details import described

EVERY_S = 2.0
SHARE = 20  # snapshots may take one part in this many of the time
OLDEST_S = 10.0  # but one slow snapshot does not stop the page for a minute
WAIT_S = 3.0  # for an answer
REDRIVE_S = 30.0
BRIDGE_S = 1.0
BRIDGES = 50
POINTS = 150
QUEUES_KEPT = 200
EVENTS = 50
UNKNOWN = (None, None)  # rates in the first snapshot
TOTAL = ""  # the past of all queues together

Connect = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Point:
    """One moment: messages stored, and messages that entered and left per second; None if not known
    yet."""

    at: float
    depth: float
    into: float | None
    out: float | None


@dataclass(slots=True)
class VpnSnapshot:
    """The state of a VPN's queues at a moment.

    queues: as `describe` returns them, each with `in_s`, `out_s` and `again_s` (per second).
    brokers: by name, in the order of their numbers. problem: why there is no newer snapshot.
    silent: the brokers whose part is older. bridges: as `describe_bridge` returns them.
    """

    queues: list[dict[str, Any]] = field(default_factory=list)
    brokers: dict[str, BrokerLook] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    time: datetime = field(default_factory=lambda: datetime.now(UTC))
    problem: str = ""
    silent: str = ""
    bridges: list[dict[str, Any]] = field(default_factory=list)


class VpnMonitor:
    """Watches one VPN. connect: opens a connection, called on first use."""

    def __init__(
        self,
        connect: Connect,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect, self._every_s, self._clock = connect, every_s, clock
        self._connection: Any = None
        self._lock = threading.Lock()
        self._seen = VpnSnapshot()
        self._due = 0.0
        self._before: tuple[float, dict[str, tuple[int, int, int]]] = (0.0, {})
        self._past: dict[str, deque[Point]] = {}

    def look(self) -> VpnSnapshot:
        """The newest snapshot, taken now if the last one is too old. If the engine does not answer,
        the last one, with the problem."""
        if self._clock() < self._due:
            return self._seen
        try:
            self._ask(self._take)
        except LakequeueError as error:
            self._seen.problem = str(error)
        return self._seen

    def queue(self, name: str) -> tuple[dict[str, Any], list[Any]]:
        """One queue right now, with the reasons why it does not move, and its first messages.
        Raises LakequeueError."""
        return self._ask(lambda c: described(c, name))

    def redrive(self, name: str, ids: list[str] | None) -> Any:
        """Send dead messages back: these, or all. Raises LakequeueError."""
        return self._ask(lambda c: _redriven(c.admin(), name, ids), REDRIVE_S)

    def past(self, queue: str = TOTAL) -> list[Point]:
        """The recent past, oldest first."""
        return list(self._past.get(queue, ()))

    def close(self) -> None:
        with self._lock:
            self._drop()

    # ------------------------------------------------------------ the engine

    def _ask(self, what: Callable[[Any], Any], wait_s: float = WAIT_S) -> Any:
        """Make one request at a time, in a thread, so that the page soon reports if the engine does
        not answer. Raises LakequeueError."""
        answer: Future[Any] = Future()
        thread = threading.Thread(
            target=self._answer, args=(what, answer, wait_s), daemon=True, name="lakequeue-monitor"
        )
        thread.start()
        try:
            return answer.result(wait_s)
        except TimeoutError:
            raise LakequeueError(f"The engine has not answered within {wait_s:.0f} s.") from None

    def _answer(self, what: Callable[[Any], Any], answer: Future[Any], wait_s: float) -> None:
        if not self._lock.acquire(timeout=wait_s):
            return  # the caller has given up
        try:
            if self._connection is None:
                self._connection = self._connect()
            answer.set_result(what(self._connection))
        except BaseException as error:  # raised where the answer is awaited
            answer.set_exception(error)
            if isinstance(error, NotConnected):
                self._drop()
        finally:
            self._lock.release()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(LakequeueError):
                connection.close()

    def _take(self, connection: Any) -> None:
        begun = self._clock()
        if begun < self._due:  # another thread took a snapshot meanwhile
            return
        looks = ask_all(connection, self._seen.brokers, EVENTS)
        events = [event for look in looks.values() for event in look.events]
        events = sorted(events, key=lambda event: event["time"])[-EVENTS:]
        events = [{**event, "time": moment(event["time"])} for event in events]
        seen = VpnSnapshot(_whole(looks), looks, events, connection.now(), silent=silence(looks))
        seen.bridges = _bridges(connection)
        at = self._clock()
        self._remember(at, seen.queues)
        rest_s = min(SHARE * (at - begun), OLDEST_S)
        self._seen, self._due = seen, at + max(self._every_s, rest_s)

    def _remember(self, at: float, queues: list[dict[str, Any]]) -> None:
        then, before = self._before
        now: dict[str, tuple[int, int, int]] = {}
        total = [0.0, 0.0, 0.0]
        for queue in queues:
            counters, depth = queue["counters"], queue["depth"]
            spooled = counters["spooled"]
            counts = now[queue["name"]] = spooled, spooled - depth, counters["redelivered"]
            rates = _rates(before.get(queue["name"]), counts, at - then)
            queue["in_s"], queue["out_s"], queue["again_s"] = rates
            total = [total[0] + depth, total[1] + rates[0], total[2] + rates[1]]
            if depth or queue["name"] in self._past or any(rates):
                self._point(queue["name"], Point(at, depth, *(rates[:2] if then else UNKNOWN)))
        self._point(TOTAL, Point(at, total[0], *(total[1:] if then else UNKNOWN)))
        for name in [name for name in self._past if name and name not in now]:
            del self._past[name]
        self._before = at, now

    def _point(self, name: str, point: Point) -> None:
        if name in self._past or len(self._past) <= QUEUES_KEPT:
            self._past.setdefault(name, deque(maxlen=POINTS)).append(point)


def _whole(looks: dict[str, BrokerLook]) -> list[dict[str, Any]]:
    """Every queue of all brokers, by name, with its hosts' figures added up."""
    hosts: dict[str, dict[str, dict[str, Any]]] = {}
    for name, look in looks.items():
        for queue in look.queues:
            hosts.setdefault(queue["name"], {})[name] = queue
    return [add_up(parts) for _, parts in sorted(hosts.items())]


def _rates(
    before: tuple[int, int, int] | None, now: tuple[int, int, int], seconds: float
) -> tuple[float, float, float]:
    """Rates per second since the previous snapshot; zero for a queue that is new or was defined
    again."""
    if before is None or seconds <= 0 or any(b > n for b, n in zip(before, now, strict=True)):
        return 0.0, 0.0, 0.0
    into, out, again = ((n - b) / seconds for b, n in zip(before, now, strict=True))
    return into, out, again


def _bridges(connection: Any) -> list[dict[str, Any]]:
    """The bridges, without those of a broker that does not answer."""
    found: list[dict[str, Any]] = []
    with suppress(LakequeueError):
        for name in connection.request(commands.Bridges(), BRIDGE_S)[:BRIDGES]:
            found.append(connection.request(commands.DescribeBridge(name=name), BRIDGE_S))
    return found


def _redriven(admin: Any, name: str, ids: list[str] | None) -> Any:
    admin.describe(name)  # the ids belong to the home that answers now
    return admin.redrive(name, ids=ids)
