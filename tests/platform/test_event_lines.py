"""What became of single messages, in the log: with their ids, and only so many a second."""

from __future__ import annotations

from typing import Any

import lakequeue
import pytest
from lakequeue.protocol import journal_encoding
from lakequeue.protocol.journal import Journal, JournalSegment
from lakequeue.streaming.watch.journal_watch import LINES_MAX, EventLines

Said = list[tuple[str, dict[str, Any]]]


class Lines:
    """Event lines, and what they said."""

    def __init__(self) -> None:
        self.said: Said = []
        self.now = 1.0
        self.lines = EventLines(lambda text, fields: self.said.append((text, fields)), self.clock)

    def clock(self) -> float:
        return self.now

    def hear(self, *segments: JournalSegment) -> None:
        self.lines.heard(
            "east",
            journal_encoding.decode(
                journal_encoding.encode(Journal("east", 1, 1_000, [*segments]))
            ),
        )


def segment(event: str, *ids: int, **options: Any) -> JournalSegment:
    return JournalSegment(event, "default", "orders", [*ids], **options)


def test_what_somebody_will_look_for_has_its_id() -> None:
    log = Lines()
    log.hear(
        segment("delivered", 1, 2), segment("dead_lettered", 7, reason="orders-dmq"),
        segment("acknowledged", 2), segment("discarded", 9, reason="queue_quota"),
    )  # fmt: skip
    assert [text for text, _ in log.said] == [
        "east: dead_lettered: message 7 of queue 'orders': to orders-dmq",
        "east: discarded: message 9 of queue 'orders': queue_quota",
    ]
    fields = log.said[0][1]
    assert (fields["message_id"], fields["queue"], fields["broker"]) == ("7", "orders", "east")
    assert fields["record"] == ""  # it says nothing of where it came from


def test_a_flood_has_few_lines_and_is_counted() -> None:
    log = Lines()
    log.hear(segment("dead_lettered", *range(1, 501)))
    log.hear(segment("dead_lettered", *range(501, 601)))
    assert len(log.said) == LINES_MAX
    log.now += 1.5
    log.hear(segment("delivered", 1))
    text, fields = log.said[-1]
    assert (
        text
        == f"dead_lettered: {600 - LINES_MAX} more messages of queue 'orders'; the journal has each"
    )
    assert (len(log.said), fields["count"]) == (LINES_MAX + 1, 600 - LINES_MAX)
    log.hear(segment("dead_lettered", 601))
    assert "message 601" in log.said[-1][0]


def test_an_engines_own_journal() -> None:
    """As a broker writes it: a rejected message is a line with its id."""
    queue = {"name": "orders", "message_type": "text"}
    with lakequeue.connect("memory://", config={"queues": [queue]}) as connection:
        sent = connection.producer().send("orders", b"x")
        with connection.consumer("orders") as consumer:
            message = consumer.receive(timeout=0)
            message.reject("salty")
        (row,) = [e for e in connection.engine.journal() if e["event"] in ("discarded", "rejected")]
    assert str(row["message_id"]) == sent.message_id


@pytest.mark.parametrize("ids", [[], [0]])
def test_what_has_no_id_is_named_by_its_record(ids: list[int]) -> None:
    log = Lines()
    place: dict[str, Any] = {"topic": "plain", "partitions": [2], "offsets": [7]}
    log.hear(segment("rejected", *ids, reason="malformed", **place))
    said = "east: rejected: the record plain 2/7 of queue 'orders': malformed"
    assert [text for text, _ in log.said] == [said]
