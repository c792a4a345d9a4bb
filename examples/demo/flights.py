"""The demo `flights`: real flights through real queues, with failures, then the accounts.

The engine and each worker are processes. This one publishes, shows the progress, kills a worker in
the middle, and compares the Delta tables with the messages sent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lakequeue

from ...bench.harness import wait_for
from ...bench.os_processes import EngineProcess
from ...cli.printing import console, say_json
from ...cli.publish import Tally
from ...protocol.errors import LakequeueError
from .accounts import balance, check_barriers, complete, count_messages, read_journal
from .demo_worker import WorkerProcess
from .flight_data import Flights, flights_path, load_flights
from .view import View, show_accounts

CONFIGURATION = Path(__file__).resolve().parents[2] / "conf" / "demo.yaml"
JOBS = ("flights:individual", "flights:auto", "delayed:individual", "united:auto")
FLIGHTS = 20_000
WINDOW = 4000
KEY = "flights"  # one key, so one Kafka partition, which keeps the order of publishing
PUB_ACK = "10s"  # a batch on a busy machine takes longer than the default of 2 s
LOOK_EVERY_S = 1.5
KILL_AT = 0.3  # of the flights acknowledged
HELD_MIN = 50  # leases that the killed worker must have
STALL_SECONDS_MAX = 90.0
DELTA_SECONDS_MAX = 60.0


def share_jobs(workers: int) -> list[list[str]]:
    """The jobs of each worker. Every job has a worker; additional workers consume flights."""
    shares: list[list[str]] = [[] for _ in range(workers)]
    for at in range(max(workers, len(JOBS))):
        shares[at % workers].append(JOBS[at] if at < len(JOBS) else JOBS[at % 2])
    return shares


class Publishing(threading.Thread):
    """Publishes the flights, a marker after each day, in its own thread."""

    def __init__(self, connection: Any, flights: Flights) -> None:
        super().__init__(name="publishing", daemon=True)
        self._connection = connection
        self._flights = flights
        self.tally = Tally()
        self.sent = 0  # flights
        self.seconds = 0.0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Publish everything and wait until it is stored."""
        started = time.monotonic()
        try:
            with self._connection.producer(window=WINDOW, pub_ack_time=PUB_ACK) as producer:
                for day in self._flights.days:
                    for payload in day.payloads:
                        self.tally.sent(producer.send_async("flights", payload, key=KEY))
                        self.sent += 1
                    self.tally.sent(producer.send_async("flights", day.marker, key=KEY))
                producer.flush(timeout=STALL_SECONDS_MAX)
            self.tally.finish()
        except BaseException as error:  # raised by `check`
            self.error = error
        self.seconds = time.monotonic() - started

    def check(self) -> None:
        """Raise the error that stopped it."""
        if self.error is not None:
            raise self.error


