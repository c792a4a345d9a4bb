"""Rows as messages: an order that makes a second attempt the same, and refusals (P1, P7)."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest
from lakequeue.dataframes import publishing
from lakequeue.dataframes.job_options import write_options
from lakequeue.protocol import ConfigError
from pyspark.sql import Row
from pyspark.sql.types import StructType
from rules.harness import Bench, drain

OPTIONS = {"connection": "kafka://x:1", "queue": "orders"}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """An engine in memory; a publisher's connections are to it, and stay open."""
    bench = Bench()
    bench.define(max_per_subscription_backlog=1000)

    class Open:
        def __enter__(self) -> Any:
            return bench.connection

        def __exit__(self, *_: object) -> None:
            """The connection belongs to the test."""

    monkeypatch.setattr(publishing, "connect", lambda *_, **__: Open())
    return bench


def rows(n: int) -> list[Row]:
    """Distinct rows; half of them without a priority."""
    return [
        Row(payload=f"{i:03}", priority=None if i % 2 else i % 7, headers={"b": "1", "a": str(i)})
        for i in range(n)
    ]


def test_P1_the_same_rows_in_another_order_are_the_same_messages(bench: Bench) -> None:
    options = write_options(OPTIONS)
    chance = random.Random(5)
    given = rows(100)
    first = sorted(given, key=lambda row: publishing._order(row.asDict(), ()))[:60]
    for part in (first, given, given):  # the first attempt died after 60
        publishing.publish(options, chance.sample(part, len(part)), "producer-1", 1)
    got = [m.payload.decode() for m in drain(bench.consumer(backlog=1000))]
    assert len(got) == 100
    assert set(got) == {f"{i:03}" for i in range(100)}


@pytest.mark.parametrize(
    "values",
    [
        [float("nan"), 1.0, float("inf"), None, -1.0, float("nan")],
        [[1, None], [1, 2], [None], [], None, [float("nan")]],
        [{"a": None}, {"a": "x"}, {"b": None}, {}, None],
        [Row(x=None, y=1), Row(x=1, y=None), Row(x=1, y=2), None],
        [b"\x00", bytearray(b"\xff"), b"", None],
    ],
    ids=["numbers", "arrays", "maps", "structs", "bytes"],
)
def test_P1_rows_with_any_values_have_one_order(values: list[Any]) -> None:
    """NaN is neither smaller nor larger than a number, and null is not comparable."""
    given = [
        Row(payload=f"{i}", n=value).asDict(recursive=True) for i, value in enumerate(values)
    ] * 3
    orders = {
        tuple(
            row["payload"] for row in sorted(part, key=lambda row: publishing._order(row, ("n",)))
        )
        for part in (random.Random(seed).sample(given, len(given)) for seed in range(20))
    }
    assert len(orders) == 1


def test_orderBy_sets_the_order_of_sending(bench: Bench) -> None:
    options = write_options(OPTIONS | {"orderBy": "n"})
    given = [Row(payload=f"{i}", n=-i) for i in range(20)]
    publishing.publish(options, random.Random(1).sample(given, 20), "producer-1", 1)
    got = [m.payload.decode() for m in drain(bench.consumer())]
    assert got == [f"{i}" for i in reversed(range(20))]


def test_P7_columns_are_the_options_of_a_message(bench: Bench) -> None:
    bench.define("bills")
    later = datetime(2100, 1, 1, tzinfo=UTC)
    given = [
        Row(payload=bytearray(b"x"), queue="bills", key="k", headers={"h": "1"}, priority=9,
            ttl="8s", deliver_at=None),
        Row(payload=bytearray(b"y"), queue=None, key=None, headers=None, priority=None, ttl=None,
            deliver_at=later.astimezone().replace(tzinfo=None)),
    ]  # fmt: skip
    assert publishing.publish(write_options(OPTIONS), given, "producer-1", 1) == 2
    (bill,) = drain(bench.consumer("bills"))
    assert (bill.payload, bill.key, bill.headers, bill.priority) == (b"x", b"k", {"h": "1"}, 9)
    assert bill.expires_at is not None
    (order,) = bench.admin.browse("orders")
    assert (order.state, order.ready_at) == ("delayed", later)


def test_a_refused_row_fails_the_task(bench: Bench) -> None:
    bench.define("small", max_message_size=2)
    options = write_options(OPTIONS | {"queue": "small"})
    with pytest.raises(publishing.LakequeueError, match="message_too_large"):
        publishing.publish(options, [Row(payload="1"), Row(payload="123")], "producer-1", 1)


@pytest.mark.parametrize(
    ("columns", "options", "overwrite", "said"),
    [
        ("price INTEGER", {}, False, "column: 'price' – allowed are payload, queue"),
        ("key STRING", {}, False, "column: 'payload' – is required"),
        ("payload STRING", {"queue": ""}, False, "queue: '' – is required"),
        ("payload STRING", {"orderBy": "n"}, False, "orderBy: 'n' – must be a column: payload"),
        ("payload STRING", {}, True, "mode: 'overwrite' – messages are added: use append"),
    ],
)
def test_Q7_unwritable_rows_are_refused_before_the_write_begins(
    columns: str, options: dict[str, str], overwrite: bool, said: str
) -> None:
    chosen = write_options(OPTIONS | options)
    with pytest.raises(ConfigError) as refused:
        publishing.RowPublisher(chosen, _schema(columns), overwrite)
    assert said in str(refused.value)


def _schema(columns: str) -> StructType:
    """A schema without the JVM, which parses Spark's own syntax."""
    schema = StructType()
    for column in columns.split(", "):
        name, kind = column.split()
        schema.add(name, kind.lower())
    return schema
