"""Settings and worker of the engine's query stay there: tables and applications keep Spark's
defaults."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import psutil
import pytest
from job.conftest import Job
from job.processes import INTERPRETED, loop_workers, until
from lakequeue.streaming.loop.loop_options import Options
from lakequeue.streaming.loop.realtime import ENVIRONMENT
from lakequeue.streaming.spark import queries
from lakequeue.streaming.spark.queries import QUERY_SETTINGS
from lakequeue.streaming.spark.spark_session import executors

pytestmark = pytest.mark.job


def test_settings_apply_to_the_engines_query_only(job: Job) -> None:
    """And Spark names the executors on which brokers may step: here this process alone."""

    def of(query: object, key: str) -> str:
        java = query._jsq.streamingQuery()  # type: ignore[attr-defined]
        return str(java.sparkSessionForStream().conf().get(key, None))

    queries = job.engine.application.table_queries  # they start when the engine already serves
    until(lambda: "lakequeue-tables" in queries, 60, "the tables' query")
    assert job.engine.application.spark is not None
    for key, value in QUERY_SETTINGS.items():
        assert of(job.query, key) == value
        if key in INTERPRETED:  # all of this engine's
            continue
        assert of(queries["lakequeue-tables"], key) != value
        assert job.engine.application.spark.conf.get(key, None) != value
    (here,) = executors(job.engine.application.spark)
    assert re.fullmatch(r".+:\d+", here)
    assert job.engine.application.executors() == [], "none is added or removed on this machine"


def test_no_work_of_others_gets_the_worker_of_a_starting_broker(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a batch of the tables. With two workers a broker would change between them, and load
    its state for each batch."""
    spark = job.engine.application.spark
    assert spark is not None
    seen: list[Any] = []

    def started(*_: object) -> None:
        rows = spark.sparkContext.parallelize([0], 1)
        seen.extend(rows.mapPartitions(lambda _: [os.environ.get(ENVIRONMENT)]).collect())

    monkeypatch.setattr(queries, "_start", started)
    options = Options({}, "other", 1, 0, [], "", "")
    queries.start_loop(spark, options, "other", tmp_path, {})
    assert seen == [None]
    (worker,) = loop_workers(psutil.Process().children(recursive=True))
    assert worker.environ()[ENVIRONMENT] == "broker-0"
