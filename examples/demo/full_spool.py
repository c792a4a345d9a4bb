"""`lakequeue demo spool`: a queue fills up and tells so, refuses, recovers, and nothing is missing.

What it shows, in this order: a queue that nobody consumes warns before it is full (S9), then nacks
its producers (S3, S4), who keep what was refused; consumers come, the alert clears, the refused
orders are sent again; orders that a consumer rejects stand in the dead message queue (C7, X5); the
engine is killed in the middle and goes on where it was (S1); dead orders are redriven (X6). The
accounts compare three books: what the producer was told, what consumers did, and what the tables in
Delta say.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...cli.common import console, number, say_json
from ...protocol.errors import LakequeueError, LeaseLost, Rejected
from .child_processes import EngineProcess, until

if TYPE_CHECKING:
    import pandas as pd

CONFIGURATION = Path(__file__).resolve().parents[2] / "conf" / "demo-spool.yaml"
ORDERS, DEAD = "orders", "orders-dead"
PAYLOAD_BYTES = 1000
FILL = 2_600  # more than the spool takes: some are refused
LATER = 1_500  # sent while the engine is killed
RATE = 500  # orders a second while nobody consumes: slow enough to see the alert come first
SICK_EVERY = 50  # each such order cannot be processed until its cause is mended
LOOK_EVERY_S = 0.5
PHASE_SECONDS_MAX = 120.0


def order(n: int) -> bytes:
    """Order number n: 1 KB of JSON."""
    text = json.dumps({"order": n, "sick": n % SICK_EVERY == 0, "text": ""})
    return f"{text[:-2]}{'x' * (PAYLOAD_BYTES - len(text))}{text[-2:]}".encode()


@dataclass
class Book:
    """The producer's book: what was sent, and what it was told of each."""

    waiting: dict[int, Any] = field(default_factory=dict)
    stored: dict[int, str] = field(default_factory=dict)  # order -> message id
    refused: Counter[str] = field(default_factory=Counter)
    again: list[int] = field(default_factory=list)

    def send(self, producer: Any, n: int) -> None:
        """Send an order; its answer comes later."""
        self.waiting[n] = producer.send_async(ORDERS, order(n))

    def settle(self) -> None:
        """Note the answers that have come."""
        for n, future in list(self.waiting.items()):
            if not future.done():
                continue
            del self.waiting[n]
            try:
                self.stored[n] = future.result().message_id
            except Rejected as nack:
                self.refused[str(nack.reason)] += 1
                self.again.append(n)


class Worker(threading.Thread):
    """Consumes the orders; rejects the sick ones until `mended`."""

    def __init__(self, url: str) -> None:
        super().__init__(name="worker", daemon=True)
        self._url = url
        self.mended = threading.Event()
        self.stop = threading.Event()
        self.done: set[int] = set()
        self.rejected: set[int] = set()
        self.error: BaseException | None = None

    def run(self) -> None:
        """Consume until told to stop."""
        import lakequeue

        try:
            with (
                lakequeue.connect(self._url, client_name="worker") as connection,
                connection.consumer(ORDERS, ack_mode="individual", max_backlog=200) as consumer,
            ):
                while not self.stop.is_set():
                    message = consumer.receive(timeout=0.2)
                    if message is not None:
                        self._handle(message)
        except BaseException as error:
            self.error = error

    def _handle(self, message: Any) -> None:
        found = json.loads(message.payload)
        try:
            if found["sick"] and not self.mended.is_set():
                message.reject("no such customer")
                self.rejected.add(found["order"])
            else:
                message.ack()
                self.done.add(found["order"])
        except LeaseLost:
            pass  # another delivery of it comes


