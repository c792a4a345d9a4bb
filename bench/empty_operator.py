"""A stateful operator that does next to nothing: what Spark itself asks for a step of state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

_COLUMNS = ["topic", "key", "value"]


class EmptyOperator(StatefulProcessor):
    """Reads one page of its state, writes it again, and passes the rows on."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark before the first rows of a batch."""
        self._pages = handle.getMapState("pages", "key STRING", "page BINARY")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """One batch."""
        page = self._pages.getValue(("page",)) or (b"",)
        self._pages.updateValue(("page",), (bytes(page[0])[:1000] + b"x",))
        for frame in rows:
            yield frame[_COLUMNS]

    def close(self) -> None:
        """Called by Spark after the batch."""


def through_operator(records: DataFrame) -> DataFrame:
    """Records (topic, key, value) through the operator, set up as the engine sets up its own."""
    rows = records.select(f.lit("default").alias("broker"), *_COLUMNS)
    return rows.coalesce(1).groupBy("broker").transformWithStateInPandas(
        EmptyOperator(), "topic STRING, key BINARY, value BINARY", "append", "None"
    )
