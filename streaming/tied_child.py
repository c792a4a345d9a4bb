"""Child processes that do not outlive this one, even after `kill -9`."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from typing import Any

_PR_SET_PDEATHSIG = 1


def start_tied(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a child that the kernel kills when this process dies, however it dies.

    Linux ties that promise to the THREAD that forked: the child would die as soon as a short-lived
    thread that called this ended. So the fork is done by a thread that lives as long as the
    child does. Elsewhere than on Linux there is no such promise.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    parent = os.getpid()

    def die_with_parent() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it died between the fork and the call
                os._exit(1)

    outcome: list[subprocess.Popen[bytes] | BaseException] = []
    started = threading.Event()

    def keep() -> None:
        try:
            child = subprocess.Popen(command, preexec_fn=die_with_parent, **options)
        except BaseException as error:
            outcome.append(error)
            started.set()
            return
        outcome.append(child)
        started.set()
        child.wait()

    threading.Thread(target=keep, name="child-keeper", daemon=True).start()
    started.wait()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]
