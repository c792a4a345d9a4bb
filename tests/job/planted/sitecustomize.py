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


def _fail_for_a_queue() -> None:
    from lakequeue.state.phases import delivery

    choose_messages = delivery.choose_messages

    def failing(broker: Any, queue: Any, *more: Any) -> Any:
        if queue.definition.name == "fails" and queue.header.depth:
            queue.header.leased += 3
            raise RuntimeError("planted")
        return choose_messages(broker, queue, *more)

    delivery.choose_messages = failing


def _fail_for_records() -> None:
    from lakequeue.protocol.commands import Cancel
    from lakequeue.state.commands import multi_step_commands
    from lakequeue.state.phases import admission

    judge = admission.judge
    cancel = multi_step_commands.IN_TURN[Cancel]

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
    multi_step_commands.IN_TURN[Cancel] = canceling


def _set_the_clock(at: Path) -> None:
    from lakequeue.streaming.loop import loop_driver

    def wall() -> float:
        try:
            said = at.read_text()
        except FileNotFoundError:
            said = "0"
        if said.startswith("+"):
            at.unlink()
        return (time.time() + float(said)) * 1000

    loop_driver.wall = wall


def _plant(folder: str) -> None:
    _fail_for_a_queue()
    _fail_for_records()
    _set_the_clock(Path(folder) / CLOCK)


if any("worker_daemon" in argument for argument in sys.orig_argv):
    _plant(os.environ["LAKEQUEUE_PLANTED"])
