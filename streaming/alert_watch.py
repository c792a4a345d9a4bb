"""Alerts (S9, B4) as lines for the operator, a second after they are set or cleared.

A loop tells the driver what it did at the end of its batch, which may be half a minute later: too
late for something that fills up. The journal says everything at once, so this reads it: of each
record the dictionary of events, and rows only where an alert is among them. What was said before
the engine started is not said again.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from ..protocol import journal, topics
from ..protocol.kafka_headers import headers_of
from ..protocol.outputs import Alert, is_alert
from ..protocol.wire import STEP
from ..sources.live import quiet_client

log = logging.getLogger("lakequeue.engine")

POLL_S = 0.25
Heard = Callable[[str, pa.Table], None]
Say = Callable[[str, str, Alert], None]  # a sentence, the broker, what it is of
# Of an event's details, as the journal has them: `key=value, key=value`.
_DETAIL = re.compile(r"(?:^|, )(scope|consumer|limit|percent|time_to_react_s)=(.*?)(?=, \w+=|$)")
_SAID = {"scope", "limit", "percent"}  # of every alert


def decoded(value: bytes) -> pa.Table | None:
    """A journal record; None for what is none."""
    try:
        table = journal.decode(value)
    except (pa.ArrowInvalid, OSError):
        return None
    return table if table.schema == journal.SCHEMA else None


def alerts_in(table: pa.Table) -> list[Alert]:
    """The alerts of a journal record."""
    found: list[Alert] = []
    for batch in table.to_batches():
        names = batch["event"].dictionary.to_pylist()
        codes = [code for code, name in enumerate(names) if is_alert(name)]
        if codes:
            mask = pc.is_in(batch["event"].indices, value_set=pa.array(codes, pa.int32()))
            found += filter(None, map(_alert, batch.filter(mask).to_pylist()))
    return found


def _alert(row: dict[str, Any]) -> Alert | None:
    """None: no engine wrote that, whoever may write to the topic."""
    details: dict[str, Any] = dict(_DETAIL.findall(row["reason"] or ""))
    left = details.pop("time_to_react_s", "None")
    try:
        details["time_to_react_s"] = None if left == "None" else float(left)
    except ValueError:
        return None
    if not details.keys() >= _SAID:
        return None
    return Alert(row["event"], row["vpn"], row["queue"], row["time"], details)


def told(text: str, broker: str, alert: Alert) -> None:
    """Into the log: one that is cleared is as it should be."""
    level = logging.INFO if alert.event.endswith("_cleared") else logging.WARNING
    fields = {"event": alert.event, "broker": broker, "vpn": alert.vpn, "queue": alert.queue}
    log.log(level, "%s", text, extra={"fields": fields | alert.details})


class AlertReader:
    """Says each alert once: a journal record that was written twice is the same one. heard: gets
    the broker and the events of each record, alerts or not."""

    def __init__(self, say: Say, heard: Heard = lambda broker, events: None):
        self._say, self._heard = say, heard
        self._last: dict[tuple[str, str], tuple[int, int]] = {}  # broker, topic → step, part

    def read(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, Any]]
    ) -> None:
        """One record of a journal topic; whatever else is there is passed over."""
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
            self._say(f"{broker}: {alert.text()}", broker, alert)


class AlertWatch(threading.Thread):
    """Reads the journals of these VPNs from now on; say gets a sentence for each alert, heard all
    that happened."""

    def __init__(
        self,
        bootstrap: str,
        vpns: list[str],
        heard: Heard,
        say: Say = told,
    ) -> None:
        super().__init__(daemon=True, name="lakequeue-alerts")
        self._kafka = quiet_client(bootstrap, "lakequeue-alerts")
        self._topics = [topics.topic(vpn, topics.JOURNAL) for vpn in vpns]
        self._reader = AlertReader(say, heard)
        self._stopping = threading.Event()

    def run(self) -> None:
        """The thread. While Kafka is away it waits."""
        consumer = Consumer(
            {
                **self._kafka,
                "group.id": "lakequeue-engine",  # asked for, and not used
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                "queued.max.messages.kbytes": 8_192,
            }
        )
        consumer.assign([TopicPartition(topic, 0, OFFSET_END) for topic in self._topics])
        while not self._stopping.is_set():
            message = consumer.poll(POLL_S)
            if message is not None and message.error() is None:
                with suppress(ValueError):  # no journal has such headers
                    headers: Any = headers_of(message)
                    self._reader.read(
                        message.topic() or "", message.key(), message.value(), headers
                    )
        consumer.close()

    def stop(self) -> None:
        """End the thread, soon; with a Kafka that hangs it is not waited for."""
        self._stopping.set()
