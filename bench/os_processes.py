"""The engine's processes as the operating system sees them: Python workers, and a whole engine."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from ..cli.group import EXIT_ENVIRONMENT, EnvironmentFault
from ..protocol.errors import LakequeueError
from ..streaming.java import start_tied
from ..streaming.loop.worker_daemon import DAEMON

OPTIONS = ("LAKEQUEUE_UP_", "LAKEQUEUE_RUN_")  # variables of the user, not for this engine
START_SECONDS_MAX = 180.0
STOP_SECONDS_MAX = 60.0
MEASURE_EVERY_S = 0.5


def workers() -> list[psutil.Process]:
    """Spark's Python workers below this process: the processes that the daemon forked."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            parent = child.parent()
            if DAEMON in child.cmdline() and parent is not None and DAEMON in parent.cmdline():
                found.append(child)
    return found


def largest_worker_mb() -> float:
    """Resident memory of the largest Python worker, MB."""
    sizes = [0]
    for worker in workers():
        with suppress(psutil.Error):  # it ended meanwhile
            sizes.append(worker.memory_info().rss)
    return max(sizes) / 1e6


class PeakMemory:
    """The largest resident memory of any one Python worker while it is open, MB."""

    def __init__(self) -> None:
        self.peak_mb = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stopping.wait(MEASURE_EVERY_S):
            self.peak_mb = max(self.peak_mb, largest_worker_mb())

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()


class EngineProcess:
    """`lakequeue up` or `run` in its own session; it gets SIGTERM when this process dies. options:
    further options of the command."""

    def __init__(
        self, command: str, home: Path, config: Path, say: Callable[[str], None], *options: str
    ) -> None:
        arguments = [command, "--home", str(home), "--config", str(config), "--json", *options]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(OPTIONS)}
        self._process = start_tied(
            [sys.executable, "-m", "lakequeue.cli", *arguments],
            signal.SIGTERM,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C must reach only us; we stop the engine cleanly
            env=environment,
        )
        self._say = say
        self._errors: deque[str] = deque(maxlen=20)
        self._ready: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read_out, daemon=True).start()
        self._stderr = threading.Thread(target=self._read_errors, daemon=True)
        self._stderr.start()

    def _read_out(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict) and value.get("event") == "ready":
                    self._ready.put(value)
        self._ready.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if text := line.strip():
                self._errors.append(text)
                self._say(text)

    def wait_ready(self) -> dict[str, str]:
        """The addresses, once the engine runs."""
        try:
            ready = self._ready.get(timeout=START_SECONDS_MAX)
        except queue.Empty:
            words = self._why_ended()
            raise EnvironmentFault(
                f"The engine did not start within {START_SECONDS_MAX:.0f} s: {words}"
            ) from None
        if ready is None:
            status = self._process.wait()
            kind = EnvironmentFault if status == EXIT_ENVIRONMENT else LakequeueError
            raise kind(self._why_ended())
        return ready["addresses"]

    def check(self) -> None:
        """Raise if the engine has ended."""
        if self._process.poll() is not None:
            raise LakequeueError(f"The engine ended: {self._why_ended()}")

    def _why_ended(self) -> str:
        if self._process.poll() is not None:
            self._stderr.join(timeout=2)
        return self._errors[-1] if self._errors else "it gave no reason"

    def kill(self) -> None:
        """Send SIGKILL to all processes of its session: driver, Java, workers."""
        for _ in range(2):  # twice, for processes that were started meanwhile
            for process in psutil.process_iter():
                with suppress(psutil.Error, OSError):
                    if os.getsid(process.pid) == self._process.pid:
                        process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Stop it cleanly; returns its exit status."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
