"""The stateful operator that steps in real time: one row a batch, and a loop inside.

The streaming query of a broker has a source that only keeps it going; Spark places the operator,
keeps its state and starts it again. What a worker knows of a broker outlives a batch in the module:
Spark gives the next batch to the same worker as long as it lives (each broker's query has an entry
of its own in the workers' environment), and a cache counts only if the state says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from .figures import NAMES, NOTE, SCHEMA, rows
from .loop import Loop, Options, _decode
from .priority import share_out
from .state_store import StatePages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OBSERVATION = "engine"
ENVIRONMENT = "LAKEQUEUE_BROKER"

_loops: dict[str, Loop] = {}  # of this worker, by broker


class LoopProcessor(StatefulProcessor):
    """Runs the loop of one broker."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark before the rows of a batch."""
        self._state = StatePages(handle)

    def handleInputRows(
        self, key: Any, rows_in: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """One batch of one broker."""
        for _ in rows_in:
            pass
        share_out(self._options.alone)
        figures, notes = self._loop().batch(self._state)
        yield pd.DataFrame(rows(figures, notes))

    def _loop(self) -> Loop:
        """The loop of this worker, if the state is what it saved last; else a new one."""
        broker = self._options.broker
        loop = _loops.get(broker)
        if loop is not None:
            saved = self._state.load()
            same = saved is not None and _decode(saved).step == loop.saved
            if same and not loop.failed and loop.options == self._options:
                return loop
            loop.close()
        loop = _loops[broker] = Loop(self._options)
        return loop

    def close(self) -> None:
        """Called by Spark after the batch."""


def loop_rows(spark: SparkSession, options: Options) -> DataFrame:
    """The query's rows: figures and notes of each batch, observed."""
    from pyspark.sql import functions as f

    ticks = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 1)
        .option("numPartitions", 1)
        .load()
    )
    rows_in = ticks.select(f.lit(options.broker).alias("broker"), f.col("value"))
    out = (
        rows_in.coalesce(1)
        .groupBy("broker")
        .transformWithStateInPandas(LoopProcessor(options), SCHEMA, "append", "None")
    )
    figures = [f.sum(name).alias(name) for name in NAMES]
    notes = f.collect_list(f.col(NOTE)).alias("notes")
    broker = f.max(f.lit(options.broker)).alias("broker")
    return out.observe(OBSERVATION, notes, broker, *figures)
