"""Spark's own start, with our settings: the time to the first row of an empty stateful query.

An engine cannot start faster than this. `spark_start_ms` runs this module as a program that runs
the query.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..protocol.errors import LakequeueError
from ..streaming.java import start_tied

if TYPE_CHECKING:
    import pandas as pd

START_S_MAX = 120.0
FIRST = "first"


def spark_start_ms(home: Path) -> float:
    """Milliseconds from the start of a process to the first row in its operator. home: an empty
    folder."""
    begin = time.monotonic()
    with (home / "stderr").open("wb") as errors:
        command = [sys.executable, "-m", __name__, str(home)]
        # The child ends with this process even if `finally` is not reached, and its Java with it.
        child = start_tied(command, stderr=errors, start_new_session=True)
    try:
        while not (home / FIRST).exists():
            if child.poll() is not None or time.monotonic() - begin > START_S_MAX:
                raise LakequeueError(f"Spark alone did not start: see {home / 'stderr'}.")
            time.sleep(0.005)
        return (time.monotonic() - begin) * 1000
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _query(home: Path) -> None:
    import pandas
    from pyspark.sql import functions as f
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    from ..streaming.jars import ensure_jars
    from ..streaming.spark.spark_session import spark_session

    class First(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.state = handle.getValueState("snapshot", "snapshot BINARY")

        def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[pd.DataFrame]:
            (home / FIRST).touch()
            for _ in rows:
                pass
            yield pandas.DataFrame({"n": [1]})

        def close(self) -> None:
            pass

    spark = spark_session(
        "bare", master="local[4,4]", jars=ensure_jars().spark, log_file=home / "spark.log"
    )
    ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    keyed = ticks.select(f.lit("one").alias("key"), "value").coalesce(1).groupBy("key")
    out = keyed.transformWithStateInPandas(First(), "n LONG", "append", "None")
    place = str(home / "checkpoint")
    query = out.writeStream.format("noop").option("checkpointLocation", place).start()
    query.awaitTermination()


if __name__ == "__main__":
    _query(Path(sys.argv[1]))
