"""R1, R4: `lakequeue demo audit` finds out what went wrong, on real Kafka, Spark and Delta."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from lakequeue.cli import main
from lakequeue.conf import load
from lakequeue.examples.audited_day import CONFIGURATION, NEW, OLD, QUEUE


def test_its_queue_loads() -> None:
    (queue,) = load(CONFIGURATION).queues
    assert (queue.name, queue.max_per_subscription_backlog) == (QUEUE, 20)


@pytest.mark.job
def test_R1_R4_the_tables_know_what_the_story_knows() -> None:
    done = CliRunner().invoke(main, ["demo", "audit", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert set(told["checks"].values()) == {True}
    assert len(told["checks"]) == 7
    assert [row["consumers"] for row in told["who"]] == [[OLD], [NEW]]
    assert told["replayed"] == told["who"][1]["flights"] > 300
    assert "backlog" in told["why"]["why"]
    assert told["then"]["consumers"][0]["blocked"] is True
