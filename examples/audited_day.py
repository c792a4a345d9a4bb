"""`lakequeue demo audit`: what went wrong yesterday, found out from the tables alone (R1, R4).

A day's flights go through one queue. In the morning the tower's program stops for some seconds with
its backlog full, and flights wait behind it. In the afternoon a new version takes over, and
acknowledges flights that it never writes down. Nobody noticed. Afterwards four questions are asked,
each with the command that a user would type: why was this flight late (`trace`), how did the queue
stand at that moment (`at`), who processed what (`sql`); and the lost afternoon is replayed
(`replay`). The answers are held beside what the story itself knows.
"""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ..cli.common import console, say_json
from ..protocol.errors import LakequeueError
from .child_processes import EngineProcess, until
from .flight_data import load_flights

CONFIGURATION = Path(__file__).resolve().parent.parent / "conf" / "demo-audit.yaml"
QUEUE = "departures"
FLIGHTS = 842  # of the first day
NOON = 1200  # as the data write times
STALL_AFTER = 100  # flights
STALL_S = 4.0
OLD, NEW = "tower-1", "tower-2"
# The tables lag this much behind, instead of a minute: nobody waits for a demo.
INTERVALS = ("--set", "lakequeue.tables_interval_s=2", "--set", "lakequeue.history_interval_s=2")
PHASE_S_MAX = 120.0
WAITED = (
    f"select message_id, waiting_ms, consumers from lifecycle where queue = '{QUEUE}' "
    "order by waiting_ms desc, message_id limit 3"
)
WHO = (
    "select consumers, count(*) as flights, min(try_cast(message_id as bigint)) as first, "
    f"max(try_cast(message_id as bigint)) as last from lifecycle where queue = '{QUEUE}' "
    "and acknowledged_at is not null group by all order by first"
)


