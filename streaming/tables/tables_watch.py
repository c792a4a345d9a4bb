"""Keeps the tables' queries running, and tells the brokers how far the tables are.

`TablesWatch`: the brokers go on whatever happens to these queries.

    a query ends, or does not start
      ─▶ its disk is full  ─▶ alert; check every second whether there is room
         anything else     ─▶ alert at the second time; start again after longer and longer pauses
    it has written a batch again ─▶ clear the alert

A restarted query continues from its checkpoint and writes the missing rows, as far as Kafka still
has the records. The alert is a log line, an event in each VPN (`tables_stopped`, `tables_resumed`)
and a metric. It names a damaged table and its remedy, else the cause. An empty file beside the
tables remembers the alert, so a restarted engine clears it too. A slow object store can make a
start take minutes, so each start has its own thread.

`TablesMarks`: for `durability: delta`. After Delta's commit Spark reports where the batch ended,
and each broker gets a short command about its own partitions. If a report is lost in a crash, the
next commit covers it; a waiting producer sends again and causes one.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...protocol import LakequeueError, topics
from ...protocol.commands import Tables, encode_command
from ...protocol.home_places import TABLES
from ...sinks.metrics import Metrics
from ...sinks.table_damage import damage
from ..application import SparkApplication
from ..broker_query import BrokerQuery
from ..home.home_folder import HomeFolder
from ..spark.error_causes import cause_of
from ..spark.queries import HISTORY_QUERY, TABLES_QUERY, reason

log = logging.getLogger("lakequeue.tables")

PAUSE_S_MAX = 30.0
# how long to wait for a start: at the engine's start, and later
FIRST_S_MAX, START_S_MAX = 20.0, 1.0
LOOK_S = 1.0
WHY_CHARACTERS_MAX = 500
TOLD = ".stopped-"  # the file that says that the operator was told about a query


@dataclass(slots=True)
class StoppedQuery:
    """A query that does not run. tries: how often it ended since it last wrote. due: when to look
    again (monotonic, s). alerted: whether the operator was told. full: whether its disk is full."""

    why: str = ""
    tries: int = 0
    due: float = 0.0
    alerted: bool = False
    full: bool = False


class TablesStart(threading.Thread):
    """The start of a query."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        super().__init__(daemon=True, name=f"start-{name}")
        self._work = work
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._work()
        except Exception as error:  # the watch that started the thread handles it
            self.error = error


