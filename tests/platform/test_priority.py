"""Java yields to the worker that steps: every thread of it, and none more than once."""

from __future__ import annotations

import os
import subprocess
import sys

from lakequeue.streaming.priority import BELOW

# A process with a thread stands for Java; its child for the daemon; that one's child is the worker.
_WORKER = "from lakequeue.streaming.priority import lower_java; print(lower_java(), lower_java())"
_DAEMON = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_WORKER!r}], check=True)"
_JAVA = f"""
import os, subprocess, sys, threading
ends = threading.Event()
threading.Thread(target=ends.wait).start()
subprocess.run([sys.executable, "-c", {_DAEMON!r}], check=True)
print(*(os.getpriority(os.PRIO_PROCESS, int(t)) for t in os.listdir("/proc/self/task")))
ends.set()
"""


def test_all_threads_of_java_yield_once() -> None:
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    done = subprocess.run([sys.executable, "-c", _JAVA], capture_output=True, text=True, check=True)
    lowered, nice = done.stdout.splitlines()
    assert lowered == "2 0"
    assert nice.split() == [str(min(ours + BELOW, 19))] * 2
