"""`lakequeue demo audit`: what went wrong in a day, found out afterwards from the tables (R1, R4).

A day's flights go through one queue. In the morning the tower's program stands still for some
seconds with its backlog full, and flights wait behind it. In the afternoon a new version takes over
and acknowledges flights that it never writes down. Nobody notices. Afterwards it is found out, each
time with the command that a user types: which message is that flight (`sql`), why was it late
(`trace`), how did the queue stand at that moment (`at`), who processed what (`sql`); and the lost
afternoon comes once more (`replay`). Each answer is held beside what the story itself did.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ...cli.common import console, say_json
from ...protocol.errors import LakequeueError
from .child_processes import EngineProcess, until
from .flight_data import load_flights
from .typed_commands import TypedCommands

CONFIGURATION = Path(__file__).resolve().parents[2] / "conf" / "demo-audit.yaml"
QUEUE = "departures"
FLIGHTS = 842  # of the first day
NOON = 1200  # as the data write times
BACKLOG = 20
STALL_AFTER = 100  # flights
STALL_S = 4.0
LATE = STALL_AFTER + BACKLOG  # this flight is the first that finds the backlog full
OLD, NEW = "tower-1", "tower-2"
# The tables lag this much behind, instead of a minute: nobody waits for a demo.
INTERVALS = ("--set", "lakequeue.tables_interval_s=2", "--set", "lakequeue.history_interval_s=2")
PHASE_S_MAX = 120.0
# try(): a home may hold payloads that are no JSON, in other queues.
WHICH = """
select message_id, published_at, waiting_ms, consumers
from lifecycle join journal using (message_id, queue)
  join messages using (topic, "partition", "offset", item)