class SpoolDemo:
    """One run of the demo."""

    def __init__(self, home: Path, as_json: bool) -> None:
        self._home, self._as_json = home, as_json
        self._console = console(stderr=as_json)
        self._since = time.monotonic()
        self._book = Book()
        self._alerts: list[dict[str, Any]] = []
        self._seen = 0.0
        self._engine: EngineProcess | None = None
        self._worker: Worker | None = None
        self._kills = 0
        self._redriven = 0

    # ------------------------------------------------------------ the story

    def run(self) -> bool:
        """Everything, from start to the accounts; whether they add up."""
        import lakequeue

        self._say("Starting Kafka and the engine …")
        try:
            addresses = self._start_engine()
            url = (self._home / "address").read_text().strip()
            with lakequeue.connect(url, client_name="demo") as connection:
                self._admin = connection.admin()
                with connection.producer(window=FILL + LATER, pub_ack_time="10s") as producer:
                    self._fill(producer)
                    self._consume(producer, url)
                    self._crash(producer)
                self._redrive()
                self._end_worker()
                looks = {name: self._admin.describe(name) for name in (ORDERS, DEAD)}
                tables = Path(addresses["tables"])
                self._say("every queue is empty; waiting for the tables in Delta")
                journal = self._journal(tables, looks)
        finally:
            self._end_worker()
            if self._engine is not None:
                self._engine.stop()
        return self._close(journal, looks)

    def _start_engine(self) -> dict[str, str]:
        self._engine = EngineProcess(self._home, CONFIGURATION, lambda line: None)
        return self._engine.wait_ready()

    def _fill(self, producer: Any) -> None:
        """Nobody consumes: first the alert, then nacks."""
        self._say(f"nobody consumes; {FILL:,} orders of 1 KB are sent, the queue takes 2 MB")
        started = time.monotonic()
        for n in range(FILL):
            self._book.send(producer, n)
            ahead = n / RATE - (time.monotonic() - started)
            if ahead > 0.05:
                time.sleep(ahead)
            if n % (RATE // 2) == 0:
                self._look()
        self._wait(lambda: not self._book.waiting, "the producer's answers")
        self._wait(lambda: self._alerted("spool_usage_high"), "the alert")
        refused = sum(self._book.refused.values())
        self._say(f"{len(self._book.stored):,} stored, {refused:,} refused (queue_quota): the "
                  "producer keeps them")  # fmt: skip

    def _consume(self, producer: Any, url: str) -> None:
        """A consumer comes: the alert clears, and what was refused is sent again."""
        self._say(f"a consumer comes; it rejects every {SICK_EVERY}th order")
        self._worker = Worker(url)
        self._worker.start()
        self._wait(lambda: self._alerted("spool_usage_cleared"), "the end of the alert")
        again, self._book.again = self._book.again, []
        self._say(f"{len(again):,} refused orders are sent again")
        for n in again:
            self._book.send(producer, n)
        self._wait(lambda: not self._book.waiting and not self._depth(ORDERS), "the orders")
        dead = self._admin.browse(DEAD, limit=1)[0]
        reason, detail = (_text(dead.headers[f"lq-dead-{k}"]) for k in ("reason", "detail"))
        self._say(f"{self._depth(DEAD):,} dead orders stand in {DEAD}: {reason}, {detail!r}")

    def _crash(self, producer: Any) -> None:
        """The engine dies while orders come in, and is started again."""
        assert self._engine is not None
        for n in range(FILL, FILL + LATER):
            self._book.send(producer, n)
        self._engine.kill()
        self._kills += 1
        self._say(f"{LATER:,} more orders are on their way; the engine and its Kafka are killed "
                  "(SIGKILL)")  # fmt: skip
        self._say("waiting for the engine: Kafka and Spark start anew on the same home, and the "
                  "step that was under way runs again")  # fmt: skip
        self._start_engine()
        self._say("the engine is up again; waiting until every order is stored and consumed: "
                  "the producer sends again what had no answer")  # fmt: skip
        self._wait(lambda: not self._book.waiting and not self._depth(ORDERS), "the orders")
        self._say(f"{len(self._book.stored):,} of {FILL + LATER:,} orders stored, none waits")

    def _redrive(self) -> None:
        """The cause is mended; dead orders go back and are processed."""
        assert self._worker is not None
        self._worker.mended.set()
        dead = self._depth(DEAD)
        self._redriven = self._admin.redrive(DEAD).moved
        self._say(f"the cause is mended: {self._redriven:,} of {dead:,} dead orders are redriven")
        self._wait(lambda: not self._depth(ORDERS) and not self._depth(DEAD), "the redriven orders")
        self._look()  # what the last of them cleared

    # ------------------------------------------------------------ looking

    def _say(self, line: str) -> None:
        self._console.print(f"{time.monotonic() - self._since:5.1f} s  {line}")

    def _depth(self, queue: str) -> int:
        return int(self._admin.describe(queue)["depth"])

    def _alerted(self, event: str) -> bool:
        return any(alert["event"] == event for alert in self._alerts)

    def _look(self) -> None:
        """The producer's answers, new alerts, and how full the queue is."""
        self._book.settle()
        found = [e for e in self._admin.events() if e["event"].startswith("spool_usage")]
        mine = [e for e in found if e["queue"] == ORDERS]
        for alert in mine[len(self._alerts) :]:
            left = alert.get("time_to_react_s")
            when = f", full in {left:.0f} s at this rate" if left is not None else ""
            percent = alert.get("percent")
            full = f" at {percent:.0f} %" if percent is not None else ""
            self._say(f"[bold]{alert['event']}[/bold]{full}{when}")
        self._alerts = mine
        look = self._admin.describe(ORDERS)
        if time.monotonic() - self._seen > 2:
            self._seen = time.monotonic()
            limit = look["definition"]["max_spool_usage"]
            self._say(f"[dim]{look['depth']:,} orders, {look['spool_bytes'] / limit:.0%} of the "
                      f"spool, {sum(self._book.refused.values()):,} refused[/dim]")  # fmt: skip

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        def looked() -> bool:
            self._look()
            return condition()

        until(looked, PHASE_SECONDS_MAX, self._check, what, LOOK_EVERY_S)

    def _check(self) -> None:
        assert self._engine is not None
        self._engine.check()
        if self._worker is not None and self._worker.error is not None:
            raise LakequeueError(f"The consumer failed: {self._worker.error}")

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.stop.set()
            self._worker.join(20)

    # ------------------------------------------------------------ the accounts

    def _journal(self, tables: Path, looks: dict[str, Any]) -> pd.DataFrame:
        from .accounts import complete, read_journal

        until(lambda: complete(tables, looks), PHASE_SECONDS_MAX, self._check, "the tables", 0.5)
        return read_journal(tables)

    def _close(self, journal: pd.DataFrame, looks: dict[str, Any]) -> bool:
        assert self._worker is not None
        rows = accounts(journal, looks, self._book, self._worker)
        events = Counter(alert["event"] for alert in self._alerts)
        cleared = {"cleared": events["spool_usage_cleared"]}
        rows.append(("alerts, each cleared", events["spool_usage_high"], cleared))
        wrong = [what for what, wanted, found in rows if set(found.values()) != {wanted}]
        if self._as_json:
            lines = [{"what": what, "wanted": wanted, **found} for what, wanted, found in rows]
            say_json({"good": not wrong, "accounts": lines, "engine_killed": self._kills,
                      "redriven": self._redriven, "wrong": wrong})  # fmt: skip
            return not wrong
        self._show(rows, wrong)
        return not wrong

    def _show(self, rows: list[Row], wrong: list[str]) -> None:
        from .view import table

        shown = table("account", "wanted", "found", "adds up", left=1)
        for what, wanted, found in rows:
            books = ", ".join(f"{who} {number(count)}" for who, count in found.items())
            verdict = "[red]no[/red]" if what in wrong else "[green]yes[/green]"
            shown.add_row(what, number(wanted), books, verdict)
        self._console.print()
        self._console.print(shown)
        seconds = time.monotonic() - self._since
        if wrong:
            self._console.print(f"[red]The accounts do not add up: {', '.join(wrong)}.[/red]")
        else:
            self._console.print(
                f"[green]Every order is accounted for.[/green] {seconds:.0f} s in all."
            )


Row = tuple[str, int, dict[str, int]]


def accounts(journal: pd.DataFrame, looks: dict[str, Any], book: Book, worker: Worker) -> list[Row]:
    """What each account should be, and what it is in each book that has it.

    journal: columns queue, event, message_id; looks: `describe` of both queues, at the end.
    """

    def ids(queue: str, event: str) -> int:
        mine = journal[(journal["queue"] == queue) & (journal["event"] == event)]
        return int(mine["message_id"].nunique())

    def rows(queue: str, event: str) -> int:
        return int(((journal["queue"] == queue) & (journal["event"] == event)).sum())

    sent = FILL + LATER
    dead = len(range(0, sent, SICK_EVERY))
    orders, graves = looks[ORDERS]["counters"], looks[DEAD]["counters"]
    refused = sum(book.refused.values())
    return [
        ("orders stored", sent, {
            "producer": len(book.stored), "its ids": len(set(book.stored.values())),
            "Delta": ids(ORDERS, "spooled")}),
        ("orders refused, each sent again", refused, {
            "engine": sum(orders["rejected"].values()), "Delta": rows(ORDERS, "rejected")}),
        ("orders acknowledged", sent, {
            "consumer": len(worker.done), "Delta": ids(ORDERS, "acknowledged"),
            "engine": orders["acknowledged"]}),
        ("orders rejected by the consumer", dead, {
            "consumer": len(worker.rejected), "Delta": ids(ORDERS, "consumer_rejected")}),
        ("orders dead-lettered", dead, {
            "engine": orders["dead_lettered"], "Delta": ids(DEAD, "spooled")}),
        ("dead orders redriven", dead, {
            "engine": graves["redriven"], "Delta": ids(DEAD, "redriven")}),
        ("orders still there", 0, {q: looks[q]["depth"] for q in (ORDERS, DEAD)}),
    ]  # fmt: skip


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
