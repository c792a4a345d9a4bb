"""The outcome of failures in each acknowledgement mode (C3, C4), measured on the engine.

Three messages are with a consumer: 1 is done, 2 is in hand, 3 waits in the client's buffer. Then
something fails. Messages that another consumer, or the same one, receives after that came *again*;
those that nobody finished and nobody will receive are *lost*; those that stay leased and unfinished
are *kept*.

In the modes client and individual the application calls `ack()` at the end of its work. dups_ok has
n=2, k=0. `table` is the page's table, from memory://; `test_failures.py` does the same with real
processes over Kafka and compares.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import lakequeue

MODES: dict[str, dict[str, Any]] = {
    "auto": {},
    "client": {},
    "individual": {},
    "dups_ok": {"dups_ok_count": 2, "dups_ok_interval": 0},
    "pre_ack": {},
    "no_ack": {},
}
POINTS = {
    "before": "process dies before the first callback",
    "during": "process dies in the callback of 2",
    "after": "process dies after the callback of 3",
    "received": "process dies after `receive()` gave 2",
    "raised": "callback of 2 raises",
    "back": "connection lost in the callback of 2, back in time",
    "away": "connection lost in the callback of 2, for longer",
    "closed": "consumer closed after `receive()` gave 2",
}
DEADLY = ("before", "during", "after", "received")
PAUSED = ("back", "away")
ALL = frozenset("123")


def queue_of(mode: str, point: str) -> str:
    return f"{mode}-{point}"


def definition(mode: str, point: str) -> dict[str, Any]:
    return {
        "name": queue_of(mode, point), "message_type": "text", "max_per_subscription_backlog": 3,
    }  # fmt: skip


def open_consumer(connection: Any, mode: str, point: str) -> Any:
    return connection.consumer(queue_of(mode, point), ack_mode=mode, max_backlog=3, **MODES[mode])


class Work:
    """The application: the messages it handled, and those it received again.

    fail: makes the failure, wherever it is called; wait: until a condition holds.
    """

    def __init__(
        self, consumer: Any, mode: str, point: str,
        fail: Callable[[], None], wait: Callable[[Callable[[], bool]], None],
    ) -> None:  # fmt: skip
        self.handled: set[str] = set()
        self.again: set[str] = set()
        self._manual = mode in ("client", "individual")
        self._consumer, self._point, self._fail, self._wait = consumer, point, fail, wait

    def go(self) -> None:
        """Run up to the failure, and on if the application survives."""
        if self._point == "before":
            self._fail()
        elif self._point in ("received", "closed"):
            self._handle(self._consumer.receive(timeout=30))
            assert self._consumer.receive(timeout=30).payload == b"2"
            self._fail()
        else:
            self._consumer.on_message(self._handle)
            if self._point == "after":
                self._wait(lambda: self.handled == ALL)
                self._fail()

    def _handle(self, message: Any) -> None:
        name = message.payload.decode()
        if message.delivery_count > 1:
            self.again.add(name)
        elif name == "2":
            if self._point == "raised":
                raise ValueError("a mistake of the application")
            if self._point in ("during", *PAUSED):
                self._fail()
        self.handled.add(name)
        if self._manual:
            message.ack()


class Died(BaseException):
    """The process is dead: nothing after this is carried out."""


def on_memory(mode: str, point: str) -> tuple[set[str], set[str], set[str]]:
    """The messages that came again, were lost, are kept."""
    connection = lakequeue.connect("memory://")
    connection.engine.checking = True
    connection.admin().define(definition(mode, point))
    consumer = open_consumer(connection, mode, point)
    heirs: list[Any] = []

    def fail() -> None:
        if point == "back":
            connection.runner.silence(consumer.subscription)
            connection.advance("10s")
            connection.runner.session_of(consumer.subscription)
        elif point == "away":
            heirs.append(heir())
            connection.runner.silence(consumer.subscription)
            connection.advance("16s")
        elif point == "closed":
            consumer.close()
        else:
            consumer.kill()
            if point == "during":
                raise Died

    def heir() -> Any:
        return connection.consumer(queue_of(mode, point), ack_mode="individual", max_backlog=3)

    producer = connection.producer()
    for name in sorted(ALL):
        producer.send(queue_of(mode, point), name)
    connection.attend()
    work = Work(consumer, mode, point, fail, lambda condition: None)
    with contextlib.suppress(Died):
        work.go()
    connection.advance("16s")
    kept = connection.admin().browse(queue_of(mode, point), state="leased")
    kept = {m.payload.decode() for m in kept if m.holder == consumer.name and not heirs}
    heirs = heirs or [heir()]
    again = work.again | {m.payload.decode() for m in heirs[0].receive_many(3, timeout=0)}
    in_hand = {"2"} if point == "closed" else set()
    kept -= work.handled
    return again, set(ALL) - work.handled - again - kept - in_hand, kept


def cell(again: set[str], lost: set[str], kept: set[str]) -> str:
    """The outcome in words."""
    found = (("again", again), ("lost", lost), ("kept", kept))
    return ", ".join(f"{' '.join(sorted(which))} {word}" for word, which in found if which) or "–"


def table() -> str:
    """The table of the page: a row for each failure, a column for each mode."""
    rows = [
        "| what fails | " + " | ".join(f"`{mode}`" for mode in MODES) + " |",
        "|---|" + "---|" * len(MODES),
    ]
    for point, words in POINTS.items():
        cells = [cell(*on_memory(mode, point)) for mode in MODES]
        rows.append(f"| {words} | " + " | ".join(cells) + " |")
    return "\n".join(rows)
