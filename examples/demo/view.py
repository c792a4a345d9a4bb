"""The demo's output: live tables while it runs, the accounts at its end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar

from ...cli.printing import table_of
from .accounts import Account, Barriers
from .demo_worker import WorkerProcess

PLAIN_EVERY_S = 5.0


class View:
    """Live tables on a terminal; otherwise a line every few seconds."""

    def __init__(self, console: Console, expected: Mapping[str, int]) -> None:
        self._console = console
        self._expected = expected
        self._live: Any = None
        self._before: dict[str, tuple[float, int]] = {}
        self._plain_at = 0.0
        self._since = time.monotonic()

    def __enter__(self) -> View:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, line: str) -> None:
        """Print a line that stays."""
        self._console.print(f"{time.monotonic() - self._since:5.1f} s  {line}")

    def update(
        self, published: int, total: int, looks: Mapping[str, Any], workers: list[WorkerProcess]
    ) -> None:
        """Show the progress."""
        rates = {queue: self._rate(queue, look) for queue, look in looks.items()}
        for worker in workers:
            worker.measure()
        if self._live is not None:
            self._live.update(self._tables(published, total, looks, rates, workers), refresh=True)
        elif time.monotonic() - self._plain_at >= PLAIN_EVERY_S:
            self._plain_at = time.monotonic()
            queues = ", ".join(
                f"{q} {look['depth']:,} deep, {look['leased']:,} in flight, {rates[q]:,.0f}/s"
                for q, look in looks.items()
            )
            self.say(f"{published:,} of {total:,} published; {queues}")

    def _rate(self, queue: str, look: Mapping[str, Any]) -> float:
        now, acknowledged = time.monotonic(), look["counters"]["acknowledged"]
        at, before = self._before.get(queue, (now, acknowledged))
        self._before[queue] = now, acknowledged
        return (acknowledged - before) / (now - at) if now > at else 0.0

    def _tables(
        self,
        published: int,
        total: int,
        looks: Mapping[str, Any],
        rates: Mapping[str, float],
        workers: list[WorkerProcess],
    ) -> RenderableType:
        queues = table_of("queue", ">of", ">entered", ">depth", ">in flight", ">delayed",
                          ">acknowledged", ">redelivered", ">a second")  # fmt: skip
        for queue, look in looks.items():
            counters = look["counters"]
            row = (self._expected[queue], counters["spooled"], look["depth"], look["leased"],
                   look["delayed"], counters["acknowledged"], counters["redelivered"],
                   round(rates[queue]))  # fmt: skip
            queues.add_row(queue, *map("{:,}".format, row))
        people = table_of("worker", "consumes", ">received", ">acknowledged", ">canceled",
                          ">redelivered", ">barriers", ">a second", "")  # fmt: skip
        for worker in workers:
            counts = (worker.count(n) for n in ("received", "acknowledged", "canceled",
                                                "redelivered", "barriers"))  # fmt: skip
            fate = "" if worker.fate == "works" else f"[red]{worker.fate}[/red]"
            jobs = ", ".join(job.replace(":", " ") for job in worker.jobs)
            rate = f"{round(worker.rate):,}"
            people.add_row(worker.name, jobs, *map("{:,}".format, counts), rate, fate)
        seconds = time.monotonic() - self._since
        head = f"{seconds:5.1f} s  {published:,} of {total:,} flights published"
        return Group(head, ProgressBar(total, published, width=60), "", queues, "", people)


def show_accounts(console: Console, accounts: list[Account], barriers: Barriers) -> None:
    """Print the accounts, and whether they balance."""
    rows = table_of("queue", ">sent", ">delivered", ">redelivered", ">acknowledged", ">expired",
                    ">still there", ">adds up with Delta")  # fmt: skip
    for account in accounts:
        numbers = (account.sent, account.delivered, account.redelivered, account.acknowledged,
                   account.expired, account.left)  # fmt: skip
        verdict = "[red]no[/red]" if account.problems else "[green]yes[/green]"
        rows.add_row(account.queue, *map("{:,}".format, numbers), verdict)
    console.print(rows)
    for account in accounts:
        for problem in account.problems:
            console.print(f"[red]{account.queue}: {problem}[/red]")
    kept = "each after all messages before it had left" if not barriers.wrong else (
        f"[red]{barriers.wrong:,} of them out of order[/red]"
    )  # fmt: skip
    console.print(f"{barriers.delivered:,} barriers (ends of days) delivered, {kept}.")
    console.print(
        "A barrier is delivered to each consumer: 'delivered' counts it once for each, "
        "'acknowledged' once."
    )
