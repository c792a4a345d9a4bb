"""The checkpoint's size after more and more messages have passed through a queue.

Two consumers keep up with the producer, so the queue is empty whenever the size is measured. The
checkpoint then has the state of an empty queue, and the fixed number of versions that Spark keeps.
Goal: after a million messages at most three times the size after 100,000.
"""

from __future__ import annotations

from typing import Any

from ..client import connect
from ..streaming.tables.table_care import disk_use
from .harness import PAYLOAD, QUEUE, Say, consume, process, running, url, wait_for
from .subcommands import numbers

OPTIONS = (numbers("--counts", "100000,1000000", "Total messages at each measurement."),)
CONSUMERS = 2
CHUNK = 10_000  # sent, then waited for: the consumers are never far behind
ENDLESS = 1 << 40
QUIET_S = 300.0  # a consumer ends if it gets nothing for this long


def run(counts: list[int], say: Say) -> list[dict[str, Any]]:
    """Per count: bytes under the engine's checkpoint after this many messages have passed."""
    rows: list[dict[str, Any]] = []
    with running(say, {"lakequeue.tables_interval_s": "0"}) as engine:
        address = url(engine)
        children = [process(consume, address, ENDLESS, QUIET_S) for _ in range(CONSUMERS)]
        try:
            with connect(address, client_name="bench") as connection:
                admin = connection.admin()
                wait_for(
                    lambda: len(admin.describe(QUEUE)["consumers"]) == CONSUMERS, 60, "consumers"
                )
                with connection.producer(window=CHUNK) as producer:
                    for count in counts:
                        _send_until(admin, producer, count, say)
                        wait_for(lambda: admin.describe(QUEUE)["depth"] == 0, 300, "draining")
                        size = disk_use(engine.home / "checkpoint")[0]
                        say(f"{count:,} messages in and out: {size:,} bytes in the checkpoint")
                        rows.append({"messages": count, "checkpoint_bytes": size})
        finally:
            for child in children:
                child.terminate()
                child.join(10)
    first = rows[0]["checkpoint_bytes"]
    return [{**row, "over_first": row["checkpoint_bytes"] / first} for row in rows]


def _send_until(admin: Any, producer: Any, count: int, say: Say) -> None:
    """Publish until the queue has stored this many messages in total."""
    sent = admin.describe(QUEUE)["spooled"]
    while sent < count:
        chunk = min(CHUNK, count - sent)
        for _ in range(chunk):
            producer.send_async(QUEUE, PAYLOAD)
        producer.flush(300)
        sent += chunk
        if sent < count:
            say(f"{sent:,} of {count:,} in, {admin.describe(QUEUE)['depth']:,} in the queue")
