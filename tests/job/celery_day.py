"""A day of Celery on lakequeue, and its accounts. Anyone can run it:

    PYTHONPATH=tests python -m job.celery_day --tasks 10000 --kills 4 --seed 7

`lakequeue up` serves workers with two processes each. Tasks have priorities, some a countdown, some
fail at first and retry. Meanwhile workers die by SIGKILL, whole or one process of the pool, and the
engine dies with its Kafka and restarts. The tasks note their starts and ends. In the end every task
is done, none began twice without `redelivered`, none before its time, the queue is empty, the
mailboxes of killed workers are deleted, and the tables have the history of each task.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import click
import lakequeue
import psutil
from job.processes import SLOWER, UpProcess, until
from kombu.exceptions import OperationalError
from lakequeue.lake import open_lake, trace
from lakequeue.tasks.engine_link import Address, acquire, release
from lakequeue.tasks.transient import UNUSED_S

HERE = Path(__file__).parent
QUEUE = "celery-tasks"
EARLIER_S = 0.1  # clocks: the engine's is Kafka's, in whole milliseconds
PROCESSES = 2  # of each worker
TRACED = 20
TABLES_S = 90.0 * SLOWER  # they lag by a few seconds
LATER = FAILING = 0.05  # the shares of tasks with a countdown, and of those that fail at first
CONFIG = "queues: []\n"
NO_HISTORY = ("--set", "lakequeue.history_interval_s=0")  # nothing here queries it
_WHERE = "j.topic = m.topic AND j.partition = m.partition AND j.offset = m.offset"
_MESSAGES = f"""
SELECT j.message_id, m.payload FROM journal AS j JOIN messages AS m ON {_WHERE} AND j.item = m.item
WHERE j.queue = '{QUEUE}' AND j.event = 'spooled'
"""


def kill(process: subprocess.Popen[bytes]) -> None:
    """`kill -9` of a worker and its children, as in a power loss."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait(60)


class Application:
    """The application as its sender uses it, and its workers' notes."""

    def __init__(self, url: str, folder: Path) -> None:
        self.log = folder / "ran"
        self.log.touch()
        os.environ["CELERY_TEST_BROKER"] = f"lakequeue+{url}"
        os.environ["CELERY_TEST_LOG"] = str(self.log)
        self.tasks = import_module("celery_app")
        self.tasks.app.conf.broker_url = os.environ["CELERY_TEST_BROKER"]

    def ran(self) -> list[list[str]]:
        return [line.split() for line in self.log.read_text().splitlines()]

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a worker in a session of its own."""
        command = [sys.executable, "-m", "celery", "-A", "celery_app", "worker", *options]
        environment = os.environ | {"PYTHONPATH": str(HERE)}
        with self.log.with_suffix(".stderr").open("ab") as errors:
            return subprocess.Popen(
                command, env=environment, cwd=self.log.parent, stderr=errors,
                stdout=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip


def stop(workers: list[subprocess.Popen[bytes]]) -> None:
    """Stop the workers with Celery's warm shutdown."""
    for process in workers:
        if process.poll() is None:
            process.terminate()
    for process in workers:
        try:
            assert process.wait(60 * SLOWER) is not None
        finally:
            kill(process)


def mailboxes(admin: lakequeue.Admin) -> set[str]:
    """The workers that have a queue for remote control."""
    names = [queue["name"] for queue in admin.queues()]
    return {name.partition("@")[0] for name in names if name.endswith(".celery.pidbox")}


@dataclass
class Sent:
    """task: its id; None if the sender does not know whether it is stored."""

    task: str | None
    at: float
    countdown: float
    fails: int


def killed_and_started(engine: UpProcess) -> UpProcess:
    """As in a power loss."""
    engine.kill()
    engine.start().wait_ready()
    return engine