class AuditDemo:
    """One run of the demo."""

    def __init__(self, home: Path, as_json: bool) -> None:
        self._home, self._as_json = home, as_json
        self._console = console(stderr=as_json)
        self._since = time.monotonic()
        self._written: list[dict[str, Any]] = []  # what the tower has written down
        self._checks: dict[str, bool] = {}
        self._told: dict[str, Any] = {}

    def run(self) -> bool:
        """Everything; whether the tables knew what the story knows."""
        import lakequeue

        flights = [json.loads(p) for p in load_flights(FLIGHTS).days[0].payloads]
        self._say("Starting Kafka and the engine …")
        engine = EngineProcess(self._home, CONFIGURATION, lambda line: None, *INTERVALS)
        try:
            engine.wait_ready()
            url = (self._home / "address").read_text().strip()
            with lakequeue.connect(url, client_name="demo") as connection:
                self._day(connection, flights)
                self._wait_for_tables(engine, len(flights))
                self._questions(connection, flights)
                self._wait_for_tables(engine, len(flights) + self._told["replayed"])
                self._accounts(flights)
        finally:
            engine.stop()
        return self._close()

    # ------------------------------------------------------------ what happened

    def _day(self, connection: Any, flights: list[dict[str, Any]]) -> None:
        morning = [f for f in flights if f["sched_dep_time"] < NOON]
        self._say(f"morning: {len(morning)} flights, and {OLD} writes them down")
        self._part(connection, OLD, morning, stalls=True, writes=True)
        afternoon = flights[len(morning) :]
        self._say(f"afternoon: {len(afternoon)} flights; {NEW} acknowledges them and loses them")
        self._part(connection, NEW, afternoon, stalls=False, writes=False)
        self._say(f"evening: the queue is empty, and {len(self._written)} flights are written down")

    def _part(
        self, connection: Any, name: str, flights: list[dict[str, Any]], *,
        stalls: bool, writes: bool,
    ) -> None:  # fmt: skip
        with self._consumer(connection, name) as consumer:
            with connection.producer(window=1_000) as producer:
                for flight in flights:
                    producer.send_async(QUEUE, json.dumps(flight))
                producer.flush(60)
            self._consume(consumer, len(flights), stalls=stalls, writes=writes)

    def _consumer(self, connection: Any, name: str) -> Any:
        return connection.consumer(QUEUE, name=name, ack_mode="individual", max_backlog=20)

    def _consume(self, consumer: Any, count: int, *, stalls: bool, writes: bool) -> None:
        """Take so many. stalls: stop for some seconds in the middle, with a backlog held."""
        for taken in range(count):
            message = consumer.receive(PHASE_S_MAX)
            if message is None:
                raise LakequeueError(f"{taken} of {count} flights came within {PHASE_S_MAX:.0f} s")
            if stalls and taken == STALL_AFTER:
                time.sleep(STALL_S)
            if writes:
                self._written.append(json.loads(message.payload))
            message.ack()

    def _wait_for_tables(self, engine: EngineProcess, count: int) -> None:
        """Until they know the end of so many messages, and the steps in which it came."""
        ends = f"select count(*) as n from lifecycle where queue = '{QUEUE}' and ended is not null"
        steps = (
            "select (select max(now) from steps) >= (select max(time) from journal where "
            f"queue = '{QUEUE}') as n"
        )

        def there(query: str, wanted: int) -> Callable[[], bool]:
            def look() -> bool:
                with contextlib.suppress(LakequeueError):  # no table yet
                    return bool(self._rows("sql", query)[0]["n"] >= wanted)
                return False

            return look

        until(there(ends, count), PHASE_S_MAX, engine.check, "the tables", 1.0)
        until(there(steps, 1), PHASE_S_MAX, engine.check, "the table of steps", 1.0)

    # ------------------------------------------------------------ what is found out

    def _questions(self, connection: Any, flights: list[dict[str, Any]]) -> None:
        self._head("Which flights waited longest?")
        (late, *_) = self._ask("sql", WAITED)
        self._head("Why was the first of them late?")
        (story,) = self._ask("trace", late["message_id"])
        wait = _longest_wait(story)
        self._head("How did the queue stand in the middle of that?")
        middle = datetime.fromisoformat(wait["since"]) + timedelta(seconds=STALL_S / 2)
        (then,) = self._ask("at", middle.isoformat(timespec="milliseconds"), "describe", QUEUE)
        self._head("Who processed what?")
        who = self._ask("sql", WHO)
        self._head(f"The afternoon that {NEW} lost, once more")
        (lost,) = (row for row in who if row["consumers"] == [NEW])
        again = ("replay", QUEUE, "--since", str(lost["first"]))
        (dry,) = self._ask(*again, "--dry-run")
        self._ask(*again, "--yes")
        with self._consumer(connection, OLD) as consumer:
            self._consume(consumer, dry["count"], stalls=False, writes=True)
        self._told |= {"late": late, "why": wait, "then": then, "who": who}
        self._told["replayed"] = dry["count"]
        afternoon = sum(f["sched_dep_time"] >= NOON for f in flights)
        holders = {c["name"]: c["held"] for c in then["consumers"]}
        self._checks = {
            "it waited as long as the tower stood": wait["ms"] >= 0.9 * STALL_S * 1000,
            "since the tower's backlog was full": "backlog" in wait["why"],
            "the tower held its backlog at that moment": holders == {OLD: 20},
            "the afternoon is the new version's": lost["flights"] == afternoon,
            "and all of it is replayed": dry["count"] == afternoon,
        }

    def _accounts(self, flights: list[dict[str, Any]]) -> None:
        """Each flight is written down once, the afternoon's behind the morning's."""
        self._checks["each flight is written down once, in order"] = self._written == flights
        self._head("And who processed it now?")
        now = self._ask("sql", WHO)
        told = [(row["consumers"], row["flights"]) for row in now]
        replayed = self._told["replayed"]
        wanted = [([OLD], len(flights) - replayed), ([NEW], replayed), ([OLD], replayed)]
        self._checks["the tables know who"] = sorted(_joined(told)) == sorted(_joined(wanted))

    # ------------------------------------------------------------ asking, showing

    def _ask(self, *words: str) -> list[dict[str, Any]]:
        """Show a command and what it prints; gives its answer."""
        shown = " ".join(f'"{w}"' if " " in w else w for w in words)
        self._console.print(f"[bold]$ lakequeue {shown}[/bold]", highlight=False)
        rows = self._rows(*words) if words[-1] != "--yes" else []
        if not self._as_json or words[-1] == "--yes":
            text = self._run(*words)
            self._console.print(text, highlight=False, markup=False)
        return rows

    def _rows(self, *words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._run(*words, "--json").splitlines() if line]

    def _run(self, *words: str) -> str:
        """What a command of `lakequeue` prints."""
        from ..cli import main

        heard = io.StringIO()
        with contextlib.redirect_stdout(heard), contextlib.redirect_stderr(io.StringIO()):
            main.main([*words, "--home", str(self._home)], standalone_mode=False)
        return heard.getvalue().rstrip()

    def _say(self, line: str) -> None:
        self._console.print(f"{time.monotonic() - self._since:5.1f} s  {line}", highlight=False)

    def _head(self, question: str) -> None:
        self._console.print(f"\n[bold cyan]{question}[/bold cyan]")

    def _close(self) -> bool:
        good = all(self._checks.values())
        if self._as_json:
            say_json({"good": good, "checks": self._checks, **self._told})
            return good
        self._console.print()
        for what, found in self._checks.items():
            self._console.print(f"[{'green]yes' if found else 'red]no '}[/]  {what}")
        return good


def _longest_wait(story: dict[str, Any]) -> dict[str, Any]:
    """Of a trace: the longest part of its waiting, and why."""
    parts = [
        part
        for queue in story["queues"]
        for event in queue["life"]
        for part in (event["then"] or {}).get("why", ())
    ]
    return max(parts, key=lambda part: part["ms"] or 0)


def _joined(rows: list[tuple[Any, int]]) -> list[tuple[str, int]]:
    """Counts of the same consumers together."""
    out: dict[str, int] = {}
    for consumers, count in rows:
        name = ",".join(consumers)
        out[name] = out.get(name, 0) + count
    return list(out.items())
