"""Java yields to the worker of the only broker: every thread of it, and none more than once."""

from __future__ import annotations

import os
import subprocess
import sys

from lakequeue.streaming.loop.worker_process import BELOW

# A process with a thread stands for Java; its child for the daemon; that one's child is the worker.
_WORKER = """
import os
from lakequeue.streaming.loop.worker_process import set_priorities
print(set_priorities({alone}), set_priorities({alone}), os.getpriority(os.PRIO_PROCESS, 0))
"""
_DAEMON = "import subprocess, sys; subprocess.run([sys.executable, '-c', {worker!r}], check=True)"
_JAVA = """
import os, subprocess, sys, threading
ends = threading.Event()
threading.Thread(target=ends.wait).start()
begun = subprocess.Popen([sys.executable, "-c", {daemon!r}])
os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + {later})
begun.wait()
print(*(os.getpriority(os.PRIO_PROCESS, int(t)) for t in os.listdir("/proc/self/task")))
ends.set()
"""


def _said(alone: bool, later: int) -> list[list[int]]:
    """What the worker and Java print. later: how much Java was lowered before."""
    daemon = _DAEMON.format(worker=_WORKER.format(alone=alone))
    java = _JAVA.format(daemon=daemon, later=later)
    done = subprocess.run([sys.executable, "-c", java], capture_output=True, text=True, check=True)
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


def test_all_threads_of_java_yield_once_to_the_only_broker() -> None:
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    below = min(ours + BELOW, 19)
    assert _said(True, 0) == [[2 if below > ours else 0, 0, ours], [below, below]]


def test_of_several_brokers_none_comes_before_another() -> None:
    """One that was alone gets the priority that Java has, as a new one has it from Java."""
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    assert _said(False, 0) == [[0, 0, ours], [ours, ours]]
    first, again, then = _said(False, 3)[0]
    assert (first > 0, again, then) == (ours < 19, 0, min(ours + 3, 19))
