"""The stateful operator of the real-time trigger: one row per batch, and a loop inside.

The query's source only keeps it running. Spark places the operator, keeps its state and restarts
it; `loop` does the work.

When a query starts, Spark asks the operator for its state variables in a separate Python process,
and waits for the answer. So this module imports little.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from .figures import NAMES, NOTE, SCHEMA
from .state_store import StatePages

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

    from .loop_options import Options

OBSERVATION = "engine"
ENVIRONMENT = "LAKEQUEUE_BROKER"


class LoopProcessor(StatefulProcessor):
    """Runs the loop of one broker."""

    def __init__(self, options: Options) -> None:
        # not needed when Spark only asks for the state variables
        self._options = pickle.dumps(options)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark before the rows of a batch."""
        self._state = StatePages(handle)

    def handleInputRows(
        self, key: Any, rows_in: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """One batch of one broker."""
        from .loop import batch_rows

        for _ in rows_in:
            pass
        yield batch_rows(pickle.loads(self._options), self._state)

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
    # Spark keeps idle workers by their environment, so that a broker gets its own worker again. In
    # `SparkContext.environment` the variable would also apply to a batch of the tables that begins
    # meanwhile: the broker would then change between its worker and that batch's for ever.
    java: Any = out._jdf
    operator = java.queryExecution().logical().functionExpr()
    operator.func().envVars().put(ENVIRONMENT, options.broker)
    figures = [f.sum(name).alias(name) for name in NAMES]
    notes = f.collect_list(f.col(NOTE)).alias("notes")
    broker = f.max(f.lit(options.broker)).alias("broker")
    return out.observe(OBSERVATION, notes, broker, *figures)
