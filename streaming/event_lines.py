"""What became of single messages, as lines of the log with their ids (X5, C7, S4).

The journal has every event of every message; the log has those after which somebody will look
for the message: it died, or it was thrown away or refused. So many may come at once that only some
a second have a line each; the rest are counted in one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

log = logging.getLogger("lakequeue.engine")

LOGGED = ("dead_lettered", "discarded", "rejected")
LINES_MAX = 20  # in each second
Say = Callable[[str, dict[str, Any]], None]


def _to_log(text: str, fields: dict[str, Any]) -> None:
    log.info("%s", text, extra={"fields": fields})


class EventLines:
    """say: gets a line and its fields."""

    def __init__(self, say: Say = _to_log, clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._begun, self._said = 0.0, 0
        self._more: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.Lock()

    def heard(self, broker: str, events: pa.Table) -> None:
        """The events of one journal record."""
        with self._lock:
            now = self._clock()
            if now - self._begun >= 1.0:
                self._tell_more()
                self._begun, self._said = now, 0
            for batch in events.to_batches():
                names = batch["event"].dictionary.to_pylist()
                codes = [code for code, name in enumerate(names) if name in LOGGED]
                if codes:
                    mask = pc.is_in(batch["event"].indices, value_set=pa.array(codes, pa.int32()))
                    self._lines(broker, batch.filter(mask))

    def _lines(self, broker: str, batch: pa.RecordBatch) -> None:
        room = max(0, LINES_MAX - self._said)
        for row in batch.slice(0, room).to_pylist():
            event, queue, number = row["event"], row["queue"], str(row["message_id"] or "")
            record = f"{row['topic']} {row['partition']}/{row['offset']}" if row["topic"] else ""
            what = f"message {number}" if number else f"the record {record}"
            text = f"{broker}: {event}: {what}" + (f" of queue {queue!r}" if queue else "")
            to = "to " if event == "dead_lettered" else ""  # that event's reason is the queue
            text += f": {to}{row['reason']}" if row["reason"] else ""
            self._say(text, {
                "event": event, "broker": broker, "vpn": row["vpn"], "queue": queue,
                "message_id": number, "reason": row["reason"], "record": record,
            })  # fmt: skip
        self._said += min(room, batch.num_rows)
        for row in batch.slice(room).select(["event", "vpn", "queue"]).to_pylist():
            self._more[row["event"], row["vpn"], row["queue"]] += 1

    def _tell_more(self) -> None:
        for (event, vpn, queue), count in self._more.items():
            text = f"{event}: {count:,} more messages of queue {queue!r}; the journal has each"
            fields = {"event": event, "vpn": vpn, "queue": queue, "count": count}
            self._say(text, fields)
        self._more.clear()
