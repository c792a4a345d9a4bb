"""Opening the lake: missing and broken tables are reported in a sentence."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lake.on_files import RecordedBench
from lakequeue import LakequeueError
from lakequeue.lake import HISTORY, open_lake, read_columns
from lakequeue.lake.opening import not_written
from lakequeue.lake.past import brokers
from lakequeue.protocol.table_format import SCHEMA
from lakequeue.streaming.tables.table_repair import TablesLock


@pytest.fixture
def home(tmp_path: Path) -> Path:
    bench = RecordedBench()
    bench.define()
    bench.send()
    return bench.recorded.write(tmp_path)


def test_columns_are_read_without_a_query(home: Path, tmp_path: Path) -> None:
    table = read_columns(home / "tables" / "journal", ["event", "message_id"])
    spooled = [row["message_id"] for row in table.to_pylist() if row["event"] == "spooled"]
    assert len(spooled) == 1
    assert read_columns(tmp_path / "none", ["event"]).num_rows == 0


@pytest.mark.parametrize("name", ["a b", "50%", "#1 [ü]?*", "`$(x)`'\"", "x:y;{z}|"])
def test_R1_a_home_with_any_name_is_read(home: Path, name: str) -> None:
    named = home / name
    named.mkdir()
    (home / "tables").rename(named / "tables")
    with open_lake(named) as lake:
        assert lake.execute("SELECT state FROM queued").fetchall() == [("ready",)]
        assert lake.execute("SELECT payload FROM messages").fetchall() == [(b"{}",)]
    assert read_columns(named / "tables" / "journal", ["event"]).num_rows == 3


@pytest.mark.parametrize(("name", "part"), [("a%20b", r"'%20'"), ("a\\b", r"'\\\\'")])
def test_R1_a_home_whose_name_cannot_be_read_is_named(home: Path, name: str, part: str) -> None:
    """`deltalake` would look in another folder."""
    (home / name).mkdir()
    (home / "tables").rename(home / name / "tables")
    with pytest.raises(LakequeueError, match=f"cannot be read: SQL reads no path with {part}"):
        open_lake(home / name)


def test_tables_not_yet_written_are_empty(home: Path) -> None:
    """In the first minute of a home there is no history: queries return nothing, and no error."""
    with open_lake(home) as lake:
        for name in HISTORY:
            assert lake.execute(f"SELECT * FROM {name}").fetchall() == []
        known = [c for c, *_ in lake.execute("SELECT * FROM steps").description]
        assert known[:2] == ["broker", "step"]
        assert lake.execute("SELECT max(step), max(now) FROM steps").fetchone() == (None, None)
        lake.execute("SELECT unnest(ranges, recursive := true), unnest(ranges).last FROM steps")
        lake.execute("SELECT refs[1].item, epoch_ms(now) FROM snapshots")
        with pytest.raises(LakequeueError, match="has no rows in the table 'steps' yet: an engine"):
            brokers(lake)
    there = not_written(home)
    assert list(there) == list(HISTORY)
    assert f"The home {home} has no table 'steps' yet" in there["steps"]


def test_a_table_whose_log_is_broken(home: Path) -> None:
    log = home / "tables" / "journal" / "_delta_log"
    for file in log.glob("*.json"):
        file.write_text("{")
    with pytest.raises(LakequeueError, match=r"The Delta table .*journal cannot be read"):
        open_lake(home)


def test_a_table_of_a_later_version_is_refused(home: Path) -> None:
    place = home / "tables" / "journal"
    deltalake.DeltaTable(place).alter.set_table_properties({SCHEMA: "9"}, raise_if_not_exists=False)
    with pytest.raises(LakequeueError, match="journal has schema version '9'; this version"):
        open_lake(home)


def test_R1_a_time_of_the_year_9999_written_by_spark_is_read(home: Path) -> None:
    """INT96, which Arrow reads as nanoseconds: they end in 2262."""
    place = home / "tables" / "messages"
    (file,) = place.rglob("*.parquet")
    rows = pq.ParquetFile(file).read()
    late = pa.array([datetime(9999, 12, 31, tzinfo=UTC)] * len(rows), pa.timestamp("us", "UTC"))
    rows = rows.set_column(rows.schema.get_field_index("time"), "time", late)
    pq.write_table(rows, file, use_deprecated_int96_timestamps=True, store_schema=False)
    with open_lake(home) as lake:
        assert lake.execute("SELECT year(max(time)) FROM messages").fetchone() == (9999,)


def test_one_engine_writes_the_tables(home: Path) -> None:
    one, other = TablesLock(home / "tables"), TablesLock(home / "tables")
    one.take()
    with pytest.raises(LakequeueError, match=r"are written by another engine \(process \d+ on"):
        other.take()
    one.file.truncate(0)  # it has not said yet who it is
    with pytest.raises(LakequeueError, match=r"by another engine \(an unknown process\): stop"):
        other.take()
    one.release()
    other.take()
    other.release()


def test_rows_of_an_earlier_version_are_read(home: Path) -> None:
    """Missing columns are null, before the engine adds them and after."""
    place = home / "tables" / "journal"
    table = deltalake.DeltaTable(place).to_pyarrow_table()
    old = table.drop_columns(["line", "until"])
    deltalake.write_deltalake(place, old, mode="overwrite", schema_mode="overwrite")
    with open_lake(home) as lake:
        assert lake.execute("SELECT count(*), count(until) FROM journal").fetchone() == (3, 0)
        assert lake.execute("SELECT state FROM queued").fetchall() == [("ready",)]
    deltalake.write_deltalake(place, table.slice(0, 0), mode="append", schema_mode="merge")
    with open_lake(home) as lake:
        assert lake.execute("SELECT state FROM queued").fetchall() == [("ready",)]


@pytest.mark.parametrize("name", ["deltalake", "duckdb"])
def test_a_package_is_missing(home: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(LakequeueError, match=f"package {name}: pip install deltalake duckdb"):
        open_lake(home)


def test_a_reader_sees_one_version(home: Path) -> None:
    """Rows written after the opening are invisible and harmless."""
    place = home / "tables" / "journal"
    with open_lake(home) as lake:
        before = lake.execute("SELECT count(*) FROM journal").fetchone()
        deltalake.write_deltalake(
            place, deltalake.DeltaTable(place).to_pyarrow_table(), mode="append"
        )
        assert lake.execute("SELECT count(*) FROM journal").fetchone() == before


LEAVES_EARLY = """
import sys
from lakequeue.lake import open_lake
print(open_lake(sys.argv[1]).execute("SELECT event FROM journal LIMIT 1").fetchall())
"""


def test_a_process_with_unread_rows_exits_cleanly(home: Path) -> None:
    """Arrow reads ahead in threads; none of them may need Python after it has ended."""
    place = home / "tables" / "journal"
    rows = deltalake.DeltaTable(place).to_pyarrow_table()
    for _ in range(20):
        deltalake.write_deltalake(place, rows, mode="append")
    asked = [sys.executable, "-c", LEAVES_EARLY, str(home)]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60)  # nearly all died
    assert (done.returncode, done.stdout) == (0, "[('defined',)]\n"), done.stderr


# try(): other queues may hold payloads that are no JSON.
WHICH = """
SELECT message_id, published_at FROM lifecycle JOIN journal USING (message_id, queue)
  JOIN messages USING (topic, "partition", "offset", item)
WHERE event = 'spooled' AND try(decode(payload) ->> '$.carrier') = 'B6'
  AND try(decode(payload) ->> '$.flight') = '1051'"""


def test_R1_a_payload_field_is_found_beside_payloads_that_are_no_json(tmp_path: Path) -> None:
    bench = RecordedBench()
    bench.define()
    bench.define("others")
    bench.send({"carrier": "B6", "flight": "1051"})
    for payload in (b"no JSON", b"\xff"):
        bench.send(payload, queue="others")
    with open_lake(bench.recorded.write(tmp_path)) as lake:
        found = lake.execute(WHICH).fetchall()
    assert len(found) == 1
