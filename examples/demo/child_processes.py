"""The demo's workers."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import IO, Any

from ...bench.os_processes import STOP_SECONDS_MAX, start_module
from ...protocol.errors import LakequeueError


@dataclass(slots=True)
class WorkerProcess:
    """A worker of the demo, and its last report."""

    name: str
    jobs: list[str]
    process: subprocess.Popen[str]
    counts: dict[str, Any] = field(default_factory=dict)
    fate: str = "works"
    rate: float = 0.0
    _at: tuple[float, int] = (0.0, 0)

    @classmethod
    def start(
        cls, name: str, jobs: list[str], url: str, seed: int, errors: IO[str]
    ) -> WorkerProcess:
        """Start a worker with jobs ``queue:ack_mode``. errors: gets its standard error."""
        arguments = ["lakequeue.examples.demo.demo_worker", "--url", url, "--name", name]
        arguments += ["--seed", str(seed)]
        for job in jobs:
            arguments += ["--job", job]
        worker = cls(name, jobs, start_module(arguments, stderr=errors))
        threading.Thread(target=worker._read, daemon=True).start()
        return worker

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):
                self.counts = json.loads(line)

    @property
    def ready(self) -> bool:
        """Whether all its consumers are bound."""
        return bool(self.counts.get("ready"))

    def count(self, name: str) -> int:
        """One of its counts."""
        return int(self.counts.get(name, 0))

    def measure(self) -> None:
        """Messages per second since the last call."""
        now, received = time.monotonic(), self.count("received")
        at, before = self._at
        self.rate = (received - before) / (now - at) if at and now > at else 0.0
        self._at = now, received

    def check(self) -> None:
        """Raise LakequeueError if it ended by itself."""
        if self.fate == "works" and self.process.poll() is not None:
            why = "; ".join(self.counts.get("failures", ())) or "it gave no reason"
            raise LakequeueError(f"{self.name} ended with status {self.process.returncode}: {why}")

    def freeze(self) -> None:
        """Make it hang. It keeps its messages, and the engine still sends it more."""
        self.fate = "hangs"
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self.fate = "works"
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it as a crash would."""
        self.fate = "killed"
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """End it in order."""
        if self.fate == "hangs":
            self.kill()
        if self.fate == "works":
            self.fate = "done"
            self.process.terminate()

    def wait(self) -> None:
        """Wait for its end."""
        try:
            self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
