"""Replay: publishes messages of the past again, to one queue (R4).

`journal` has every message that arrived for a queue (`spooled`, or `discarded` if the queue refused
it), and its position in `messages`. If another broker has the queue, the message arrived in its
stand-in. Messages that are in neither any more are published again, only to that queue, with
payload, key, headers and priority. They get new ids and three headers:
`lq-replay-of` (the earlier id, if there was one), `lq-replay-time` (when it was first published)
and `lq-replay-by`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from ..client.values import id_of, time_ms
from ..expressions import Program, is_true, predicate
from ..mesh.stand_ins import OUT
from ..protocol.bounds import CANNOT_DECODE, datetime_of, shown
from ..protocol.checked import checked
from ..protocol.commands import Describe
from ..protocol.errors import ConfigError, Rejected
from ..protocol.ids import COUNTER_MASK, parse_ranges
from ..protocol.messages import PRIORITY_DEFAULT, QUEUE_ALONE
from ..protocol.wire import headers_list
from .opening import Lake, open_lake

TOGETHER = 1_000
EXAMPLES = 5
OF, TIME, BY = "lq-replay-of", "lq-replay-time", "lq-replay-by"
# A recreated topic has two records at one offset: use the newest of that time. A record that lost
# steps had stored was stored again, under a higher id. A bookmark is a place in the journal: a
# discarded message has no id, and each broker numbers its own messages.
_CAME = """
SELECT CAST(came.id AS TEXT), came.event, epoch_ms(m.time), m.payload, m.key, m.lq, m.headers
FROM (
  SELECT max(CAST(message_id AS UBIGINT)) AS id, max(event) AS event, topic, "partition", "offset",
    item, published_at, min(place) AS place
  FROM (
    SELECT j.message_id, j.event, j.topic, j."partition", j."offset", j.item,
      row(j.time, j.step, j.part, j.line) AS place,
      coalesce(max(m.time) FILTER (WHERE m.time <= j.time), min(m.time)) AS published_at
    FROM journal AS j JOIN messages AS m ON m.topic = j.topic AND m."partition" = j."partition"
      AND m."offset" = j."offset" AND m.item = j.item
    WHERE j.vpn = $vpn AND j.queue IN ($queue, $waiting) AND j.event IN ('spooled', 'discarded')
      AND j.topic <> ''
    GROUP BY ALL
  ) AS each_event
  GROUP BY topic, "partition", "offset", item, published_at
) AS came JOIN messages AS m ON m.topic = came.topic AND m."partition" = came."partition"
  AND m."offset" = came."offset" AND m.item = came.item AND m.time = came.published_at
WHERE epoch_ms(m.time) BETWEEN $since AND $until
  AND ($first_id = 0 OR came.place >= (
    SELECT min(row(time, step, part, line)) FROM journal
    WHERE vpn = $vpn AND queue IN ($queue, $waiting) AND event = 'spooled'
      AND CAST(message_id AS UBIGINT) BETWEEN $first_id AND $last_id))
  AND (came.id IS NULL OR CAST(came.id AS TEXT) NOT IN (
    SELECT message_id FROM queued WHERE vpn = $vpn AND queue IN ($queue, $waiting)))
ORDER BY came.place
"""
# A publisher may set any time in a record. A record with a wrong time is stored under a day near
# the day of arrival, and must not count as the beginning of the tables.
_BEGINS = """
SELECT epoch_ms(min(CASE WHEN CAST(time AS DATE) = date THEN time ELSE date END)),
  epoch_ms(min(time))
FROM messages
"""
_FIRST_ID = """
SELECT min(CAST(message_id AS UBIGINT)) FROM journal
WHERE event = 'spooled' AND CAST(message_id AS UBIGINT) BETWEEN $base AND $last
"""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The outcome of a replay, or of a dry run.

    count: messages that were published again; refused: messages that the queue refused, by reason;
    begins: the publish time of the oldest message in the tables, None if they have none; examples:
    the first few, each with `id`, `time`, `event` and `payload`; left: a sentence if the tables no
    longer have a part of the requested messages, else empty.
    """

    count: int
    refused: dict[str, int]
    begins: datetime | None
    examples: list[dict[str, Any]] = field(default_factory=list)
    left: str = ""


