"""Passes each batch's report to the driver.

Spark calls its listeners after every batch. PySpark's own listener reads the report field by field
from Java: about 200 calls per batch, some of which search all jars for classes, and two fifths of
Java's time in short batches. This listener gets the same as JSON, in one call.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import StreamingQueryListener


class ProgressListener(StreamingQueryListener):
    """Calls back with the report of each batch of any query: Spark's progress as in its JSON, with
    ``name``, ``numInputRows``, ``durationMs``, … Java calls the methods."""

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)

    def __init__(self, on_batch: Callable[[dict[str, Any]], None]) -> None:
        self._on_batch = on_batch

    @property
    def _jlistener(self) -> Any:
        """The object that PySpark registers with Java."""
        return SparkContext._jvm.PythonStreamingQueryListenerWrapper(self)  # type: ignore[union-attr]

    def onQueryStarted(self, event: Any) -> None:
        """Nothing to do."""

    def onQueryIdle(self, event: Any) -> None:
        """Nothing to do."""

    def onQueryTerminated(self, event: Any) -> None:
        """Nothing to do; `query_watch` checks the query itself."""

    def onQueryProgress(self, event: Any) -> None:
        """Pass on the report of a finished batch."""
        self._on_batch(json.loads(event.progress().json()))