class TablesWatch:
    """Watches an engine's table queries. tell: sends a command to the first broker, in each VPN.
    take: takes the lock of the tables, see `TablesLock`."""

    def __init__(
        self, application: SparkApplication, folder: HomeFolder, metrics: Metrics,
        tell: Callable[[bytes], None], take: Callable[[], None],
    ) -> None:  # fmt: skip
        self._application, self._folder = application, folder
        self._metrics, self._tell, self._take = metrics, tell, take
        self._down: dict[str, StoppedQuery] = {}
        self._wanted: dict[str, Callable[[], None]] = {}
        self._starts: dict[str, TablesStart] = {}
        self._told: set[str] = set()  # queries that the operator was told about

    def begin(self) -> None:
        """Start the queries."""
        application = self._application
        if application.tables_interval_s():
            self._wanted[TABLES_QUERY] = application.start_tables
        if application.history_interval_s():
            self._wanted[HISTORY_QUERY] = application.start_history
        for name, start in self._wanted.items():
            self._metrics.level("tables_stopped", 0, name)
            if self._mark(name).exists():
                self._told.add(name)
            self._try(name, start, FIRST_S_MAX)

    def look(self) -> None:
        """Start what has ended and may run again."""
        for name, start in self._wanted.items():
            if name in self._starts and not self._has_started(name, 0.0):
                continue
            query = self._application.table_queries.get(name)
            if query is not None and query.isActive:
                continue
            down = self._down.get(name)
            if query is not None:
                why = reason(query)
                self._application.table_queries.pop(name)
                self._ended(name, why)
            elif down is None or time.monotonic() >= down.due:
                self._try(name, start)

    def batch(self, name: str) -> None:
        """A query has written a batch."""
        self._down.pop(name, None)
        if name in self._told:
            self._told.discard(name)
            with contextlib.suppress(OSError):
                self._mark(name).unlink(missing_ok=True)
            log.warning("the query %r writes the tables again", name)
            self._metrics.level("tables_stopped", 0, name)
            self._send_event("")

    def _try(self, name: str, start: Callable[[], None], wait_s: float = START_S_MAX) -> None:
        down = self._down.get(name)
        if down is not None and down.full and self._room_lacks():
            down.due = time.monotonic() + LOOK_S
            return

        def work() -> None:
            self._take()
            start()

        self._starts[name] = TablesStart(name, work)
        self._starts[name].start()
        self._has_started(name, wait_s)

    def _has_started(self, name: str, wait_s: float) -> bool:
        """Whether the start of a query is over, with or without success."""
        start = self._starts[name]
        start.join(wait_s)
        if start.is_alive():
            return False
        del self._starts[name]
        if start.error is not None and not self._application.java_ended():
            self._ended(name, cause_of(start.error))
        return True

    def _ended(self, name: str, why: str) -> None:
        down = self._down.setdefault(name, StoppedQuery())
        lacks = self._room_lacks()
        down.full, down.tries = bool(lacks), down.tries + 1
        down.why = lacks or why
        pause_s = LOOK_S if down.full else min(2.0**down.tries / 2, PAUSE_S_MAX)
        down.due = time.monotonic() + pause_s
        if not down.alerted and (down.full or down.tries > 1):
            down.alerted = True
            down.why = ((not lacks and self._damage()) or down.why)[:WHY_CHARACTERS_MAX]
            log.error(
                "the query %r does not write the tables: %s; the queues go on, and the missing "
                "rows are written later", name, down.why,
            )  # fmt: skip
            self._metrics.level("tables_stopped", 1, name)
            self._told.add(name)
            with contextlib.suppress(OSError):  # the disk is full; this engine remembers it
                self._mark(name).touch()
            self._send_event(down.why)
        elif not down.alerted:
            log.warning("the query %r ended, %s; it is started again", name, down.why)

    def _mark(self, name: str) -> Path:
        """The marker file: on this machine, even if the tables are elsewhere."""
        return self._folder.path / TABLES / f"{TOLD}{name}"

    def _room_lacks(self) -> str:
        return self._folder.unwritable(self._folder.tables)

    def _damage(self) -> str:
        try:
            return damage(self._folder.tables)
        except (OSError, LakequeueError):  # the store is away: the cause says it
            return ""

    def _send_event(self, why: str) -> None:
        try:
            self._tell(encode_command(Tables(stopped=why)))
        except LakequeueError as error:  # Kafka is away; the log and the metric have it
            log.warning("no event reports this: %s", error)


class TablesMarks:
    """Tells the brokers of an engine. brokers: by name. tell: sends a broker a command."""

    def __init__(
        self, brokers: Mapping[str, BrokerQuery], tell: Callable[[BrokerQuery, bytes], None]
    ) -> None:
        self._brokers, self._tell = brokers, tell
        self._told: dict[str, dict[str, int]] = {}

    def begin(self, broker: BrokerQuery, written: bool) -> None:
        """A broker begins: tell it whether tables are written, and how far."""
        self._told.pop(broker.name, None)
        self._tell(broker, encode_command(Tables(written=written)))

    def batch(self, progress: dict[str, Any]) -> None:
        """A batch of any query is done. progress: Spark's, as in its JSON."""
        if progress.get("name") != TABLES_QUERY:
            return
        ends = ends_of(progress)
        for broker in list(self._brokers.values()):
            told = self._told.setdefault(broker.name, {})
            more = {
                f"{topic}/{partition}": end for (topic, partition), end in ends.items()
                if self._is_of(broker, partition) and told.get(f"{topic}/{partition}") != end
            }  # fmt: skip
            if not more:
                continue
            try:
                self._tell(broker, encode_command(Tables(up_to=more)))
                told |= more
            except LakequeueError as error:  # Kafka is away; the next commit says it
                log.warning("%s was not told how far the tables are: %s", broker.name, error)

    def _is_of(self, broker: BrokerQuery, partition: int) -> bool:
        return len(self._brokers) == 1 or partition in topics.publish_partitions(broker.number)


def ends_of(progress: dict[str, Any]) -> dict[tuple[str, int], int]:
    """Where a batch ended in each partition of the publish topics: the first offset that it did not
    read."""
    found: dict[tuple[str, int], int] = {}
    for source in progress.get("sources") or ():
        ends = source.get("endOffset")
        for topic, partitions in ends.items() if isinstance(ends, dict) else ():
            own = topics.split(topic)
            if own and own[1] == topics.PUBLISH and isinstance(partitions, dict):
                found |= {(topic, int(p)): end for p, end in partitions.items() if end}
    return found
