"""What the driver learns from a batch: deadlines, captured topics, rates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from ..sinks.kafka import OBSERVATION


class ProgressListener(StreamingQueryListener):
    """Calls back with the notes and the figures of each batch of a query with this name."""

    def __init__(
        self, query: str, on_note: Callable[[str], None], on_batch: Callable[[Any], None]
    ) -> None:
        self._query = query
        self._on_note = on_note
        self._on_batch = on_batch

    def onQueryStarted(self, event: Any) -> None:
        """Nothing to do."""

    def onQueryIdle(self, event: Any) -> None:
        """Nothing to do."""

    def onQueryTerminated(self, event: Any) -> None:
        """Nothing to do; the supervisor watches the query itself."""

    def onQueryProgress(self, event: Any) -> None:
        """A batch is done."""
        progress = event.progress
        if progress.name != self._query:
            return
        row = (progress.observedMetrics or {}).get(OBSERVATION)
        for note in (row["notes"] if row is not None else None) or ():
            self._on_note(note)
        self._on_batch(progress)
