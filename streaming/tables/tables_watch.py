"""Keeps the tables' queries running, and reports the tables' progress to the brokers.

`TablesWatch`: the brokers continue whatever happens to these queries.

    a query ends, or does not start
      ─▶ its disk is full  ─▶ alert; check every second whether there is room
         anything else     ─▶ alert at the second time; restart after longer and longer pauses
    it has written a batch again ─▶ clear the alert

A restarted query continues from its checkpoint and writes the missing rows, if Kafka still has the
records. The alert is a log line, an event in each VPN (`tables_stopped`, `tables_resumed`) and a
metric. It names a damaged table and the remedy, or else the cause. An empty file beside the tables
records the alert, so a restarted engine can clear it. On a slow object store a start may take
minutes, so each start has its own thread.

`TablesMarks`: for `durability: delta`. After Delta's commit Spark reports where the batch ended,
and each broker gets a short command about its own partitions. If a report is lost in a crash, the
next commit covers it; a waiting producer sends again, which causes one.
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
TOLD = ".stopped-"  # the file that records an alert about a query


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


@dataclass(slots=True)
class TableQuery:
    """A query that writes tables. tries: how often it ended since it last wrote. due: when to try
    again (monotonic, s). full: whether its disk is full. alerted: whether this engine has raised
    the alert since the query last wrote; told: whether this or an earlier engine has."""

    name: str
    start: Callable[[], None]
    starting: TablesStart | None = None
    tries: int = 0
    due: float = 0.0
    full: bool = False
    alerted: bool = False
    told: bool = False


class TablesWatch:
    """Watches an engine's table queries. tell: sends a command to the first broker, in each VPN.
    take: takes the lock of the tables, see `TablesLock`."""

    def __init__(
        self, application: SparkApplication, folder: HomeFolder, metrics: Metrics,
        tell: Callable[[bytes], None], take: Callable[[], None],
    ) -> None:  # fmt: skip
        self._application, self._folder = application, folder
        self._metrics, self._tell, self._take = metrics, tell, take
        self._queries: dict[str, TableQuery] = {}

    def begin(self) -> None:
        """Start the queries."""
        application = self._application
        if application.tables_interval_s:
            self._begin(TableQuery(TABLES_QUERY, application.start_tables))
        if application.history_interval_s:
            self._begin(TableQuery(HISTORY_QUERY, application.start_history))

    def _begin(self, one: TableQuery) -> None:
        self._queries[one.name] = one
        self._metrics.level("tables_stopped", 0, one.name)
        one.told = self._mark(one.name).exists()
        self._try(one, FIRST_S_MAX)

    def look(self) -> None:
        """Restart queries that have ended and may run again."""
        running = self._application.table_queries
        for one in self._queries.values():
            if one.starting is not None and not self._has_started(one, one.starting, 0.0):
                continue
            query = running.get(one.name)
            if query is None:
                if time.monotonic() >= one.due:
                    self._try(one)
            elif not query.isActive:
                running.pop(one.name)
                self._ended(one, reason(query))

    def batch(self, name: str) -> None:
        """Note that a query has written a batch; clear its alert."""
        one = self._queries.get(name)
        if one is None:
            return
        one.tries, one.due, one.full, one.alerted = 0, 0.0, False, False
        if one.told:
            one.told = False
            with contextlib.suppress(OSError):
                self._mark(name).unlink(missing_ok=True)
            log.warning("the query %r writes the tables again", name)
            self._metrics.level("tables_stopped", 0, name)
            self._send_event("")

    def _try(self, one: TableQuery, wait_s: float = START_S_MAX) -> None:
        if one.full and self._room_lacks():
            one.due = time.monotonic() + LOOK_S
            return

        def work() -> None:
            self._take()
            one.start()

        one.starting = TablesStart(one.name, work)
        one.starting.start()
        self._has_started(one, one.starting, wait_s)

    def _has_started(self, one: TableQuery, start: TablesStart, wait_s: float) -> bool:
        """Whether the start of a query is over, with or without success."""
        start.join(wait_s)
        if start.is_alive():
            return False
        one.starting = None
        if start.error is not None and not self._application.java_ended():
            self._ended(one, cause_of(start.error))
        return True

    def _ended(self, one: TableQuery, why: str) -> None:
        lacks = self._room_lacks()
        one.full, one.tries = bool(lacks), one.tries + 1
        pause_s = LOOK_S if lacks else min(2.0**one.tries / 2, PAUSE_S_MAX)
        one.due = time.monotonic() + pause_s
        if one.alerted:
            return
        if not lacks and one.tries == 1:
            log.warning("the query %r ended, %s; it is started again", one.name, why)
            return
        why = (lacks or self._damage() or why)[:WHY_CHARACTERS_MAX]
        log.error(
            "the query %r does not write the tables: %s; the queues continue, and the missing "
            "rows are written later", one.name, why,
        )  # fmt: skip
        self._metrics.level("tables_stopped", 1, one.name)
        one.alerted = one.told = True
        with contextlib.suppress(OSError):  # the disk is full; this engine remembers it
            self._mark(one.name).touch()
        self._send_event(why)

    def _mark(self, name: str) -> Path:
        """The marker file: on this machine, even if the tables are elsewhere."""
        return self._folder.path / TABLES / f"{TOLD}{name}"

    def _room_lacks(self) -> str:
        return self._folder.unwritable(self._folder.tables)

    def _damage(self) -> str:
        try:
            return damage(self._folder.tables)
        except (OSError, LakequeueError):  # the store does not answer: the cause says so
            return ""

    def _send_event(self, why: str) -> None:
        try:
            self._tell(encode_command(Tables(stopped=why)))
        except LakequeueError as error:  # Kafka is away; the log and the metric have it
            log.warning("no event reports this: %s", error)


class TablesMarks:
    """Reports the tables' progress to the brokers. brokers: by name. tell: sends a broker a
    command."""

    def __init__(
        self, brokers: Mapping[str, BrokerQuery], tell: Callable[[BrokerQuery, bytes], None]
    ) -> None:
        self._brokers, self._tell = brokers, tell
        self._told: dict[str, dict[str, int]] = {}

    def begin(self, broker: BrokerQuery, written: bool) -> None:
        """Tell a starting broker whether tables are written. Their progress follows with the next
        batch."""
        self._told.pop(broker.name, None)
        self._tell(broker, encode_command(Tables(written=written)))

    def batch(self, progress: dict[str, Any]) -> None:
        """Report a batch of the tables' query. progress: of any query's batch, as in Spark's
        JSON."""
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
            except LakequeueError as error:  # Kafka is down; the next commit reports it
                log.warning("the tables' progress did not reach %s: %s", broker.name, error)

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
