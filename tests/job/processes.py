"""Processes that tests start and kill: `lakequeue run` and `up`, in a session of their own."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
from lakequeue.streaming.loop.realtime import ENVIRONMENT
from lakequeue.streaming.loop.worker_daemon import DAEMON

START_S_MAX = 300.0
STOP_S_MAX = 180.0
SLOWER = 3  # than the machine for which the waits are written; speed is measured in bench/
# Spark would compile each plan to Java code, which takes longer than a test's few rows: a fifth of
# the CPU. The engine of the documentation's commands does compile.
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"
}  # fmt: skip

_PR_SET_CHILD_SUBREAPER = 36


def _adopts() -> None:
    """Linux: make its grandchildren its children when their parents die. Otherwise Java's death
    leaves the workers' process group orphaned, and the kernel ends the frozen ones in it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _listen(
    process: subprocess.Popen[str], said: list[dict[str, Any]], ready: threading.Event
) -> None:
    """The output of one start, until its end: a killed one's last lines may come after the next
    start."""
    assert process.stdout is not None
    for line in process.stdout:
        said.append(json.loads(line))
        if said[-1]["event"] == "ready":
            ready.set()
    ready.set()


class EngineProcess:
    """`lakequeue run` as a child. Its session has all processes that it starts: driver, JVM,
    executors, Python workers; Kafka is separate. A start costs 20 s of a core, and tables 10 s
    more: a test without tables sets `lakequeue.tables_interval_s=0`."""

    def __init__(self, bootstrap: str, home: Path, config: Path, *arguments: str) -> None:
        self.home = home
        self.log = home.parent / f"{home.name}.stderr"
        command = [sys.executable, "-m", "lakequeue.cli", *self.command(bootstrap)]
        command += ["--home", str(home), "--config", str(config), "--json"]
        given = {"lakequeue.ui_port": "0", **INTERPRETED}
        command += [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
        self._command = [*command, *arguments]
        self.start()

    def start(self, *more: str) -> EngineProcess:
        """Start it, or restart it after a kill. more: arguments of this start."""
        self.said: list[dict[str, Any]] = []
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self._command, *more], stdout=subprocess.PIPE, stderr=log, text=True,
                start_new_session=True, cwd=self.home.parent, preexec_fn=_adopts,
            )  # fmt: skip
        self._ready = threading.Event()
        arguments = (self.process, self.said, self._ready)  # the next start has others
        self._listener = threading.Thread(target=_listen, args=arguments, daemon=True)
        self._listener.start()
        return self

    def command(self, bootstrap: str) -> list[str]:
        """The command line, with its Kafka's address."""
        return ["run", "--bootstrap", bootstrap]

    def wait_ready(self) -> EngineProcess:
        """Wait until it serves."""
        assert self._ready.wait(START_S_MAX), f"not ready in {START_S_MAX} s: {self.errors()}"
        assert self.said, f"ended with {self.process.wait(10)}: {self.errors()}"
        return self

    def errors(self) -> str:
        """The end of its standard error."""
        return self.log.read_text(errors="replace")[-2000:]

    def family(self) -> list[psutil.Process]:
        """Every living process of its session, itself included."""
        out = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                ours = os.getsid(process.pid) == self.process.pid
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    out.append(process)
        return out

    def kill(self) -> None:
        """`kill -9` of all of it, as in a power loss."""
        for process in [*self.family(), *self.family()]:  # twice: for children born meanwhile
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait(30)
        until(lambda: not self.family(), 30, "processes survive SIGKILL")

    def terminate(self) -> int:
        """Send SIGTERM to the process that the user started; returns its exit status. Then all
        output is in `said`."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(STOP_S_MAX)
        self._listener.join(STOP_S_MAX)
        return status


class UpProcess(EngineProcess):
    """`lakequeue up`: its Kafka is its own and dies with it."""

    def __init__(self, home: Path, config: Path, *arguments: str) -> None:
        super().__init__("", home, config, *arguments)

    def command(self, bootstrap: str) -> list[str]:
        """Kafka keeps the home's earlier port."""
        return ["up", "--port", "0"]

    @property
    def bootstrap(self) -> str:
        """Its Kafka's address, once it serves."""
        ready = next(said for said in self.said if said["event"] == "ready")
        return ready["addresses"]["Kafka"].removeprefix("kafka://")

    def kafka(self) -> psutil.Process | None:
        """Its Kafka, while there is one."""
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children():
                if runs(child, "kafka.Kafka"):
                    return child
        return None


def loop_workers(engine: EngineProcess | Iterable[psutil.Process]) -> list[psutil.Process]:
    """The Python workers of the brokers' queries: children of a daemon whose environment names the
    broker."""
    found = []
    for process in engine.family() if isinstance(engine, EngineProcess) else engine:
        with contextlib.suppress(psutil.Error, OSError):
            parent = process.parent()
            if DAEMON not in process.cmdline() or parent is None:
                continue
            ours = process.environ().get(ENVIRONMENT) and parent.environ().get(ENVIRONMENT)
            if ours and DAEMON in parent.cmdline():
                found.append(process)
    return found


def runs(process: psutil.Process, word: str) -> bool:
    """Whether its command line has the word. A process that has just ended has none."""
    with contextlib.suppress(psutil.Error):
        return any(word in part for part in process.cmdline())
    return False


def gone(process: psutil.Process) -> bool:
    """Whether it has ended, even if its parent has not collected it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def thaw(process: psutil.Process) -> None:
    """Continue a process that was frozen with SIGSTOP all the time."""
    assert process.status() == psutil.STATUS_STOPPED, "it was not frozen all the time"
    let_end(process)


def let_end(process: psutil.Process) -> None:
    """Continue a process that may be frozen, or dead, and wait until it notices that it is
    replaced."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGCONT)
    until(lambda: gone(process), 60, "the frozen one ends")


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Wait until a condition holds, and return its value. On a slower machine it may take longer.

    A slow check is followed by a longer pause: the engine needs the same cores.
    """
    deadline = time.monotonic() + seconds * SLOWER
    while True:
        begun = time.process_time()
        if found := condition():
            return found
        assert time.monotonic() < deadline, f"not within {seconds * SLOWER} s: {what}"
        cost = time.process_time() - begun
        time.sleep(max(0.1, 3 * cost, min(9 * cost, 1.0)))


def write_at(
    producer: Any, topic: str, value: bytes, timestamp: int, key: bytes | None = None
) -> None:
    """Write a record with this time, once Kafka has applied the topic's setting that allows it."""

    def is_taken() -> bool:
        told: list[Any] = []
        producer.produce(
            topic, value, key, 0, lambda error, _: told.append(error), timestamp=timestamp
        )
        producer.flush(90)
        return bool(told) and told[0] is None  # compared by ==, a KafkaError raises later

    until(is_taken, 60, f"{topic} takes a record with the time {timestamp}")


def free_port() -> int:
    """A free port."""
    from lakequeue.streaming.kafka.embedded_kafka import free_port as find

    return find()