where event = 'spooled' and try(decode(payload) ->> '$.carrier') = '{carrier}'
  and try(decode(payload) ->> '$.flight') = '{flight}'"""
WHO = f"""
select consumers, count(*) as flights, min(published_at) as since, max(acknowledged_at) as until
from lifecycle where queue = '{QUEUE}' and acknowledged_at is not null
group by all order by since"""
ENDED = f"select count(*) as n from lifecycle where queue = '{QUEUE}' and ended is not null"
STEPS = (
    "select (select max(now) from steps) >= (select max(time) from journal where "
    f"queue = '{QUEUE}') as n"
)


@dataclass
class Told:
    """The answers of the tables, and what the story did. written: what the towers wrote down, the
    payloads; again: of each replayed message, which message it is once more."""

    flights: list[bytes]
    written: list[bytes] = field(default_factory=list)
    again: list[str] = field(default_factory=list)
    which: list[dict[str, Any]] = field(default_factory=list)
    why: list[dict[str, Any]] = field(default_factory=list)
    then: dict[str, Any] = field(default_factory=dict)
    who: list[dict[str, Any]] = field(default_factory=list)
    dry: dict[str, Any] = field(default_factory=dict)
    now: list[dict[str, Any]] = field(default_factory=list)

    @property
    def afternoon(self) -> list[bytes]:
        """The flights that the new version lost."""
        return [p for p in self.flights if json.loads(p)["sched_dep_time"] >= NOON]


Finding = tuple[str, bool]


def found_late(told: Told) -> Finding:
    """The flight that came late is one message, and the tables say how late."""
    rows = told.which
    waited = max((row["waiting_ms"] for row in rows), default=0)
    text = (
        f"the flight is message {', '.join(r['message_id'] for r in rows) or 'unknown'}: it waited "
        f"{waited / 1000:.1f} s, and its payload is there although the queue has let go of it"
    )
    good = [row["consumers"] for row in rows] == [[OLD]] and waited >= 900 * STALL_S
    return text, good


def found_why(told: Told) -> Finding:
    """It waited behind a full backlog, as long as the tower stood."""
    full = sum(part["ms"] or 0 for part in told.why if "backlog is full" in part["why"])
    text = f"for {full / 1000:.1f} s of that, every consumer's backlog was full"
    return text, full >= 900 * STALL_S


def found_then(told: Told) -> Finding:
    """At that moment the tower held its backlog, and others waited."""
    holders = {c["name"]: (c["held"], c["blocked"]) for c in told.then.get("consumers", ())}
    held = ", ".join(f"{name} held {count}" for name, (count, _) in holders.items()) or "no tower"
    ready = told.then.get("ready", 0)
    text = (
        f"{held} and acknowledged none, and {ready} flights were ready behind it: the tower stood, "
        "not the queue"
    )
    return text, holders == {OLD: (BACKLOG, True)} and ready > 0


def found_who(told: Told) -> Finding:
    """The morning is the old version's, the afternoon the new one's."""
    lost = len(told.afternoon)
    wanted = [([OLD], len(told.flights) - lost), ([NEW], lost)]
    shown = ", ".join(f"{'+'.join(r['consumers'])} {r['flights']}" for r in told.who)
    text = f"acknowledged by {shown}: what {NEW} had, nobody has written down"
    return text, [(row["consumers"], row["flights"]) for row in told.who] == wanted


def found_dry(told: Told) -> Finding:
    """All of the lost afternoon is there, and nothing else is meant."""
    count = told.dry.get("count")
    first = [e["payload"].encode() for e in told.dry.get("examples", ())]
    text = f"{count} flights would come once more, the lost ones alone; nothing is published yet"
    return text, count == len(told.afternoon) and first == told.afternoon[: len(first)] != []


def found_written(told: Told) -> Finding:
    """Every flight of the day is written down once, in order."""
    text = (
        f"{len(told.written)} of {len(told.flights)} flights are written down, each once, in "
        f"order; {len(told.again)} said that they were replayed, and of which message"
    )
    lost = len(told.afternoon)
    return text, told.written == told.flights and len(set(told.again)) == lost == len(told.again)


def found_now(told: Told) -> Finding:
    """The tables know both lives of the afternoon."""
    lost = len(told.afternoon)
    text = f"what {NEW} lost stays on record, and {OLD} has it now: nothing is overwritten"
    shown = [(row["consumers"], row["flights"]) for row in told.now]
    return text, shown == [([OLD], len(told.flights)), ([NEW], lost)]


FINDINGS = (
    found_late, found_why, found_then, found_who, found_dry, found_written, found_now,
)  # fmt: skip


class AuditDemo:
    """One run of the demo."""

    def __init__(self, home: Path, as_json: bool) -> None:
        self._home, self._as_json = home, as_json
        self._console = console(stderr=as_json)
        self._commands = TypedCommands(home, None if as_json else self._console)
        self._since = time.monotonic()
        self._told = Told(load_flights(FLIGHTS).days[0].payloads)
        self._check: Callable[[], None] = lambda: None

    def run(self) -> bool:
        """Everything; whether the tables knew what the story knows."""
        import lakequeue

        self._say("Starting Kafka and the engine …")
        engine = EngineProcess(self._home, CONFIGURATION, lambda line: None, *INTERVALS)
        try:
            engine.wait_ready()
            url = (self._home / "address").read_text().strip()
            with lakequeue.connect(url, client_name="demo") as connection:
                return self.tell(connection, engine.check)
        finally:
            engine.stop()

    def tell(self, connection: Any, check: Callable[[], None]) -> bool:
        """The story, on an engine that runs with this home; check: raises when it has ended."""
        self._check = check
        self._day(connection)
        self._wait_for_tables(len(self._told.flights))
        self._morning()
        self._afternoon(connection)
        return self._close()

    # ------------------------------------------------------------ what happened

    def _day(self, connection: Any) -> None:
        lost = self._told.afternoon
        morning = self._told.flights[: -len(lost)]
        self._say(f"morning: {len(morning)} flights; {OLD} writes them down, and once stands still")
        with self._consumer(connection, OLD) as tower:
            self._publish(connection, morning)
            self._take(tower, len(morning), stalls=True)
        self._say(f"afternoon: {len(lost)} flights; {NEW} acknowledges them and loses them")
        with self._consumer(connection, NEW) as tower:
            self._publish(connection, lost)
            self._take(tower, len(lost), writes=False)
        written = len(self._told.written)
        self._say(f"evening: the queue is empty, {written} flights are written down. Why?")

    def _publish(self, connection: Any, flights: list[bytes]) -> None:
        with connection.producer(window=1_000) as producer:
            for flight in flights:
                producer.send_async(QUEUE, flight)
            producer.flush(PHASE_S_MAX)

    def _consumer(self, connection: Any, name: str) -> Any:
        return connection.consumer(QUEUE, name=name, ack_mode="individual", max_backlog=BACKLOG)

    def _take(self, tower: Any, count: int, *, stalls: bool = False, writes: bool = True) -> None:
        """Process so many. stalls: stand still for some seconds in the middle."""
        for taken in range(count):
            message = tower.receive(PHASE_S_MAX)
            if message is None:
                raise LakequeueError(f"{taken} of {count} flights came within {PHASE_S_MAX:.0f} s")
            if stalls and taken == STALL_AFTER:
                time.sleep(STALL_S)
            if writes:
                self._told.written.append(message.payload)
            if of := message.headers.get("lq-replay-of"):
                self._told.again.append(of)
            message.ack()

    def _wait_for_tables(self, count: int) -> None:
        """Until they know the end of so many messages, and the steps in which it came."""
        self._say("waiting for the tables in Delta")
        until(self._asked(ENDED, count), PHASE_S_MAX, self._check, "the tables", 1.0)
        until(self._asked(STEPS, 1), PHASE_S_MAX, self._check, "the table of steps", 1.0)

    def _asked(self, query: str, wanted: int) -> Callable[[], bool]:
        def reached() -> bool:
            try:
                (row,) = self._commands.rows("sql", query)
            except LakequeueError:  # a table does not exist yet
                return False
            return bool((row["n"] or 0) >= wanted)

        return reached

    # ------------------------------------------------------------ what is found out

    def _morning(self) -> None:
        told = self._told
        flight = json.loads(told.flights[LATE])
        name = f"{flight['carrier']} {flight['flight']} to {flight['dest']}"
        self._head(f"Flight {name} came late to the tower. Which message is it?")
        told.which = self._commands.ask("sql", WHICH.format(**flight))
        self._prove(found_late)
        self._head("Why was it late?")
        number = told.which[0]["message_id"] if told.which else "1"
        (story,) = self._commands.ask("trace", number)
        waits = [event["then"] or {} for queue in story["queues"] for event in queue["life"]]
        told.why = [part for then in waits for part in then.get("why", ())]
        self._prove(found_why)
        self._head("How did the queue stand then?")
        (moment,) = self._commands.ask("at", self._standstill(), "describe", QUEUE)
        told.then = moment
        self._prove(found_then)

    def _standstill(self) -> str:
        """A time in the middle of the standstill: before the late flight's waiting had an end."""
        longest = max(self._told.why, key=lambda part: part["ms"] or 0, default=None)
        if longest is None or longest["until"] is None:
            raise LakequeueError("The tables do not say that the late flight waited")
        end = datetime.fromisoformat(longest["until"])
        return (end - timedelta(seconds=STALL_S / 2)).isoformat(timespec="milliseconds")

    def _afternoon(self, connection: Any) -> None:
        told = self._told
        self._head("Who processed what?")
        told.who = self._commands.ask("sql", WHO)
        self._prove(found_who)
        self._head(f"What {NEW} lost, once more: first only how much it is")
        begin = max((row["since"] for row in told.who), default="epoch")
        again = ("replay", QUEUE, "--since", begin)
        (told.dry,) = self._commands.ask(*again, "--dry-run")
        self._prove(found_dry)
        self._head(f"And now in earnest, to {OLD}")
        self._commands.do(*again, "--yes")
        with self._consumer(connection, OLD) as tower:
            self._take(tower, told.dry["count"])
        self._prove(found_written)
        self._wait_for_tables(len(told.flights) + told.dry["count"])
        self._head("Who processed it all, as it stands now?")
        told.now = self._commands.ask("sql", WHO)
        self._prove(found_now)

    # ------------------------------------------------------------ showing

    def _say(self, line: str) -> None:
        self._console.print(f"{time.monotonic() - self._since:5.1f} s  {line}", highlight=False)

    def _head(self, question: str) -> None:
        self._console.print(f"\n[bold cyan]{question}[/bold cyan]")

    def _prove(self, finding: Callable[[Told], Finding]) -> None:
        text, good = finding(self._told)
        sign = "[green]✓[/green]" if good else "[red]✗ this is not what happened:[/red]"
        self._console.print(f"{sign} {text}", highlight=False, soft_wrap=True)

    def _close(self) -> bool:
        told = self._told
        checks = {what.__name__: what(told)[1] for what in FINDINGS}
        good = all(checks.values())
        if self._as_json:
            say_json({
                "good": good, "checks": checks, "late": told.which, "why": told.why,
                "then": told.then, "who": told.who, "replayed": len(told.again), "now": told.now,
            })  # fmt: skip
            return good
        seconds = time.monotonic() - self._since
        wrong = ", ".join(name for name, right in checks.items() if not right)
        self._console.print(
            f"\n[green]The tables knew all that happened.[/green] {seconds:.0f} s in all."
            if good
            else f"\n[red]The tables do not say what happened: {wrong}.[/red]"
        )
        return good
