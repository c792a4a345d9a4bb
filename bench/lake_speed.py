"""The cost and size of the Delta tables (R1, R3).

Producers and two consumers run at once, with messages of 1 KB that do not compress. The traffic is
measured with the tables, without them, and with them again; the better of the two runs with tables
counts, in case the machine becomes slower. CPU time covers Kafka, the engine and the consumers
until the last ack; other work on the machine changes it less than the rate. The lag is the time
that the tables need to catch up. Another engine shows the tables' size per message and the time to
rebuild a backlog. `lakequeue bench sql` measures queries of the tables.
"""

from __future__ import annotations

import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

from ..lake import read_columns
from ..lake.rebuilding import rebuild
from ..streaming import Engine
from ..streaming.tables.table_care import disk_use
from .harness import Say, cpu_s, in_a_process, publish, running, url, wait_for
from .subcommands import messages
from .throughput import await_empty, consumers

OPTIONS = (messages(400_000),)
PAYLOAD_BYTES = 1_000
# In the first minute of full load Java compiles, more so with the tables. This is not part of their
# lasting cost.
WARM_UP = 1_200_000
CAUGHT_UP_S = 600.0
# To measure sizes sooner: with the default interval of a minute the content is the same.
SOON = {"lakequeue.history_interval_s": "15", "lakequeue.snapshots_interval_s": "30"}
WITHOUT = {"lakequeue.tables_interval_s": "0"}


def run(messages: int, say: Say) -> list[dict[str, Any]]:
    """Measure; returns one row."""
    first, _ = _with(messages, say)
    say("without the tables")
    with running(say, settings=WITHOUT) as engine:
        without, without_cpu_us = _through(engine, messages)
    second, found = _with(messages, say)
    best = max(first, second)
    found |= _stored(messages, say)
    return [{
        "messages": messages, "with_msgs_s": best, "without_msgs_s": without,
        "ratio": best / without, "without_cpu_us_per_msg": without_cpu_us, **found,
    }]  # fmt: skip


def _with(messages: int, say: Say) -> tuple[float, dict[str, Any]]:
    """Messages a second with the tables; their cost, and the tables' lag."""
    say("with the tables")
    with running(say) as engine:
        rate, cpu_us = _through(engine, messages)
        begin = time.perf_counter()
        _caught_up(engine, WARM_UP + messages)
        lag_s = time.perf_counter() - begin
    return rate, {"with_cpu_us_per_msg": cpu_us, "lag_s": lag_s}


def _stored(messages: int, say: Say) -> dict[str, Any]:
    """The size of the tables, and the time to rebuild a backlog."""
    say("a backlog, and a rebuild of it")
    with running(say, settings=SOON) as engine:
        made, found = consumers(url(engine)), dict[str, Any]()
        publish_random(url(engine), messages)
        await_empty(url(engine), messages)
        _caught_up(engine, messages)
        for child in made:
            child.join(60)
        found["lake_bytes_per_message"] = disk_use(engine.tables)[0] / messages
        found["lake_bytes_wanted"] = 1.6 * PAYLOAD_BYTES + 200
        publish_random(url(engine), messages)
        _caught_up(engine, 2 * messages)
        time.sleep(2 * float(SOON["lakequeue.history_interval_s"]))  # the steps, and a snapshot
        found["with_backlog_bytes_per_message"] = disk_use(engine.tables)[0] / (2 * messages)
        engine.stop()
        return found | _rebuilt(engine.home, messages)


def _through(engine: Engine, messages: int) -> tuple[float, float]:
    """Run producers and consumers at once, after a warm-up; returns messages per second, and CPU µs
    per message. The consumers end when no more messages arrive."""
    address = url(engine)
    consumers(address)
    publish_random(address, WARM_UP)
    await_empty(address, WARM_UP)
    cpu, begin = cpu_s(), time.perf_counter()
    publish_random(address, messages)
    await_empty(address, WARM_UP + messages)
    seconds, cpu = time.perf_counter() - begin, cpu_s() - cpu
    return messages / seconds, cpu / messages * 1e6


def publish_random(address: str, count: int) -> None:
    """Publish this many messages, each different, from another process."""
    in_a_process(publish, address, count, partial(os.urandom, PAYLOAD_BYTES), timeout_s=CAUGHT_UP_S)


def _caught_up(engine: Engine, messages: int) -> None:
    def there() -> bool:
        stored = read_columns(engine.home / "tables" / "messages", ["offset"]).num_rows >= messages
        events = read_columns(engine.home / "tables" / "journal", ["event"])["event"].to_pylist()
        return stored and events.count("spooled") >= messages

    wait_for(there, CAUGHT_UP_S, "the tables' catching up")


def _rebuilt(home: Path, backlog: int) -> dict[str, Any]:
    new = home.with_name(f"{home.name}-rebuilt")
    begin = time.perf_counter()
    try:
        (broker,) = rebuild(home, new)
        seconds = time.perf_counter() - begin
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return {
        "rebuilt_messages": broker.messages,
        "rebuild_s": seconds,
        "rebuild_msgs_s": broker.messages / seconds,
        "backlog": backlog,
    }
