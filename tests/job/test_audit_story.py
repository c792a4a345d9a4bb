"""R1, R4: `lakequeue demo audit` finds out what went wrong, on real Kafka, Spark and Delta."""

from __future__ import annotations

import json

import lakequeue
import pytest
import yaml
from job.conftest import Job, in_real_time
from lakequeue.examples.demo.audited_day import (
    CONFIGURATION,
    FINDINGS,
    LATE,
    NEW,
    OLD,
    AuditDemo,
)

pytestmark = [pytest.mark.job, in_real_time]


def test_R1_R4_the_tables_know_what_happened(
    job: Job, connection: lakequeue.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    for queue in yaml.safe_load(CONFIGURATION.read_text())["queues"]:
        connection.admin().define(queue)
    (job.engine.home / "address").write_text(job.url)  # as `lakequeue up` does
    capsys.readouterr()
    assert AuditDemo(job.engine.home, as_json=True).tell(connection, lambda: None)
    told = json.loads(capsys.readouterr().out)
    assert told["checks"] == {finding.__name__: True for finding in FINDINGS}
    assert [row["consumers"] for row in told["who"]] == [[OLD], [NEW]]
    assert told["replayed"] == told["who"][1]["flights"] == told["now"][1]["flights"] > 300
    assert {part["why"] for part in told["why"]} == {"every consumer's backlog is full"}
    assert told["then"]["ready"] >= told["who"][0]["flights"] - LATE > 0
