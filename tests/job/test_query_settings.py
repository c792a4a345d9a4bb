"""What is set for the engine's query stays there: tables and applications keep Spark's defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from job.conftest import Job, in_real_time
from job.processes import until
from lakequeue.streaming.application import SOCKETS
from lakequeue.streaming.spark.queries import QUERY_SETTINGS
from lakequeue.streaming.spark.spark_session import executors

pytestmark = pytest.mark.job


@in_real_time
def test_of_the_engines_query_alone(job: Job) -> None:
    """And Spark says where brokers may step."""

    def of(query: object, key: str) -> str:
        java = query._jsq.streamingQuery()  # type: ignore[attr-defined]
        return str(java.sparkSessionForStream().conf().get(key, None))

    queries = job.engine.application.table_queries  # they begin when the engine serves already
    until(lambda: "lakequeue-tables" in queries, 60, "the tables' query")
    assert job.engine.application.spark is not None
    for key, value in QUERY_SETTINGS.items():
        assert of(job.query, key) == value
        assert of(queries["lakequeue-tables"], key) != value
        assert job.engine.application.spark.conf.get(key, None) != value
    sockets = job.engine.application.spark.conf.get(SOCKETS, "")
    assert list(Path(sockets).glob(".*.sock")), "none elsewhere: the next start finds these"
    (here,) = executors(job.engine.application.spark)
    assert re.fullmatch(r".+:\d+", here)
    assert job.engine.application.executors() == [], "none comes or goes on this machine"


def test_java_maps_its_archive(job: Job) -> None:
    """Where the first engine had none, it is made for the next."""
    spark, archive = job.engine.application.spark, job.engine.application.archive
    assert spark is not None
    assert archive.path is not None
    options = spark.sparkContext.getConf().get("spark.driver.extraJavaOptions") or ""
    if f"-XX:SharedArchiveFile={archive.path}" in options:
        java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
        assert str(archive.path) in Path(f"/proc/{java}/maps").read_text()
    else:
        assert "-XX:DumpLoadedClassList" in options
        until(archive.path.is_file, 300, "it is made")