class FlightsDemo:
    def __init__(
        self, home: Path, count: int | None, workers: int, seed: int, as_json: bool
    ) -> None:
        self._home, self._count, self._seed, self._as_json = home, count, seed, as_json
        self._shares = share_jobs(workers)
        self._console = console(stderr=as_json)
        self._killed: WorkerProcess | None = None
        self._workers: list[WorkerProcess] = []
        self._url = ""
        self._changed = (0.0, -1)

    def run(self) -> bool:
        """Run the whole demo; returns True if the accounts add up."""
        started = time.monotonic()
        flights_path()  # nothing starts without the data
        self._console.print("Starting Kafka and the engine …")
        with ExitStack() as stack:
            engine = EngineProcess("up", self._home, CONFIGURATION, self._progress, "--port", "0")
            stack.callback(engine.stop)
            flights = load_flights(self._count)  # while the engine starts
            addresses = engine.wait_ready()
            self._url = (self._home / "address").read_text().strip()
            ready_s = time.monotonic() - started
            self._console.print(f"Ready after {ready_s:.1f} s. Data: {flights.description}.")
            stack.callback(self._end_workers)
            self._start_workers(engine)
            with (
                lakequeue.connect(self._url, client_name="demo") as connection,
                View(self._console, flights.expected) as view,
            ):
                looks, publishing = self._watch(engine, connection, flights, view)
                self._end_workers()
                tables = Path(addresses["tables"])
                view.say("every queue is empty; waiting for the tables in Delta")
                self._wait_for_delta(engine, tables, looks)
            status = engine.stop()
        return self._close(tables, flights, looks, publishing, status, time.monotonic() - started)

    def _progress(self, line: str) -> None:
        self._console.print(f"  {line}", style="dim")

    # ------------------------------------------------------------ workers

    def _start_workers(self, engine: EngineProcess) -> None:
        for at, jobs in enumerate(self._shares, 1):
            self._start_worker(f"worker-{at}", jobs)
        wait_for(
            lambda: all(w.ready for w in self._workers), 60, "the workers' start",
            self._alive(engine),
        )  # fmt: skip

    def _start_worker(self, name: str, jobs: list[str]) -> None:
        seed = self._seed * 1000 + len(self._workers) * 10
        log = self._home / f"{name}.log"
        self._workers.append(WorkerProcess(name, jobs, self._url, seed, log))

    def _end_workers(self) -> None:
        for worker in self._workers:
            worker.stop()
        for worker in self._workers:
            worker.wait()

    def _alive(self, engine: EngineProcess) -> Callable[[], None]:
        def check() -> None:
            engine.check()
            for worker in self._workers:
                worker.check()

        return check

    # ------------------------------------------------------------ the middle

    def _watch(
        self, engine: EngineProcess, connection: Any, flights: Flights, view: View
    ) -> tuple[dict[str, Any], Publishing]:
        """Publish, and wait until everything is acknowledged; returns the last state of the
        queues."""
        admin = connection.admin()
        publishing = Publishing(connection, flights)
        publishing.start()
        alive = self._alive(engine)
        total = sum(flights.expected.values())
        while True:
            alive()
            publishing.check()
            found = {look["name"]: look for look in admin.queues()}
            looks = {queue: found[queue] for queue in flights.expected}
            view.update(publishing.sent, flights.total, looks, self._workers)
            self._maybe_kill(admin, looks["flights"], flights.expected["flights"], view)
            if not publishing.is_alive() and not any(look["depth"] for look in looks.values()):
                publishing.check()
                return looks, publishing
            done = sum(look["counters"]["acknowledged"] for look in looks.values())
            self._check_stall(done, total)
            time.sleep(LOOK_EVERY_S)

    def _maybe_kill(self, admin: Any, look: dict[str, Any], total: int, view: View) -> None:
        """At `KILL_AT`, kill the first worker while it has leases; another takes over.

        The worker is frozen while its leases are counted, so that it does not acknowledge them
        meanwhile. If it has too few, it continues, and the next call tries again.
        """
        if self._killed or look["counters"]["acknowledged"] < total * KILL_AT:
            return
        victim = self._workers[0]
        victim.freeze()
        look = admin.describe("flights")
        held = sum(c["held"] for c in look["consumers"] if c["name"] == victim.name)
        if held < HELD_MIN and look["depth"] > HELD_MIN:
            victim.thaw()
            return
        victim.kill()
        self._killed = victim
        view.say(f"killed {victim.name} (SIGKILL) with {held:,} leases held; worker-new takes over")
        lease_s = look["definition"]["lease_period_ms"] / 1000
        view.say(
            f"waiting for those leases to end ({lease_s:.0f} s at most): other workers get their "
            "messages then; a barrier behind them waits as long"
        )
        self._start_worker("worker-new", victim.jobs)

    def _check_stall(self, done: int, total: int) -> None:
        at, before = self._changed
        if done != before:
            self._changed = time.monotonic(), done
        elif time.monotonic() - at > STALL_SECONDS_MAX:
            raise LakequeueError(
                f"Nothing was acknowledged for {STALL_SECONDS_MAX:.0f} s; {done:,} of {total:,} "
                "are."
            )

    # ------------------------------------------------------------ the end

    def _wait_for_delta(self, engine: EngineProcess, tables: Path, looks: dict[str, Any]) -> None:
        deadline = time.monotonic() + DELTA_SECONDS_MAX
        while not complete(tables, looks) and time.monotonic() < deadline:
            engine.check()
            time.sleep(0.5)  # the accounts would show missing rows as an error

    def _close(
        self,
        tables: Path,
        flights: Flights,
        looks: dict[str, Any],
        publishing: Publishing,
        status: int,
        seconds: float,
    ) -> bool:
        """Print the accounts; returns True if everything is right."""
        journal = read_journal(tables)
        accounts = balance(journal, flights.expected, looks)
        barriers = check_barriers(journal, "flights")
        problems = self._problems(flights, publishing, status, count_messages(tables))
        if barriers.delivered == 0 or barriers.wrong:
            problems.append(f"{barriers.wrong:,} of {barriers.delivered:,} barriers out of order")
        good = not problems and not any(account.problems for account in accounts)
        if self._as_json:
            say_json(
                {
                    "good": good,
                    "data": flights.description,
                    "seconds": round(seconds, 1),
                    "publish_s": round(publishing.seconds, 1),
                    "queues": [asdict(account) for account in accounts],
                    "barriers": {"delivered": barriers.delivered, "wrong": barriers.wrong},
                    "workers": [
                        {"worker": w.name, "fate": w.fate, **w.counts()} for w in self._workers
                    ],
                    "problems": problems,
                }
            )
            return good
        self._console.print()
        show_accounts(self._console, accounts, barriers)
        canceled = sum(w.count("canceled") for w in self._workers)
        died = self._killed.name if self._killed else "no worker"
        self._console.print(
            f"{publishing.tally.stored:,} messages published in {publishing.seconds:.1f} s; "
            f"{canceled:,} canceled by workers; {died} killed. {seconds:.0f} s in all."
        )
        for problem in problems:
            self._console.print(f"[red]{problem}[/red]")
        if good:
            self._console.print("[green]Every message is accounted for.[/green]")
        else:
            self._console.print("[red]The accounts do not add up.[/red]")
        return good

    def _problems(
        self, flights: Flights, publishing: Publishing, status: int, stored: int
    ) -> list[str]:
        """Problems besides those in the queues' accounts."""
        problems: list[str] = []
        tally, sent = publishing.tally, flights.total + len(flights.days)
        if tally.stored != sent:
            refused = sum(tally.refused.values())
            problems.append(
                f"{tally.stored:,} of {sent:,} messages stored, {refused:,} refused, "
                f"{tally.unknown:,} unknown"
            )
        if stored < sent:
            problems.append(f"{stored:,} rows in the table messages, {sent:,} messages sent")
        wrong = sum(worker.count("wrong") for worker in self._workers)
        if wrong:
            problems.append(f"{wrong:,} messages in queues whose filter refuses them")
        if status:
            problems.append(f"the engine ended with status {status}")
        return problems
