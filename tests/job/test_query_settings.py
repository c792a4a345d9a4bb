"""Settings of the engine's query stay there: tables and applications keep Spark's defaults."""

from __future__ import annotations

import re

import pytest
from job.conftest import Job
from job.processes import INTERPRETED, until
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
