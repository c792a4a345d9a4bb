"""An application that fails at every point in every mode at once: run as a process, and killed.

    python failing_process.py ADDRESS deadly|paused

It prints `ready` once each of its consumers has reached its point; then the test kills it, or stops
it for a while. In the end (paused only) it prints as JSON which messages it handled.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import lakequeue
from client.failures import ALL, DEADLY, MODES, PAUSED, Work, open_consumer, queue_of


def wait(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)


def main(address: str, kind: str) -> None:
    points = DEADLY if kind == "deadly" else PAUSED
    connection = lakequeue.connect(f"kafka://{address}", client_name="victim")
    go_on = {point: threading.Event() for point in points}
    there: set[str] = set()
    works: dict[str, Work] = {}
    for point in points:
        for mode in MODES:
            name = queue_of(mode, point)
            consumer = open_consumer(connection, mode, point)
            wait(lambda: len(consumer._prefetch.buffer) == 3)  # noqa: B023 – called at once

            def fail(name: str = name, point: str = point) -> None:
                there.add(name)
                if point in ("during", *PAUSED):
                    go_on[point].wait()

            works[name] = Work(consumer, mode, point, fail, wait)
            works[name].go()
    wait(lambda: len(there) == len(works))
    time.sleep(0.5)  # acknowledgements are in flight
    print("ready", flush=True)
    if kind == "deadly":
        time.sleep(600)
    for point in points:
        sys.stdin.readline()
        go_on[point].set()
    sys.stdin.readline()
    # these get no more messages: they continue with the ones in their buffer
    for mode in ("pre_ack", "no_ack"):
        wait(lambda: works[queue_of(mode, "away")].handled == ALL)  # noqa: B023 – called at once
    print(json.dumps({name: sorted(work.handled) for name, work in works.items()}), flush=True)
    connection.close()


main(*sys.argv[1:])
