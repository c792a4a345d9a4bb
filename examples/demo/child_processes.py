"""The demo's other processes: the engine (`lakequeue up`) and the workers.

Each is told by the kernel to end when the demo dies, however it dies (Linux).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ...cli.group import EXIT_ENVIRONMENT, EnvironmentFault
from ...protocol.errors import LakequeueError

START_SECONDS_MAX = 180.0
STOP_SECONDS_MAX = 60.0
_PR_SET_PDEATHSIG = 1


def _spawn(arguments: list[str], **options: Any) -> subprocess.Popen[str]:
    """Start a Python module as a child. Only from the main thread: it lives as long as we do."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def end_with_parent() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the demo, which ends them in order
        preexec_fn=end_with_parent,
        **options,
    )


class EngineProcess:
    """`lakequeue up` in a process of its own. options: of the command, besides."""

    def __init__(
        self, home: Path, configuration: Path, say: Callable[[str], None], *options: str
    ) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LAKEQUEUE_UP_")}
        arguments = ["lakequeue.cli", "up", "--home", str(home), "--config", str(configuration)]
        self._process = _spawn(
            [*arguments, "--port", "0", "--json", *options], stderr=subprocess.PIPE, env=environment
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
            with contextlib.suppress(ValueError):
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
        """Raise when the engine has ended."""
        if self._process.poll() is not None:
            self._stderr.join(timeout=2)
            raise LakequeueError(f"The engine ended: {self._why_ended()}")

    def _why_ended(self) -> str:
        self._stderr.join(timeout=2) if self._process.poll() is not None else None
        return self._errors[-1] if self._errors else "it gave no reason"

    def stop(self) -> int:
        """End it in order; its exit status."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


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
        """Start a worker with jobs ``queue:ack_mode``; what it says on stderr goes to a file."""
        arguments = ["lakequeue.examples.demo.demo_worker", "--url", url, "--name", name]
        arguments += ["--seed", str(seed)]
        for job in jobs:
            arguments += ["--job", job]
        worker = cls(name, jobs, _spawn(arguments, stderr=errors))
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
        """Raise when it ended without being told to."""
        if self.fate == "works" and self.process.poll() is not None:
            why = "; ".join(self.counts.get("failures", ())) or "it gave no reason"
            raise LakequeueError(f"{self.name} ended with status {self.process.returncode}: {why}")

    def freeze(self) -> None:
        """Make it hang: it keeps its messages, and is still sent more."""
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


def until(
    condition: Callable[[], bool],
    seconds: float,
    check: Callable[[], None],
    what: str,
    every_s: float = 0.1,
) -> None:
    """Wait for a condition; ``check`` raises if waiting is useless."""
    deadline = time.monotonic() + seconds
    while not condition():
        check()
        if time.monotonic() > deadline:
            raise LakequeueError(f"Waited {seconds:.0f} s in vain for {what}.")
        time.sleep(every_s)
