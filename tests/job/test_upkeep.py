"""Upkeep deletes old rows, and none that the queues, `at` or a rebuild need (R1)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from job.conftest import Job
from lake.history import write_history
from lake.test_past import _as_the_world, lived, state_behind
from lakequeue.lake import open_lake
from lakequeue.lake.past import as_of
from lakequeue.protocol import ConfigError
from lakequeue.protocol.state_files import write_state
from lakequeue.sinks.snapshots import SnapshotWriter
from lakequeue.sinks.upkeep import Rules, Upkeep
from loop.memory import HOME

__all__ = ["_as_the_world"]  # its steps are replayed with the limits of the walks

pytestmark = pytest.mark.job

WHOLE_EACH = 2
TABLES = ("messages", "commands", "steps", "snapshots", "journal")


def counts(home: Path) -> dict[str, int]:
    found = {name: deltalake.DeltaTable(home / "tables" / name) for name in TABLES}
    return {name: table.to_pyarrow_dataset().count_rows() for name, table in found.items()}


def journal_of(home: Path, moments: list[int]) -> None:
    """For each moment a message's row, a refusal, and a queue's definition."""
    table = deltalake.DeltaTable(home / "tables" / "journal")
    rows = [
        {"broker": HOME.name, "step": 1, "part": 0, "line": 0, "event": event, "message_id": number,
         "time": datetime.fromtimestamp(ms / 1000, UTC)}
        for ms in moments
        for event, number in (("spooled", "1"), ("rejected", None), ("defined", None))
    ]  # fmt: skip
    schema = pa.schema(table.schema().to_arrow())
    deltalake.write_deltalake(table, pa.Table.from_pylist(rows, schema), mode="append")


def test_upkeep_keeps_all_rows_that_the_remaining_moments_need(job: Job, tmp_path: Path) -> None:
    walk = lived(3, 160)
    last = walk.driver.step
    home = write_history(walk.world, tmp_path, walk.saved, WHOLE_EACH)
    whole = [own for own, _ in walk.saved[::WHOLE_EACH]]
    base = whole[len(whole) // 2]
    journal_of(home, [base.now - 5_000, base.now + 5_000])
    before, begin_s = counts(home), (base.now + 1) / 1000
    spark = job.engine.application.spark
    assert spark is not None
    rules = Rules(retention_s=60.0)
    held = Upkeep(spark, home / "tables", rules, stopped=lambda: True)
    held.run(begin_s + 60.0, oldest_s=whole[0].now / 1000 - 1.0)
    assert counts(home) == before, "a queue has an older message"
    one = iter((False, True))  # it tidies one table, `test_away` all
    Upkeep(spark, home / "tables", rules, one.__next__).run(begin_s + 60.0, oldest_s=None)
    after = counts(home)
    assert all(0 < after[name] < before[name] for name in TABLES), (before, after)
    assert after["journal"] == 4, "definitions stay"
    with open_lake(home) as lake:
        for step in (base.step + 1, (base.step + last) // 2, last):
            found = as_of(lake, home, HOME.name, step=step)
            assert (found.store.pages, found.now) == state_behind(walk, step)
        with pytest.raises(ConfigError, match=f"the tables have steps {base.step + 1:,} to"):
            as_of(lake, home, HOME.name, step=base.step)
    again = counts(home)
    Upkeep(spark, home / "tables", rules, stopped=lambda: True).run(begin_s + 60.0, None)
    assert counts(home) == again, "there is nothing more to do"


def test_M4_a_state_followed_by_a_snapshot_is_written_to_the_table(
    job: Job, tmp_path: Path
) -> None:
    """The table may have a later snapshot already, from the query that ran when the brokers
    changed. A state older than all of the table's is not written: upkeep has deleted it."""
    walk = lived(3, 160)
    home = write_history(walk.world, tmp_path / "home", walk.saved, WHOLE_EACH)
    place = home / "tables" / "snapshots"
    rows = deltalake.DeltaTable(place).to_pyarrow_table()
    own, store = walk.saved[2]  # a whole one
    file = tmp_path / "state"
    write_state(file, msgspec.msgpack.encode(own), sorted(store.pages.items()))
    spark = job.engine.application.spark
    assert spark is not None

    def written(missing: pa.Array) -> int:
        """The number of snapshots written to a table that has lost these."""
        left = rows.filter(pc.invert(missing))
        deltalake.write_deltalake(place, left, mode="overwrite")
        for _ in range(2):  # the second time there is nothing to do
            states = {HOME.name: file, "gone": tmp_path / "none"}
            SnapshotWriter(spark, str(home / "tables"), {}, 0, states).write_states()
        there = deltalake.DeltaTable(place).to_pyarrow_table()
        before, after = (one["page"].to_pylist().count("") for one in (left, there))
        return after - before

    assert written(pc.equal(rows["step"], own.step)) == 1
    with open_lake(home) as lake:
        for step in (own.step, walk.driver.step):
            found = as_of(lake, home, HOME.name, step=step)
            assert (found.store.pages, found.now) == state_behind(walk, step)
            assert (found.snapshot == step) is (step == own.step)
    assert written(pc.less_equal(rows["step"], own.step)) == 0
