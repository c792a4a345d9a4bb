"""Logs alerts (S9, B4) and the end of single messages (X5, C7, S4), from the journal topics.

A loop reports at the end of its batch, up to half a minute later: too late for a queue that fills
up. The journal has events at once. Of most records this thread reads only the dictionary of events,
and rows only if it has a wanted event. Events from before the engine's start are not logged.

The journal has every event of every message. The log has only events after which somebody may
search for a message: it died, or was discarded or rejected. In each second the first of them get a
line each, and one line counts the others.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import OFFSET_END, Message, TopicPartition

from ...protocol import journal_encoding, topics
from ...protocol.kafka_headers import headers_of
from ...protocol.outputs import Alert, is_alert
from ...protocol.wire import STEP
from ..watch_thread import TopicReader

log = logging.getLogger("lakequeue.engine")

Heard = Callable[[str, pa.Table], None]
# A detail of an event, as the journal has them: `key=value, key=value`.
_DETAIL = re.compile(r"(?:^|, )(scope|consumer|limit|percent|time_to_react_s)=(.*?)(?=, \w+=|$)")
_SAID = {"scope", "limit", "percent"}  # of every alert


def decoded(value: bytes) -> pa.Table | None:
    """Decode a journal record; None for any other record."""
    try:
        table = journal_encoding.decode(value)
    except (pa.ArrowInvalid, OSError):
        return None
    return table if table.schema == journal_encoding.SCHEMA else None


def alerts_in(table: pa.Table) -> list[Alert]:
    """The alerts of a journal record."""
    rows = (row for batch in _with_events(table, is_alert) for row in batch.to_pylist())
    return list(filter(None, map(_alert, rows)))


def _with_events(table: pa.Table, wanted: Callable[[str], bool]) -> Iterator[pa.RecordBatch]:
    """The rows with wanted events. Of a record without any, it reads only the dictionary."""
    for batch in table.to_batches():
        names = batch["event"].dictionary.to_pylist()
        codes = [code for code, name in enumerate(names) if wanted(name)]
        if codes:
            mask = pc.is_in(batch["event"].indices, value_set=pa.array(codes, pa.int32()))
            yield batch.filter(mask)


def _alert(row: dict[str, Any]) -> Alert | None:
    """An alert; None if the engine did not write it (anybody may write to the topic)."""
    details: dict[str, Any] = dict(_DETAIL.findall(row["reason"] or ""))
    left = details.pop("time_to_react_s", "None")
    try:
        details["time_to_react_s"] = None if left == "None" else float(left)
    except ValueError:
        return None
    if not details.keys() >= _SAID:
        return None
    return Alert(row["event"], row["vpn"], row["queue"], row["time"], details)


def _log_alert(broker: str, alert: Alert) -> None:
    """Log an alert; a cleared one at a lower level."""
    level = logging.INFO if alert.event.endswith("_cleared") else logging.WARNING
    fields = {"event": alert.event, "broker": broker, "vpn": alert.vpn, "queue": alert.queue}
    log.log(level, "%s: %s", broker, alert.text(), extra={"fields": fields | alert.details})


class AlertWatch(TopicReader):
    """Reads the journals of these VPNs from now on, and reports each alert once, even if a journal
    record comes twice. heard: called with the broker and all events of each record. idle: called
    while no record comes."""

    def __init__(
        self, bootstrap: str, vpns: list[str], heard: Heard = lambda broker, events: None,
        idle: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        places = [TopicPartition(topics.topic(vpn, topics.JOURNAL), 0, OFFSET_END) for vpn in vpns]
        settings = {"queued.max.messages.kbytes": 8_192}
        super().__init__(bootstrap, "lakequeue-alerts", places, **settings)
        self._heard, self._idle = heard, idle
        self._last: dict[tuple[str, str], tuple[int, int]] = {}  # broker, topic → step, part

    def take(self, message: Message) -> None:
        with suppress(ValueError):  # not the engine's headers
            headers: Any = headers_of(message)
            self.read(message.topic() or "", message.key(), message.value(), headers)

    def idle(self) -> None:
        self._idle()

    def read(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, Any]]
    ) -> None:
        """Read one record of a journal topic. Other records there are ignored."""
        step = re.fullmatch(r"(\d+)\.(\d+)", (dict(headers).get(STEP) or b"").decode("latin-1"))
        if step is None or key is None or value is None:
            return
        broker = key.decode(errors="replace")
        at = int(step[1]), int(step[2])
        if at <= self._last.get((broker, topic), (-1, 0)):
            return
        self._last[broker, topic] = at
        if (events := decoded(value)) is None:
            return
        self._heard(broker, events)
        for alert in alerts_in(events):
            _log_alert(broker, alert)


LOGGED = ("dead_lettered", "discarded", "rejected")
LINES_MAX = 20  # in each second


class EventLines:
    """Logs events of single messages."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun, self._said = 0.0, 0
        self._more: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.Lock()

    def heard(self, broker: str, events: pa.Table) -> None:
        """Log the events of one journal record."""
        with self._lock:
            self._next_second()
            for batch in _with_events(events, LOGGED.__contains__):
                self._lines(broker, batch)

    def idle(self) -> None:
        """Log the counted events, if no record comes that would do it."""
        with self._lock:
            self._next_second()

    def _next_second(self) -> None:
        now = self._clock()
        if now - self._begun >= 1.0:
            self._log_more()
            self._begun, self._said = now, 0

    def _lines(self, broker: str, batch: pa.RecordBatch) -> None:
        room = max(0, LINES_MAX - self._said)
        for row in batch.slice(0, room).to_pylist():
            event, queue, number = row["event"], row["queue"], str(row["message_id"] or "")
            record = f"{row['topic']} {row['partition']}/{row['offset']}" if row["topic"] else ""
            what = f"message {number}" if number else f"the record {record}"
            text = f"{broker}: {event}: {what}" + (f" of queue {queue!r}" if queue else "")
            to = "to " if event == "dead_lettered" else ""  # that event's reason is the queue
            text += f": {to}{row['reason']}" if row["reason"] else ""
            log.info("%s", text, extra={"fields": {
                "event": event, "broker": broker, "vpn": row["vpn"], "queue": queue,
                "message_id": number, "reason": row["reason"], "record": record,
            }})  # fmt: skip
        self._said += min(room, batch.num_rows)
        for row in batch.slice(room).select(["event", "vpn", "queue"]).to_pylist():
            self._more[row["event"], row["vpn"], row["queue"]] += 1

    def _log_more(self) -> None:
        for (event, vpn, queue), count in self._more.items():
            text = f"{event}: {count:,} more messages of queue {queue!r}; the journal has each"
            fields = {"event": event, "vpn": vpn, "queue": queue, "count": count}
            log.info("%s", text, extra={"fields": fields})
        self._more.clear()
