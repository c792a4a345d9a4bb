"""The demo's workers: processes that consume queues, fail at times, and count their messages.

Each job (a queue and an ack mode) has a thread and a connection of its own. Its counts are in
memory that the worker shares with the demo, so those of a killed worker are known too. SIGTERM
stops a worker cleanly; the demo also kills one with SIGKILL.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import lakequeue

from ...cli.signals import stop_on_signals
from ...protocol.errors import LakequeueError, LeaseLost

STOP_S_MAX = 60.0
LOOK_S = 0.5  # how often a worker checks whether the demo still runs
JOIN_S = 20.0
CANCEL_SHARE = 0.01
BACKLOG = 500
# A job's counters. lost: leases that ended before the message was settled; wrong: messages that
# its queue should have refused.
COUNTED = (
    "ready", "received", "redelivered", "acknowledged", "canceled", "barriers", "lost", "wrong",
)  # fmt: skip


class Counts(ctypes.Structure):
    """The counts of a job; each is written by one thread."""

    _fields_ = tuple((name, ctypes.c_int64) for name in COUNTED)


class Canceled(Exception):
    """Raised by the callback for some messages, which the client then cancels."""


def fits(queue: str, payload: bytes) -> bool:
    """Whether this message belongs in this queue, by its filter in conf/demo.yaml."""
    flight = json.loads(payload)
    if queue == "delayed":
        return (flight.get("dep_delay") or 0) > 60
    if queue == "united":
        return flight.get("carrier") == "UA"
    return True


class Job:
    """One queue, consumed in one ack mode."""

    def __init__(self, job: str, counts: Any, seed: int) -> None:
        self.queue, _, self.ack_mode = job.partition(":")
        self.counts = counts
        self.failure = ""
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def run(self, url: str, name: str, stop: threading.Event) -> None:
        """Consume until stopped. A failure stops the other jobs too."""
        try:
            with (
                lakequeue.connect(url, client_name=name) as connection,
                connection.consumer(
                    self.queue, ack_mode=self.ack_mode, max_backlog=BACKLOG
                ) as consumer,
            ):
                self.counts.ready = 1
                if self.ack_mode == "auto":
                    consumer.on_message(self._callback)
                    stop.wait()
                    return
                while not stop.is_set():
                    message = consumer.receive(timeout=0.2)
                    if message is not None:
                        self._handle(message)
        except LakequeueError as error:
            self.failure = f"{self.queue}: {error}"
            stop.set()

    def _look(self, message: Any) -> bool:
        """Count a message; returns True if this worker should fail on it."""
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


def work(name: str, names: list[str], counts: Any, url: str, seed: int, log: Path) -> None:
    """The worker's process: run these jobs until SIGTERM, or until the demo has died."""
    os.setsid()  # Ctrl-C must only reach the demo, which stops its workers cleanly
    with log.open("w") as file:
        os.dup2(file.fileno(), 2)
    demo = multiprocessing.parent_process()
    jobs = [Job(*given, seed + at) for at, given in enumerate(zip(names, counts, strict=True))]
    with stop_on_signals() as stop:
        threads = [
            threading.Thread(target=job.run, args=(url, name, stop), daemon=True) for job in jobs
        ]
        for thread in threads:
            thread.start()
        while not stop.wait(LOOK_S) and demo is not None and demo.is_alive():
            pass
        stop.set()
        for thread in threads:
            thread.join(JOIN_S)
    if failures := [job.failure for job in jobs if job.failure]:
        print("; ".join(failures), file=sys.stderr, flush=True)
        sys.exit(1)


class WorkerProcess:
    """A worker, for the demo. jobs: each ``queue:ack_mode``. fate: its state. rate: messages a
    second."""

    def __init__(self, name: str, jobs: list[str], url: str, seed: int, log: Path) -> None:
        self.name, self.jobs, self._log = name, jobs, log
        self.fate, self.rate = "works", 0.0
        self._measured = (0.0, 0)
        spawn = multiprocessing.get_context("spawn")
        self._counts: Any = spawn.RawArray(Counts, len(jobs))
        given = name, jobs, self._counts, url, seed, log
        self._process = spawn.Process(target=work, args=given, daemon=True)
        self._process.start()

    @property
    def ready(self) -> bool:
        """Whether all its consumers are bound."""
        return self.count("ready") == len(self.jobs)

    def count(self, name: str) -> int:
        """One of `COUNTED`, over all jobs."""
        return sum(getattr(one, name) for one in self._counts)

    def counts(self) -> dict[str, int]:
        """All counters."""
        return {name: self.count(name) for name in COUNTED if name != "ready"}

    def measure(self) -> None:
        """Messages per second since the last call."""
        now, received = time.monotonic(), self.count("received")
        at, before = self._measured
        self.rate = (received - before) / (now - at) if at and now > at else 0.0
        self._measured = now, received

    def check(self) -> None:
        """Raise LakequeueError if it ended unexpectedly."""
        if self.fate == "works" and self._process.exitcode is not None:
            said = self._log.read_text().splitlines()
            why = said[-1] if said else "it gave no reason"
            raise LakequeueError(f"{self.name} ended with status {self._process.exitcode}: {why}")

    def freeze(self) -> None:
        """Make it hang. It keeps its leases, and the engine still sends it messages."""
        self._signal("hangs", signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it continue."""
        self._signal("works", signal.SIGCONT)

    def kill(self) -> None:
        """Kill it, like a crash."""
        self._signal("killed", signal.SIGKILL)
        self._process.join()

    def stop(self) -> None:
        if self.fate == "hangs":
            self.kill()
        if self.fate == "works":
            self._signal("done", signal.SIGTERM)

    def wait(self) -> None:
        self._process.join(STOP_S_MAX)
        self._process.kill()
        self._process.join()

    def _signal(self, fate: str, which: signal.Signals) -> None:
        self.fate = fate
        assert self._process.pid is not None, "it was started"
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, which)
