"""Celery's tasks that do nothing, through lakequeue, Redis and RabbitMQ.

The same application each time: ten threads send, a worker with four threads runs the tasks.
`delay()` returns when the task is stored; for RabbitMQ publisher confirms are turned on, which
lakequeue always has.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from ..protocol.errors import LakequeueError

try:
    from celery import Celery
except ImportError as error:
    raise LakequeueError(f"Celery is missing: install the extra `celery` ({error})") from error

from ..streaming.kafka.embedded_kafka import free_port
from ..tasks.alias import register
from .harness import Say, cpu_s, percentile, process, running, url, wait_for
from .steady import at_rate, made_at
from .subcommands import count

OPTIONS = (count("--tasks", 15_000, "Number of tasks."),)
SENDERS = 10  # as many as Celery's pool of connections holds
RATE = 50
STEADY_S = 10
LONGEST_S = 300.0
WORKER = ("worker", "-P", "threads", "-c", "4", "--loglevel", "ERROR")
_RUN = struct.Struct("dd")  # when a task was sent, and when it began

register()


def application(broker: str, log: Path) -> Celery:
    """An application whose one task writes its start time to a file."""
    app = Celery("bench", broker=broker)
    app.conf.update(
        task_ignore_result=True,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"confirm_publish": True},
    )
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @app.task(name="noop", shared=False)
    def noop(sent: float) -> None:
        os.write(file, _RUN.pack(sent, time.time()))

    return app


def runs(log: Path) -> list[tuple[float, float]]:
    """The times at which each task was sent and began, for those that have run."""
    return list(_RUN.iter_unpack(log.read_bytes()))


def _work(broker: str, log: Path) -> None:
    os.dup2(2, 1)  # keeps the worker's output out of our rows
    application(broker, log).worker_main(list(WORKER))


def measure(broker: str, log: Path, tasks: int, rate: int, seconds: int) -> dict[str, Any]:
    """First a steady rate, for the time from `delay()` to the start; then all tasks at once."""
    app = application(broker, log)
    noop = app.tasks["noop"]

    def all_ran(count: int) -> None:
        wait_for(lambda: log.stat().st_size >= count * _RUN.size, LONGEST_S, f"{count:,} tasks")

    def steady(payload: bytes) -> None:
        noop.delay(made_at(payload))

    try:
        noop.delay(time.time())
        all_ran(1)  # the worker runs
        at_rate(steady, rate, seconds)  # compilers in Java, first connections
        begin = at_rate(steady, rate, seconds)
        before = 1 + 2 * rate * seconds
        all_ran(before)
        waited = [(began - sent) * 1000 for sent, began in runs(log) if sent >= begin]
        cpu, start = cpu_s(), time.time()
        with ThreadPoolExecutor(SENDERS) as senders:
            list(senders.map(lambda _: noop.delay(time.time()), range(tasks)))
        all_ran(before + tasks)
        cpu = cpu_s() - cpu
    finally:
        app.close()
    return {
        "tasks": tasks,
        "tasks_s": tasks / (max(began for _, began in runs(log)) - start),
        "p50_ms": percentile(waited, 50),
        "cpu_us_per_task": cpu / tasks * 1e6,
    }


@contextmanager
def _lakequeue(folder: Path, say: Say) -> Iterator[str]:
    with running(say, queues=[]) as engine:
        yield f"lakequeue+{url(engine)}"


@contextmanager
def _redis(folder: Path, say: Say) -> Iterator[str]:
    port = free_port()
    with _program(folder, {}, "redis-server", "--port", str(port), "--dir", str(folder)):
        _await(port)
        yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def _rabbitmq(folder: Path, say: Say) -> Iterator[str]:
    folder.chmod(0o777)  # started by root, it becomes another user
    names = free_port()
    port = free_port(besides=names)
    settings = {
        "ERL_EPMD_PORT": names, "RABBITMQ_NODE_PORT": port, "RABBITMQ_DIST_PORT": free_port(),
        "RABBITMQ_NODENAME": f"bench{port}@localhost", "RABBITMQ_PID_FILE": folder / "pid",
        "RABBITMQ_MNESIA_BASE": folder / "mnesia", "RABBITMQ_LOG_BASE": folder / "log",
        "RABBITMQ_ENABLED_PLUGINS_FILE": folder / "plugins",
    }  # fmt: skip
    with (
        _program(folder, {}, "epmd", "-port", str(names)),
        _program(folder, {key: str(value) for key, value in settings.items()}, "rabbitmq-server"),
    ):
        _await(port)
        yield f"amqp://guest:guest@127.0.0.1:{port}//"


@contextmanager
def _program(folder: Path, settings: dict[str, str], *command: str) -> Iterator[None]:
    with (folder / f"{command[0]}.log").open("wb") as log:
        program = psutil.Popen(
            command, env=os.environ | settings, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield
    finally:
        found = [*program.children(recursive=True), program]
        for one in found:
            with suppress(psutil.Error):
                one.terminate()
        for one in psutil.wait_procs(found, 15)[1]:
            one.kill()


def _await(port: int) -> None:
    def answers() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    wait_for(answers, 60, "the broker's start")


BROKERS: dict[str, tuple[str | None, Callable[[Path, Say], AbstractContextManager[str]]]] = {
    "lakequeue": (None, _lakequeue),
    "Redis": ("redis-server", _redis),
    "RabbitMQ": ("rabbitmq-server", _rabbitmq),
}


def run(tasks: int, say: Say) -> list[dict[str, Any]]:
    """A row for each broker that is installed."""
    rows = []
    for name, (program, broker) in BROKERS.items():
        if program is not None and shutil.which(program) is None:
            say(f"{name} is skipped: {program} is not installed.")
            continue
        say(name)
        with tempfile.TemporaryDirectory(
            prefix="lakequeue-bench-", ignore_cleanup_errors=True
        ) as place:
            folder = Path(place)
            with broker(folder, say) as address, _worker(address, folder / "runs"):
                row = measure(address, folder / "runs", tasks, RATE, STEADY_S)
                rows.append({"broker": name, **row})
    return rows


@contextmanager
def _worker(address: str, log: Path) -> Iterator[None]:
    worker = process(_work, address, log)
    try:
        yield
    finally:
        worker.terminate()
        worker.join(30)
        if worker.is_alive():
            worker.kill()
