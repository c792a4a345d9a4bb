"""A worker process of the demo: consumes queues, fails at times, and reports what it did.

Started as ``python -m lakequeue.examples.demo.demo_worker``. Each job (queue and ack mode) has a
thread and a connection of its own. Twice a second it prints its counts as a line of JSON. SIGTERM
ends it properly; the demo also kills one with SIGKILL.
"""

from __future__ import annotations

import json
import random
import threading
from dataclasses import asdict, dataclass
from typing import Any

import click
import lakequeue

from ...cli.signals import stop_on_signals
from ...protocol.errors import LakequeueError, LeaseLost

REPORT_S = 0.5
CANCEL_SHARE = 0.01
BACKLOG = 500


@dataclass(slots=True)
class Counts:
    """The counts of a worker. wrong: messages that its queue should have refused."""

    ready: bool = False
    received: int = 0
    redelivered: int = 0
    acknowledged: int = 0
    canceled: int = 0
    barriers: int = 0
    lost: int = 0
    wrong: int = 0


class Canceled(Exception):
    """Raised by the callback for some messages, which the client then cancels."""


def fits(queue: str, payload: bytes) -> bool:
    """Whether this message belongs into this queue, by its filter in conf/demo.yaml."""
    flight = json.loads(payload)
    if queue == "delayed":
        return (flight.get("dep_delay") or 0) > 60
    if queue == "united":
        return flight.get("carrier") == "UA"
    return True


class Job:
    """One queue, consumed in one ack mode."""

    def __init__(self, queue: str, ack_mode: str, counts: Counts, seed: int) -> None:
        self.queue, self.ack_mode, self.counts = queue, ack_mode, counts
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def run(self, url: str, name: str, stop: threading.Event) -> None:
        """Consume until told to stop."""
        with (
            lakequeue.connect(url, client_name=name) as connection,
            connection.consumer(
                self.queue, ack_mode=self.ack_mode, max_backlog=BACKLOG
            ) as consumer,
        ):
            self.counts.ready = True
            if self.ack_mode == "auto":
                consumer.on_message(self._callback)
                stop.wait()
                return
            while not stop.is_set():
                message = consumer.receive(timeout=0.2)
                if message is not None:
                    self._handle(message)

    def _look(self, message: Any) -> bool:
        """Count a message; returns True if this worker is to fail with it."""
        counts = self.counts
        counts.received += 1
        counts.redelivered += bool(message.redelivered)
        if message.is_barrier:
            counts.barriers += 1
            return False
        counts.wrong += not fits(self.queue, message.payload)
        return self._random.random() < CANCEL_SHARE

    def _handle(self, message: Any) -> None:
        """Mode individual: acknowledge or cancel."""
        fails = self._look(message)
        if message.is_barrier:
            return
        try:
            if fails:
                message.cancel()
                self.counts.canceled += 1
            else:
                message.ack()
                self.counts.acknowledged += 1
        except LeaseLost:
            self.counts.lost += 1

    def _callback(self, message: Any) -> None:
        """Mode auto: an exception cancels the message."""
        with self._lock:
            fails = self._look(message)
            if fails:
                self.counts.canceled += 1
            elif not message.is_barrier:
                self.counts.acknowledged += 1
        if fails:
            raise Canceled(message.id)


@click.command()
@click.option("--url", required=True)
@click.option("--name", required=True)
@click.option("--job", "jobs", multiple=True, required=True, metavar="QUEUE:ACK_MODE")
@click.option("--seed", type=int, default=0)
def main(url: str, name: str, jobs: tuple[str, ...], seed: int) -> None:
    """Consume each QUEUE in its ACK_MODE until SIGTERM."""
    counts: list[Counts] = []
    failures: list[str] = []
    with stop_on_signals() as stop:
        threads: list[threading.Thread] = []
        for at, job in enumerate(jobs):
            queue, _, ack_mode = job.partition(":")
            counts.append(Counts())
            work = Job(queue, ack_mode, counts[-1], seed + at)

            def run(work: Job = work) -> None:
                try:
                    work.run(url, name, stop)
                except LakequeueError as error:
                    failures.append(f"{work.queue}: {error}")
                    stop.set()

            threads.append(threading.Thread(target=run, name=job, daemon=True))
            threads[-1].start()
        while not stop.wait(REPORT_S):
            report(name, counts)
        for thread in threads:
            thread.join(timeout=20)
    report(name, counts, failures)
    raise SystemExit(1 if failures else 0)


def report(name: str, counts: list[Counts], failures: list[str] | None = None) -> None:
    """Print the sums as a line of JSON."""
    total: dict[str, Any] = {}
    for one in counts:
        for key, value in asdict(one).items():
            total[key] = min(total.get(key, True), value) if key == "ready" else (
                total.get(key, 0) + value
            )  # fmt: skip
    print(json.dumps({"worker": name, **total, "failures": failures or []}), flush=True)


if __name__ == "__main__":
    main()
