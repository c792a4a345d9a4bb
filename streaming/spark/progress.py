"""Passes each batch's report to the driver: deadlines, captured topics, rates.

Spark tells its listeners of every batch. PySpark's own listener reads that field by field from
Java: about 200 calls per batch, some of which search all jars for classes, and two fifths of Java's
time in short batches. Here it is one call that gets the same as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import StreamingQueryListener

from ...sinks.kafka_sink import OBSERVATION


class ProgressListener(StreamingQueryListener):
    """Calls back with the notes and figures of each batch of a broker's query. broker_of: the
    broker of a query's name, or None.

    on_batch gets Spark's progress as in its JSON: ``numInputRows``, ``durationMs``, … on_any gets
    that of every query. Java calls the methods.
    """

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)

    def __init__(
        self,
        broker_of: Callable[[str], str | None],
        on_note: Callable[[str, str], None],
        on_batch: Callable[[str, dict[str, Any]], None],
        on_any: Callable[[dict[str, Any]], None] = lambda progress: None,
    ) -> None:
        self._broker_of = broker_of
        self._on_note = on_note
        self._on_batch = on_batch
        self._on_any = on_any

    @property
    def _jlistener(self) -> Any:
        """What PySpark registers with Java for a listener."""
        return SparkContext._jvm.PythonStreamingQueryListenerWrapper(self)  # type: ignore[union-attr]

    def onQueryStarted(self, event: Any) -> None:
        """Nothing to do."""

    def onQueryIdle(self, event: Any) -> None:
        """Nothing to do."""

    def onQueryTerminated(self, event: Any) -> None:
        """Nothing to do; the watch looks at the query itself."""

    def onQueryProgress(self, event: Any) -> None:
        """A batch is done."""
        progress = json.loads(event.progress().json())
        self._on_any(progress)
        broker = self._broker_of(progress["name"])
        if broker is None:
            return
        observed = progress.get("observedMetrics", {}).get(OBSERVATION) or {}
        for note in observed.get("notes") or ():
            self._on_note(broker, note)
        self._on_batch(broker, progress)
