"""The engine's processes as the operating system sees them: Python workers, and a whole engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

from ..protocol.errors import LakequeueError
from ..streaming.loop.worker_daemon import DAEMON

START_S_MAX = 180.0


def workers() -> list[psutil.Process]:
    """Spark's Python workers below this process: what the daemon forked, without the daemon."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            parent = child.parent()
            if DAEMON in child.cmdline() and parent is not None and DAEMON in parent.cmdline():
                found.append(child)
    return found


class PeakMemory:
    """The largest resident memory of any one Python worker while it is open, MB."""

    def __init__(self, every_s: float = 0.5) -> None:
        self.peak_mb = 0.0
        self._every_s = every_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            for worker in workers():
                with suppress(psutil.Error):
                    self.peak_mb = max(self.peak_mb, worker.memory_info().rss / 1e6)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()


class KillableEngine:
    """`lakequeue run` in a session of its own, so that all of it can be killed at once."""

    def __init__(self, bootstrap: str, home: Path, config: Path, trigger: str) -> None:
        command = [sys.executable, "-m", "lakequeue.cli", "run", "--bootstrap", bootstrap]
        command += ["--home", str(home), "--config", str(config), "--trigger", trigger]
        command += ["--json", "--set", "lakequeue.ui_port=0"]
        begin = time.monotonic()
        with (home / "engine.stderr").open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
            )
        self._errors = home / "engine.stderr"
        self._ready = threading.Event()
        self._start_s = 0.0
        threading.Thread(target=self._listen, args=(begin,), daemon=True).start()

    def _listen(self, begin: float) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if json.loads(line).get("event") == "ready":
                self._start_s = time.monotonic() - begin
                self._ready.set()
        self._ready.set()

    def wait_ready(self) -> float:
        """Seconds from its start until it served."""
        self._ready.wait(START_S_MAX)
        if not self._start_s:
            said = self._errors.read_text(errors="replace").strip().splitlines() or ["nothing"]
            raise LakequeueError(f"The engine did not start; it said: {said[-1]}")
        return self._start_s

    def kill(self) -> None:
        """SIGKILL to everything of its session: driver, Java, workers."""
        for _ in range(2):  # twice, for processes that were started meanwhile
            for process in psutil.process_iter():
                with suppress(psutil.Error, OSError):
                    if os.getsid(process.pid) == self._process.pid:
                        process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ask it to end, and kill it if it does not."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
        self.kill()
