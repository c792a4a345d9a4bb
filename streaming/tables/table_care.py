"""Scheduled upkeep of the Delta tables, and figures about them.

    lakequeue.upkeep_hours     how often, 24 by default; 0: never
    lakequeue.retention_days   how long rows are kept; 0, the default: for ever
    lakequeue.vacuum_hours     how long files that left a table, and Delta's log, are kept; 48

`sinks.upkeep` does the work. A file beside the tables has the time of the last upkeep, so an engine
that is started every night does not begin with one. After a failure the upkeep is tried again an
hour later. Nothing else in the engine waits for it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from ...protocol.folders import Folder, files_below
from ...sinks.metrics import Metrics
from ...sinks.queue_figures import Look
from ...sinks.upkeep import Rules, Upkeep
from ..engine_settings import EngineSettings
from ..spark.error_causes import cause_of
from ..watch_thread import WatchThread

log = logging.getLogger("lakequeue.tables")

MARK = ".upkeep"
FIRST_S, FIGURES_S = 5.0, 60.0
AGAIN_S = 3_600.0
HOUR_S, DAY_S = 3_600.0, 86_400.0
# tolerance between a message's time in a queue and its row: clocks, slow readers
MARGIN_S = 3_600.0


def rules_of(settings: EngineSettings) -> Rules:
    """The user's rules for upkeep."""
    default = Rules()
    return Rules(
        settings.value("retention_days", default.retention_s / DAY_S) * DAY_S,
        settings.value("vacuum_hours", default.vacuum_hours),
    )


def upkeep_s(settings: EngineSettings) -> float:
    """Seconds between two upkeeps; 0: none."""
    return settings.value("upkeep_hours", 24.0) * HOUR_S


class TableCare(WatchThread):
    """The upkeep of an engine's tables. beside: a folder of the home, even if the tables are
    elsewhere. every_s: between two upkeeps. session: returns Spark's session while it runs. look:
    looks at all queues."""

    def __init__(
        self, tables: Folder, beside: Path, rules: Rules, every_s: float,
        session: Callable[[], SparkSession | None], look: Callable[[], Look], metrics: Metrics,
    ) -> None:  # fmt: skip
        super().__init__("lakequeue-tables")
        self._tables, self._rules, self._every_s = tables, rules, every_s
        self._mark = beside / MARK
        self._session, self._look, self._metrics = session, look, metrics

    def run(self) -> None:
        due, look_at = self._due(time.time()), time.time() + FIRST_S
        while not self._stopping.wait(max(1.0, min(look_at, due) - time.time())):
            begun = time.time()
            if begun >= look_at:
                self.measure()
                look_at = begun + max(FIGURES_S, 50 * (time.time() - begun))
            if begun >= due:
                due = begun + (self._every_s if self.tidy() else min(AGAIN_S, self._every_s))

    def _due(self, now: float) -> float:
        mark = self._mark
        if not self._every_s:
            return math.inf
        if not mark.exists():  # a new home has nothing to tidy
            # the disk is full: only the next start's schedule is affected
            with contextlib.suppress(OSError):
                mark.touch()
            return now + self._every_s
        self._metrics.level("upkeep_time_seconds", mark.stat().st_mtime)
        return mark.stat().st_mtime + self._every_s

    def tidy(self) -> bool:
        """Run one upkeep now; returns whether it succeeded."""
        spark = self._session()
        if spark is None:
            return False
        begun = time.time()
        try:
            spark.sparkContext.setLocalProperty("spark.scheduler.pool", "tables")
            upkeep = Upkeep(spark, self._tables, self._rules, self._stopping.is_set)
            upkeep.run(begun, self._oldest(begun) if self._rules.retention_s else None)
            self._mark.touch()
        except Exception as error:  # Spark ended, the disk is full, a query was in the way
            if not self._stopping.is_set():
                log.warning(
                    "the upkeep of the tables failed and is tried again: %s", cause_of(error)
                )
            return False
        self._metrics.level("upkeep_time_seconds", time.time())
        log.info("the upkeep of the tables took %.0f s", time.time() - begun)
        return True

    def _oldest(self, now: float) -> float | None:
        """When the oldest message in any queue entered, epoch s; None without messages."""
        ages = [q["oldest_age_s"] for q in self._look().queues if q["oldest_age_s"] is not None]
        return now - max(ages) - MARGIN_S if ages else None

    def measure(self) -> None:
        """Put each table's disk use into the metrics."""
        try:
            for log_folder in self._tables.glob("*/_delta_log"):
                table = log_folder.parent
                size, files = disk_use(table)
                self._metrics.level("table_bytes", size, table.name)
                self._metrics.level("table_files", files, table.name)
        except OSError as error:  # an object store refuses; the next time
            log.debug("the tables cannot be inspected: %s", error)


def disk_use(folder: Folder) -> tuple[int, int]:
    """Bytes and files in a folder and all below it."""
    sizes = files_below(folder).values()
    return sum(sizes), len(sizes)
