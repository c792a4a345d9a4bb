"""The signals that ask a command to end."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator

SAME_SIGNAL_S = 0.5


def ending_signals() -> list[signal.Signals]:
    """The signals that ask a command to end. SIGHUP, which a closing terminal sends, is one of
    them, unless it is ignored, as under `nohup`."""
    ignores_hangup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    hangup = [] if ignores_hangup else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


@contextlib.contextmanager
def _on_signals(
    handle: Callable[[], None], stays: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Call a function at each of `ending_signals`. Works in the main thread only; elsewhere the
    function is never called. stays: whether the handlers stay at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {s: signal.signal(s, lambda *_: handle()) for s in ending_signals()}
    try:
        yield
    finally:
        for which, handler in () if stays() else before.items():
            signal.signal(which, handler)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """`ending_signals` set the event; a second signal interrupts at once. `timeout 10 lakequeue …`
    sends its signal twice, to the process and to its group, which counts as one. After a signal the
    handlers stay, because its repetition may arrive while the command is ending."""
    event = threading.Event()
    first = 0.0

    def handle() -> None:
        nonlocal first
        if not event.is_set():
            first = time.monotonic()
            event.set()
        elif time.monotonic() - first > SAME_SIGNAL_S:
            raise KeyboardInterrupt

    with _on_signals(handle, event.is_set):
        yield event


@contextlib.contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """`ending_signals` interrupt like Ctrl-C, for phases that cannot check an event. A signal that
    arrives twice interrupts once, so that it does not interrupt the clean-up."""
    last = -math.inf

    def handle() -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before > SAME_SIGNAL_S:
            raise KeyboardInterrupt

    with _on_signals(handle):
        yield
