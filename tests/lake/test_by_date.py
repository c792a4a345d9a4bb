"""R1: the tables are partitioned by date, and a question about one day reads that day's files
only."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lake.on_files import MESSAGES, RecordedBench, write_table
from lakequeue.lake import open_lake

DAY = datetime(2026, 3, 1, tzinfo=UTC)
QUESTIONS = {
    "its date": "SELECT count(*) FROM messages WHERE date = DATE '2026-03-02'",
    "a time": "SELECT count(*) FROM messages WHERE time >= TIMESTAMPTZ '2026-03-02 00:00:00Z' "
    "AND time < TIMESTAMPTZ '2026-03-03 00:00:00Z'",
    "its places": """SELECT count(*) FROM messages
        WHERE topic = 't' AND "partition" = 0 AND "offset" BETWEEN 10 AND 19""",
}


def message(day: int, offset: int) -> dict[str, Any]:
    time = DAY + timedelta(days=day, minutes=offset)
    return {"topic": "t", "partition": 0, "offset": offset, "item": 0, "time": time,
            "payload": b"%d" % offset}  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Ten messages on each of three days; only the files of the second day can be read."""
    bench = RecordedBench()
    bench.define()
    bench.recorded.write(tmp_path)
    rows = [message(day, 10 * day + n) for day in range(3) for n in range(10)]
    write_table(tmp_path, "messages", pa.Table.from_pylist(rows, MESSAGES))
    for file in (tmp_path / "tables" / "messages").glob("date=*/*.parquet"):
        if file.parent.name != "date=2026-03-02":
            file.write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_R1_other_days_are_not_read(home: Path, question: str) -> None:
    with open_lake(home) as lake:
        assert lake.execute(question).fetchone() == (10,)
        with pytest.raises(Exception, match=r"[Pp]arquet"):
            lake.execute('SELECT sum("offset") FROM messages').fetchone()
