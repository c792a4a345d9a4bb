"""R1: a snapshot writer's references to `messages` in real Delta tables equal those that the same
rules give in memory; and it reads payloads by rows, with a setting that other queries do not
get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from job.conftest import Job
from lake.history import crc_of, said_to_journal, write_history
from lake.on_files import write_table
from lake.references_in_memory import places_of, references_to
from lake.test_past import lived
from lakequeue.sinks import block_references
from lakequeue.sinks.block_references import BlockReferences
from loop.memory import HOME
from pyspark.sql import DataFrame

pytestmark = pytest.mark.job

BY_COLUMNS = "spark.sql.parquet.enableVectorizedReader"
COMPILED = "spark.sql.codegen.wholeStage"  # otherwise Spark reads everything by rows
PAGES = "page string, value binary, crc long"


class Reads:
    """Spark's reads for Python: each plan, as Spark makes it where it compiles plans, and the value
    of `BY_COLUMNS` in the engine's session at that time. Running the compiled plan would take ten
    times as long."""

    def __init__(self, spark: Any, patch: pytest.MonkeyPatch) -> None:
        self.plans: list[str] = []
        self.said: set[str] = set()
        kind = type(spark.range(1))  # the class of its frames, not their public base
        take = kind.toArrow

        def to_arrow(rows: DataFrame) -> Any:
            self.plans.append(compiled(rows))
            self.said.add(spark.conf.get(BY_COLUMNS))
            return take(rows)

        patch.setattr(kind, "toArrow", to_arrow)


def compiled(rows: DataFrame) -> str:
    """Its plan with Spark's default, and the other settings of its session."""
    conf = rows.sparkSession.conf
    before = conf.get(COMPILED)
    conf.set(COMPILED, "true")
    try:
        return str(rows.select("*")._jdf.queryExecution().executedPlan().toString())
    finally:
        conf.set(COMPILED, str(before))


def test_R1_blocks_refer_to_messages_and_only_payloads_are_read_by_rows(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark = job.engine.application.spark
    assert spark is not None
    monkeypatch.setattr(block_references, "WORTH_BYTES", 0)  # the blocks of a walk are short
    walk = lived(3)
    own, store = walk.saved[-1]
    home = write_history(walk.world, tmp_path, walk.saved)
    journal = said_to_journal(walk.world)
    pages = spark.createDataFrame(
        [(page, value, crc_of(page, value)) for page, value in store.pages.items()], PAGES
    )
    refer = BlockReferences(spark, home / "tables")
    assert not refer(HOME.name, pages, (0, own.step)).where("refs IS NOT NULL").count()

    write_table(home, "journal", journal)
    there = spark.read.format("delta").load(f"{home}/tables/messages").toArrow()
    read = Reads(spark, monkeypatch)
    rows = refer(HOME.name, pages, (0, own.step)).collect()
    blocks = {page: value for page, value in store.pages.items() if page.startswith("b/")}
    wanted = references_to(blocks, journal, places_of(there))
    assert len(wanted) > 3
    found = {row.page: [ref.asDict() for ref in row.refs] for row in rows if row.refs is not None}
    assert found == wanted
    values = {row.page: row.value for row in rows}
    assert values == {p: None if p in wanted else v for p, v in store.pages.items()}

    of_messages = [plan for plan in read.plans if "payload" in plan and "parquet" in plan]
    assert of_messages, read.plans
    assert all("Batched: false" in plan for plan in of_messages), "Spark reads by columns"
    assert any("Batched: true" in plan for plan in read.plans), "only payloads are read by rows"
    assert read.said == {"true"}
