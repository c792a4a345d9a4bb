"""Two readers of one topic: a step records which offsets of a range it got, and a replay reads
exactly these, whatever else the tables have (R1)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lake.history import message_rows
from lake.on_files import MESSAGES
from lakequeue.lake.inputs import FromTables, Lost, NextOffsets, opened_behind, steps_between
from lakequeue.protocol import steplog
from lakequeue.protocol.steplog import FORMAT, Opened, StepRecord, parts_of
from lakequeue.sinks.table_batch import STEP_ROWS, step_row
from lakequeue.sources.step_batch import to_batch
from loop.memory import Message

PLACE = "t", 0


def message(offset: int) -> Message:
    return Message(*PLACE, offset, 1_000, None, b"%d" % offset, None)


def lake_of(
    rows: dict[str | None, list[Message]], *records: StepRecord
) -> duckdb.DuckDBPyConnection:
    """Tables with messages of topics, by topic id, and with steps."""
    lake = duckdb.connect()
    lake.execute("SET TimeZone = 'UTC'")
    messages = [
        row | {"topic_id": topic_id}
        for topic_id, those in rows.items() for m in those for row in message_rows(m)
    ]  # fmt: skip
    when = datetime(2026, 1, 1, tzinfo=UTC)
    steps = [step_row("b.steps", n, when, steplog.encode(r)) for n, r in enumerate(records)]
    lake.register("messages", pa.Table.from_pylist(messages, MESSAGES))
    lake.register("steps", pa.Table.from_pylist(steps, STEP_ROWS))
    return lake


def step(number: int, ranges: Any, *opened: Opened) -> StepRecord:
    return StepRecord(FORMAT, number, 2_000, 0, 0, 0, "code", ranges, opened=opened)


def messages(*offsets: int) -> list[Message]:
    return [message(at) for at in offsets]


def ranges_of(*offsets: int) -> Any:
    return to_batch({PLACE: messages(*offsets)}).ranges


@given(st.sets(st.integers(0, 40), min_size=1))
def test_R1_the_offsets_of_a_step_come_back(found: set[int]) -> None:
    offsets = sorted(found)
    (r,) = to_batch({PLACE: [message(at) for at in offsets]}).ranges
    assert r.offsets() == offsets
    assert (r.parts == ()) == (offsets[-1] - offsets[0] + 1 == len(offsets))
    assert len(parts_of(offsets)) <= 2 * len(offsets), "a record of the log stays small"


@pytest.mark.parametrize("taken", [[0, 2, 5], [0, 1, 2], [3], [1, 2, 4, 5]])
def test_R1_other_rows_of_the_tables_are_left_out(taken: list[int]) -> None:
    """The tables got the records before Kafka compacted them, and the loop read the topic after."""
    record = step(1, ranges_of(*taken))
    lake = lake_of({None: messages(*range(6))}, record)
    (again,) = steps_between(lake, "b", 0, 1)
    assert again == record
    assert FromTables(lake, [again]).take(record.ranges).publishes.offsets == taken


@pytest.mark.parametrize("age", [-500, 0, 500], ids=["older", "as-old", "younger"])
@pytest.mark.parametrize("told", [True, False], ids=["told", "from-before"])
def test_R1_a_step_gets_the_record_of_the_topic_that_it_read(age: int, told: bool) -> None:
    """A topic was deleted, recreated, and filled with records of any age."""

    def of(what: str, offsets: list[int], time: int) -> list[Message]:
        return [Message(*PLACE, at, time, None, f"{what} {at}".encode(), None) for at in offsets]

    old, new = of("old", [0, 1, 2], 1_000), of("new", [0, 1, 2, 3], 1_000 + age)
    runs = old[:2], old[2:], new[:3], new[3:]
    taken = [to_batch({PLACE: run}).ranges for run in runs]
    known: NextOffsets = {} if told else {PLACE: (0, "A")}
    opened = {0: [Opened(*PLACE, 0, "A")] if told else [], 2: [Opened(*PLACE, 0, "B")]}
    records = [step(n + 1, ranges, *opened.get(n, ())) for n, ranges in enumerate(taken)]
    lake = lake_of({"B": new, "A": old}, *records)
    again = list(steps_between(lake, "b", 0, 4))
    assert again == records
    inputs = FromTables(lake, again, known)
    found = [inputs.take(ranges).publishes.values for ranges in taken]
    assert found == [[m.value() for m in run] for run in runs]
    assert known == {PLACE: (4, "B")}


def test_R1_a_record_of_another_topic_does_not_replace_a_missing_one() -> None:
    record = step(1, ranges_of(0))
    lake = lake_of({"B": messages(0)})
    inputs = FromTables(lake, [record], {PLACE: (0, "B")})
    assert inputs.take(record.ranges).publishes.offsets == [0]
    with pytest.raises(Lost, match="read 1 records"):
        FromTables(lake, [record], {PLACE: (0, "A")}).take(record.ranges)


def test_R1_a_step_may_have_read_the_new_topic_before_the_broker_noticed() -> None:
    """A longer topic was made at once under the same name: its last records are read twice."""
    anew = Opened(*PLACE, 0, "B")
    records = [step(1, ranges_of(2, 3)), step(2, ranges_of(*range(4)), anew)]
    lake = lake_of({"B": messages(*range(4))}, *records)
    inputs = FromTables(lake, records, {PLACE: (2, "A")})
    assert inputs.until_the_end(records) == records
    found = [inputs.take(r.ranges).publishes.offsets for r in records]
    assert found == [[2, 3], [0, 1, 2, 3]]
    assert opened_behind(lake, "b", 2) == []
    assert opened_behind(lake, "b", 1) == [(2, anew)]
    to_the_first = FromTables(lake, records[:1], {PLACE: (2, "A")}, [anew])
    assert to_the_first.take(records[0].ranges).publishes.offsets == [2, 3]


def test_R1_rows_of_an_earlier_topic_are_not_the_end_of_the_new_one() -> None:
    """The rows of the recreated topic are still to come."""
    records = [step(1, ranges_of(8)), step(2, ranges_of(0), Opened(*PLACE, 0, "B"))]
    inputs = FromTables(lake_of({"A": messages(*range(9))}), records, {PLACE: (8, "A")})
    assert inputs.until_the_end(records) == records[:1]


def test_R1_missing_rows_are_reported() -> None:
    record = step(1, ranges_of(0, 2, 5))
    inputs = FromTables(lake_of({None: messages(0, 1, 3, 4, 5)}, record), [record])
    with pytest.raises(Lost, match=r"read 3 records, 0 to 5, .* 'messages' has 2 of them"):
        inputs.take(record.ranges)