def replay(
    connection: Any,
    queue: str,
    *,
    home: Path | str,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    where: str | None = None,
    ids: str | None = None,
    dry_run: bool = False,
    rate: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> Replayed:
    """See `Admin.replay`. progress: called from time to time with the number of published
    messages."""
    if rate is not None and (
        isinstance(rate, bool) or not isinstance(rate, int | float) or not rate > 0
    ):
        raise ConfigError(f"rate: {shown(rate)} – allowed are messages a second, more than 0")
    chosen = ToReplay(connection.vpn, queue, since, until, where, ids)
    _ = connection.admin().describe(queue)  # raises for a queue that does not exist
    with open_lake(home) as lake:
        first, earliest = lake.execute(_BEGINS).fetchone() or (None, None)
        begins = None if first is None else datetime_of(first)
        left = chosen.left(lake, first, earliest)
        if dry_run:
            count, examples = 0, list[dict[str, Any]]()
            for row in chosen.rows(lake):
                count += 1
                if len(examples) < EXAMPLES:
                    examples.append(row.shown())
            return Replayed(count, {}, begins, examples, left)
        count, refused, examples = _publish(connection, queue, chosen.rows(lake), rate, progress)
    return Replayed(count, refused, begins, examples, left)


@dataclass(slots=True)
class _Row:
    message_id: str | None
    event: str
    time: int
    payload: bytes
    key: bytes | None
    priority: int
    dmq: bool
    headers: str | None

    def shown(self) -> dict[str, Any]:
        return {
            "id": self.message_id, "time": datetime_of(self.time), "event": self.event,
            "payload": self.payload,
        }  # fmt: skip

    def again(self, who: str) -> dict[str, Any]:
        """The arguments to publish it again."""
        own = {name: value for name, value in headers_list(self.headers) if name[:3] != "lq-"}
        of = {OF: self.message_id} if self.message_id else {}
        ours = {**of, TIME: datetime_of(self.time).isoformat(), BY: who}
        return {
            "headers": {**own, **ours}, "key": self.key, "priority": self.priority,
            "dmq_eligible": self.dmq,
        }  # fmt: skip


class ToReplay:
    """The messages that a replay selects. Raises ConfigError for a wrong value."""

    def __init__(
        self, vpn: str, queue: str, since: datetime | str | None, until: datetime | str | None,
        where: str | None, ids: str | None,
    ) -> None:  # fmt: skip
        checked(Describe(queue=queue))
        bookmark = since if isinstance(since, str) and since.isdecimal() else None
        begin = None if bookmark or since in (None, "epoch") else since
        first = id_of(bookmark or 0, "since")
        self._since = begin
        self._given: dict[str, Any] = {
            "vpn": vpn, "queue": queue, "waiting": OUT + queue, "first_id": first,
            "last_id": first | COUNTER_MASK,  # of the same broker
            "since": -(1 << 62) if begin is None else time_ms(begin, "since"),
            "until": 1 << 62 if until is None else time_ms(until, "until"),
        }  # fmt: skip
        if where is not None and not isinstance(where, str):
            raise ConfigError(f"where: {shown(where)} – allowed is an expression, as text")
        try:
            self._ranges = None if ids is None else parse_ranges(ids)
            self._program: Program | None = None if where is None else predicate("where", where)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def left(self, lake: Lake, begins: int | None, earliest: int | None) -> str:
        """A sentence about the part that the tables do not have. earliest: the earliest time of a
        message, even a wrong one. Raises ConfigError if they no longer have any of the messages."""
        given = self._given
        if begins is None or earliest is None:
            return "The tables have no messages yet: they are some seconds behind the engine"
        when = datetime_of(begins).isoformat(" ", "seconds")
        if given["until"] < min(begins, earliest):
            raise ConfigError(
                f"until: {datetime_of(given['until']).isoformat(' ', 'seconds')} – the tables "
                f"begin at {when}; older messages are gone"
            )
        if self._since is not None and given["since"] < begins:
            return f"The tables begin at {when}: older messages are gone"
        if given["first_id"]:
            last = given["last_id"]
            ids = {"base": last - COUNTER_MASK, "last": last}
            (first,) = lake.execute(_FIRST_ID, ids).fetchone() or (None,)
            if first is not None and given["first_id"] < first:
                return f"The tables begin with message {first}, of {when}: older ones are gone"
        return ""

    def rows(self, lake: Lake) -> Iterator[_Row]:
        """The messages, in the order in which they arrived."""
        found = lake.execute(_CAME, self._given)
        while rows := found.fetchmany(TOGETHER):
            for number, event, when, payload, key, lq, headers in rows:
                priority, dmq = _publish_options(lq)
                row = _Row(number, event, when, payload or b"", key, priority, dmq, headers)
                if self._meant(row):
                    yield row

    def _meant(self, row: _Row) -> bool:
        if self._ranges is not None:
            number = int(row.message_id or 0)
            if not any(low <= number <= high for low, high in self._ranges):
                return False
        if self._program is None:
            return True
        return is_true(self._program.run(row.payload, row.priority, row.key)[0])


def _publish_options(lq: str | None) -> tuple[int, bool]:
    try:
        header = msgspec.json.decode(lq or "{}")
        return int(header.get("priority", PRIORITY_DEFAULT)), bool(header.get("dmq", True))
    except (*CANNOT_DECODE, TypeError, AttributeError):
        return PRIORITY_DEFAULT, True


def _publish(
    connection: Any, queue: str, rows: Iterator[_Row], rate: float | None,
    progress: Callable[[int], None] | None,
) -> tuple[int, dict[str, int], list[dict[str, Any]]]:  # fmt: skip
    count, refused, examples = 0, dict[str, int](), list[dict[str, Any]]()
    begun = time.monotonic()
    with connection.producer() as producer:
        sent: list[Any] = []
        for row in rows:
            if rate is not None:
                connection.pause(max(0.0, begun + count / rate - time.monotonic()))
            again = row.again(connection.client_name)
            sent.append(producer.send_async(QUEUE_ALONE + queue, row.payload, **again))
            count += 1
            if len(examples) < EXAMPLES:
                examples.append(row.shown())
            if len(sent) >= TOGETHER:
                _settle(producer, sent, refused)
                if progress is not None:
                    progress(count)
        _settle(producer, sent, refused)
    return count - sum(refused.values()), refused, examples


def _settle(producer: Any, sent: list[Any], refused: dict[str, int]) -> None:
    """Wait for the receipts, and count the refused messages."""
    with contextlib.suppress(Rejected):  # each future has its own error
        producer.flush()
    for future in sent:
        try:
            reason = future.result().reason
        except Rejected as error:
            reason = error.reason
        if reason:
            refused[str(reason)] = refused.get(str(reason), 0) + 1
    sent.clear()
