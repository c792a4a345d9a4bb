"""Mistakes in the core, and a wall clock that a test sets, in the engine's workers.

Python imports this where `PYTHONPATH` names its folder. A mistake waits for a name: of a queue, of
a payload, or of a delay. The clock is `CLOCK` in the folder that `LAKEQUEUE_PLANTED` names: seconds
to add to every reading, or, behind a plus sign, to the next one only.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

CLOCK = "clock"


def _fail_for_queues() -> None:
    from lakequeue.core.phases import alerts, deadlines, delivery
    from lakequeue.core.queue.queue import Queue

    def plant(owner: Any, function: str, name: str) -> None:
        real = getattr(owner, function)

        def failing(*arguments: Any, **more: Any) -> Any:
            queue = next(one for one in arguments if isinstance(one, Queue))
            if queue.definition.name == name and queue.header.depth:
                queue.header.leased += 3
                raise RuntimeError("planted")
            return real(*arguments, **more)

        setattr(owner, function, failing)

    plant(delivery, "choose_messages", "fails-delivery")
    plant(deadlines, "_of_rows", "fails-deadlines")
    plant(Queue, "spill_over", "fails-tidying")
    plant(alerts, "level_of", "fails-alerts")


def _fail_for_records() -> None:
    from lakequeue.core.commands import turns
    from lakequeue.core.phases import admission
    from lakequeue.protocol.commands import Cancel

    judge = admission.judge
    cancel = turns.IN_TURN[Cancel]

    def judging(broker: Any, vpn: str, matches: Any, messages: Any) -> Any:
        if any(payload == b"fails alone" for payload in messages.payloads):
            matches[0].queue.header.depth += 7
            raise OverflowError("planted")
        return judge(broker, vpn, matches, messages)

    def canceling(broker: Any, queue: Any, task: Any, command: Any, budget: Any) -> bool:
        if command.delay_ms == 13:
            queue.header.leased += 7
            raise ZeroDivisionError("planted")
        return cancel(broker, queue, task, command, budget)

    admission.judge = judging
    turns.IN_TURN[Cancel] = canceling


def _set_the_clock(at: Path) -> None:
    from lakequeue.streaming import live_core

    def wall() -> float:
        try:
            said = at.read_text()
        except FileNotFoundError:
            said = "0"
        if said.startswith("+"):
            at.unlink()
        return (time.time() + float(said)) * 1000

    live_core.wall = wall


def _plant(folder: str) -> None:
    _fail_for_queues()
    _fail_for_records()
    _set_the_clock(Path(folder) / CLOCK)


if any("worker_daemon" in argument for argument in sys.orig_argv):
    _plant(os.environ["LAKEQUEUE_PLANTED"])
