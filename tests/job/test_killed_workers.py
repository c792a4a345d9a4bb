"""C3, C4 on the real job: a worker that is killed gives exactly the redelivery that the table in
docs/concepts/failures.md says, in every mode and at every deadly point."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from client.failures import DEADLY, MODES, on_memory, queue_of
from job.conftest import Job, in_real_time
from job.processes import until

WORKER = Path(__file__).parents[1] / "client" / "failing_process.py"
PLACES = [queue_of(mode, point) for mode in MODES for point in DEADLY]


@pytest.mark.job
@in_real_time
def test_C3_C4_a_worker_is_killed_in_each_mode(job: Job, connection: Any) -> None:
    admin = connection.admin()
    for name in PLACES:
        admin.purge(name)
    producer = connection.producer()
    for name in PLACES:
        for payload in "123":
            producer.send_async(name, payload)
    producer.flush(60)
    worker = subprocess.Popen(
        [sys.executable, str(WORKER), job.kafka.bootstrap_servers, "deadly"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    finally:
        worker.kill()
        worker.wait()

    def returned() -> bool:
        return not any(q["consumers"] for q in admin.queues() if q["name"] in PLACES)

    until(returned, 60, "the engine misses the worker's heartbeats")
    again = {name: {m.payload.decode() for m in admin.browse(name)} for name in PLACES}
    assert again == {queue_of(m, p): on_memory(m, p)[0] for m in MODES for p in DEADLY}
