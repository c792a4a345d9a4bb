"""What is set for the engine's query stays there: tables and applications keep Spark's defaults."""

from __future__ import annotations

import pytest
from job.conftest import Job, in_real_time
from job.processes import until
from lakequeue.streaming.planning import QUERY_SETTINGS

pytestmark = [pytest.mark.job, in_real_time]


@pytest.mark.parametrize("key", QUERY_SETTINGS)
def test_of_the_engines_query_alone(job: Job, key: str) -> None:
    def of(query: object) -> str:
        java = query._jsq.streamingQuery()  # type: ignore[attr-defined]
        return str(java.sparkSessionForStream().conf().get(key, None))

    assert of(job.query) == QUERY_SETTINGS[key]
    queries = job.engine.application.table_queries  # they begin when the engine serves already
    until(lambda: "lakequeue-tables" in queries, 60, "the tables' query")
    assert of(queries["lakequeue-tables"]) != QUERY_SETTINGS[key]
    assert job.engine.application.spark is not None
    assert job.engine.application.spark.conf.get(key, None) != QUERY_SETTINGS[key]