@dataclass
class Day:
    """outage: called in the middle of the day; returns the engine that serves from then on, at the
    same address. chance: draws the tasks and the deaths. At the end the figures are in `told`."""

    folder: Path
    engine: UpProcess
    tasks: int
    kills: int
    workers: int
    seed: int
    outage: Callable[[UpProcess], UpProcess] = killed_and_started
    sent: dict[int, Sent] = field(default_factory=dict)
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    told: dict[str, Any] = field(default_factory=dict)
    _kills: int = 0

    def run(self) -> dict[str, Any]:
        """Run the day and judge it; returns its figures. Raises AssertionError for wrong
        accounts."""
        self.chance = random.Random(self.seed)
        try:
            self.application = Application(f"kafka://{self.engine.bootstrap}", self.folder)
            begun = time.monotonic()
            self._live()
            self.told["seconds"] = round(time.monotonic() - begun, 1)
            self._judge()
            self._explain()
            self.application.tasks.app.close()
        finally:
            for process in self.running:
                kill(process)
        return self.told

    # ------------------------------------------------------------ events

    def _live(self) -> None:
        for _ in range(self.workers):
            self._start_worker()
        sender = threading.Thread(target=self._send, args=(random.Random(self.seed + 1),))
        sender.start()
        moments = [(self.chance.uniform(0.1, 0.9), self._kill_one) for _ in range(self.kills)]
        for share, happens in sorted([*moments, (0.5, self._interrupt)], key=lambda m: m[0]):
            wanted = round(share * self.tasks)
            until(lambda wanted=wanted: len(self._done()) >= wanted, 600, f"{wanted} are done")
            happens()
        sender.join()
        assert len(self.sent) == self.tasks, f"the sender ended at {len(self.sent)}"
        expected = {n for n, sent in self.sent.items() if sent.task is not None}
        try:
            until(lambda: expected <= self._done(), 300, "all are done")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._stuck(expected)}") from None
        with self._connect() as connection:
            admin = connection.admin()
            until(lambda: not admin.describe(QUEUE)["depth"], 120, "all are acknowledged")
            self._tidy(admin)
            stop(self.running)
            assert mailboxes(admin) == set()

    def _stuck(self, expected: set[int]) -> str:
        """The facts about unfinished tasks: their runs, the holders of their messages, and the
        workers' output."""
        missing = expected - self._done()
        runs = [" ".join(words) for words in self.application.ran() if int(words[0]) in missing]
        with self._connect() as connection:
            queue = json.dumps(connection.admin().describe(QUEUE), indent=1)
        workers = [(worker.pid, worker.poll()) for worker in self.running]
        errors = self.application.log.with_suffix(".stderr").read_text()[-10_000:]
        return f"{sorted(missing)}\n{runs}\n{queue}\n{workers}\n{errors}"

    def _tidy(self, admin: lakequeue.Admin) -> None:
        """The living workers delete the mailboxes of killed ones; they check every `LOOK_S`."""
        names = {f"worker{n}" for n, one in enumerate(self.running) if one.poll() is None}
        link = acquire(Address.of(f"kafka://{self.engine.bootstrap}", {}))
        looks = count(0.0, UNUSED_S)

        def tidy() -> bool:
            link.transient.look(next(looks))
            return mailboxes(admin) == names

        until(tidy, 60, "only those who live have mailboxes")
        release(link)

    def _connect(self) -> lakequeue.Connection:
        return lakequeue.connect(f"kafka://{self.engine.bootstrap}")

    def _send(self, chance: random.Random) -> None:
        for n in range(self.tasks):
            countdown = chance.uniform(1, 10) if chance.random() < LATER else 0.0
            fails = int(chance.random() < FAILING)
            options = {"priority": chance.randrange(10)}
            if countdown:
                options["countdown"] = countdown
            sent = self.sent[n] = Sent(None, time.time(), countdown, fails)
            with contextlib.suppress(OperationalError):  # unknown; it may still be stored
                arguments = (n, chance.uniform(0, 0.2), fails)
                sent.task = self.application.tasks.errand.apply_async(arguments, **options).id

    def _start_worker(self) -> None:
        name = f"worker{len(self.running)}@%h"
        options = ("-P", "prefork", "-c", str(PROCESSES), "-n", name, "--loglevel", "WARNING")
        self.running.append(self.application.start(*options))

    def _kill_one(self) -> None:
        """Kill a living worker as a whole, and the next time one process of its pool."""
        living = [worker for worker in self.running if worker.poll() is None]
        victim = self.chance.choice(living)
        self._kills += 1
        if self._kills % 2:
            kill(victim)
            self._start_worker()
            self._note_death("workers killed")
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(victim.pid).children()
            if children:
                self.chance.choice(children).kill()
        self._note_death("pool processes killed")

    def _interrupt(self) -> None:
        self.engine = self.outage(self.engine)
        self._note_death("outages")

    def _note_death(self, what: str) -> None:
        self.told[what] = self.told.get(what, 0) + 1

    def _done(self) -> set[int]:
        return {int(words[0]) for words in self.application.ran() if words[1] == "done"}

    # ------------------------------------------------------------ the accounts

    def _judge(self) -> None:
        begun: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
        for n, word, *rest in self.application.ran():
            if word == "done":
                continue
            sent = self.sent[int(n)]
            how, at = rest[0], float(rest[1])
            begun[int(n), int(word)][how] += 1
            assert at >= sent.at + sent.countdown - EARLIER_S, f"task {n} before its time"
        done = self._done()
        lost = [n for n, sent in self.sent.items() if sent.task is not None and n not in done]
        assert not lost, f"lost: {lost}"
        for (n, retries), how in begun.items():
            # A repeated task sends its retry again, which is a new message for the broker.
            allowed = begun[n, retries - 1].total() if retries else 1
            assert how["first"] <= allowed, f"task {n} began again without `redelivered`: {how}"
        self.again = {n for (n, _), how in begun.items() if how["again"]}
        self.told |= {
            "tasks": len(done),
            "with a countdown": sum(s.countdown > 0 for s in self.sent.values()),
            "retried": sum(s.fails for s in self.sent.values()),
            "begun again, and told": sum(how["again"] for how in begun.values()),
            "not known to be stored": sum(s.task is None for s in self.sent.values()),
        }  # fmt: skip

    def _explain(self) -> None:
        """The tables have the whole history of repeated tasks, and of some others."""
        some = set(sorted(self.again)[: TRACED // 2])
        some |= set(self.chance.sample(sorted(self._done()), min(TRACED // 2, len(self._done()))))
        wanted = {self.sent[n].task: n for n in some if self.sent[n].task is not None}
        self.told["explained by trace"] = len(wanted)

        def unexplained() -> dict[int, list[list[str]]]:
            """The tasks without a whole history yet. Each call checks only those that the last one
            left, because a trace is slow."""
            lake = open_lake(self.engine.home)
            lives: dict[int, list[list[str]]] = {n: [] for n in wanted.values()}
            for message_id, payload in lake.execute(_MESSAGES).fetchall():
                task = json.loads(payload)["headers"]["id"]
                if task in wanted:
                    (queue,) = trace(lake, str(message_id))["queues"]
                    lives[wanted[task]].append([event["event"] for event in queue["life"]])
            left = {n: found for n, found in lives.items() if not _explain(found, n in self.again)}
            for task in [task for task, n in wanted.items() if n not in left]:
                del wanted[task]
            return left

        deadline = time.monotonic() + TABLES_S
        while (left := unexplained()) and time.monotonic() < deadline:
            time.sleep(1)
        assert not left, f"the tables do not explain {left}"


def _explain(lives: list[list[str]], again: bool) -> bool:
    """Whether each message of a task was stored and acknowledged, and one of them redelivered if
    the task began again."""
    whole = all(life[0] == "spooled" and life[-1] == "acknowledged" for life in lives)
    return bool(lives) and whole and (not again or any("redelivered" in life for life in lives))


@click.command()
@click.option("--tasks", default=10_000, show_default=True)
@click.option(
    "--kills", default=4, show_default=True, help="Of workers, or of one of their processes."
)
@click.option("--workers", default=4, show_default=True)
@click.option("--seed", default=None, type=int, help="Draws who dies when.")
def main(tasks: int, kills: int, workers: int, seed: int | None) -> None:
    """A day of Celery tasks on lakequeue, with deaths; then the accounts."""
    seed = int(time.time()) if seed is None else seed
    sys.path.insert(0, str(HERE))
    with tempfile.TemporaryDirectory(prefix="lakequeue-day-") as folder:
        config = Path(folder) / "queues.yaml"
        config.write_text(CONFIG)
        engine = UpProcess(Path(folder) / "home", config, *NO_HISTORY)
        try:
            told = Day(Path(folder), engine.wait_ready(), tasks, kills, workers, seed).run()
        finally:
            engine.kill()
    click.echo(json.dumps({"seed": seed, **told}, indent=2))


if __name__ == "__main__":
    main()
