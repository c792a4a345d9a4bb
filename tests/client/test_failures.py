"""C3, C4: redeliveries in each mode, at each point of failure. See `failures.py`."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lakequeue
import pytest
from client.failures import DEADLY, MODES, PAUSED, POINTS, cell, definition, on_memory, queue_of
from client.stub_engine import StubEngine
from client.threaded import wait_for

HEARTBEATS_S = 8.0  # a slow machine may delay a heartbeat by five seconds


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("point", POINTS)
def test_C3_C4_nothing_is_lost_unless_the_mode_allows_it(mode: str, point: str) -> None:
    """C4: auto has acknowledged after receive(), as have pre_ack and no_ack; client acknowledges
    all messages before the one it names. Otherwise a failure loses nothing."""
    again, lost, kept = on_memory(mode, point)
    gives_up = mode in ("pre_ack", "no_ack")
    if point == "received":
        gives_up = gives_up or mode in ("auto", "dups_ok")
    if point == "raised":
        gives_up = gives_up or mode == "client"
    assert not lost or gives_up, cell(again, lost, kept)
    assert not (again and mode in ("pre_ack", "no_ack")), cell(again, lost, kept)
    if point in ("during", "away") and not gives_up:
        assert {"2", "3"} <= again


@pytest.fixture(scope="module")
def stub(kafka: Any) -> Iterator[StubEngine]:
    """An engine with a queue for each mode and point; each queue has its three messages."""
    queues = [definition(mode, point) for mode in MODES for point in (*DEADLY, *PAUSED)]
    system = {"heartbeat_timeout": f"{HEARTBEATS_S:g}s"}
    with StubEngine(kafka.bootstrap_servers, {"queues": queues, "system": system}) as engine:
        yield engine


@pytest.fixture
def connection(stub: StubEngine) -> Iterator[Any]:
    with lakequeue.connect(f"kafka://{stub.bootstrap}", client_name="heir") as connection:
        yield connection


def start(stub: StubEngine, connection: Any, kind: str) -> subprocess.Popen[str]:
    """Start the victim, and wait until it has reached its points."""
    points = DEADLY if kind == "deadly" else PAUSED
    producer = connection.producer()
    for point in points:
        for mode in MODES:
            for name in "123":
                producer.send_async(queue_of(mode, point), name)
    producer.flush(30)
    script = str(Path(__file__).with_name("failing_process.py"))
    victim = subprocess.Popen(
        [sys.executable, script, stub.bootstrap, kind],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert victim.stdout.readline() == "ready\n"
    return victim


def received(connection: Any, points: tuple[str, ...]) -> dict[str, set[str]]:
    """The messages of another consumer in each queue: all expected ones, and others that follow at
    once."""
    wanted = expected(points)
    found: dict[str, set[str]] = {name: set() for name in wanted}
    heirs = {
        queue_of(mode, point): connection.consumer(
            queue_of(mode, point), ack_mode="individual", max_backlog=3
        )
        for point in points for mode in MODES
    }  # fmt: skip

    def take() -> bool:
        for name, heir in heirs.items():
            found[name] |= {m.payload.decode() for m in heir.receive_many(3, timeout=0)}
        return all(found[name] >= wanted[name] for name in wanted)

    with contextlib.suppress(AssertionError):  # the caller compares
        wait_for(take)
    time.sleep(0.5)
    take()
    return found


def expected(points: tuple[str, ...]) -> dict[str, set[str]]:
    return {queue_of(m, p): on_memory(m, p)[0] for p in points for m in MODES}


@pytest.mark.job
def test_C3_C4_a_process_is_killed(stub: StubEngine, connection: Any) -> None:
    victim, admin = start(stub, connection, "deadly"), connection.admin()
    kept = {name: len(again) for name, again in expected(DEADLY).items()}
    wait_for(lambda: all(admin.describe(name)["depth"] == n for name, n in kept.items()))
    victim.kill()
    victim.wait()
    wait_for(lambda: not any(q["consumers"] for q in admin.queues()))
    assert received(connection, DEADLY) == expected(DEADLY)


@pytest.mark.job
def test_C3_C4_a_connection_is_lost(stub: StubEngine, connection: Any) -> None:
    """Silence shorter than the engine's patience changes nothing; after a longer one held messages
    return, and the client then subscribes again by itself."""
    victim = start(stub, connection, "paused")
    assert victim.stdin is not None
    assert victim.stdout is not None
    admin = connection.admin()
    victim.send_signal(signal.SIGSTOP)
    time.sleep(HEARTBEATS_S / 5)
    victim.send_signal(signal.SIGCONT)
    victim.stdin.write("\n")  # the callbacks of "back" return
    victim.stdin.flush()
    for mode in MODES:
        left = {"dups_ok": 1}.get(mode, 0)  # n=2: the third is not acknowledged yet
        queue = queue_of(mode, "back")
        wait_for(lambda q=queue, n=left: admin.describe(q)["depth"] == n)
        assert admin.describe(queue)["redelivered"] == 0, mode
    victim.send_signal(signal.SIGSTOP)
    wait_for(lambda: not any(q["consumers"] for q in admin.queues()))
    again = received(connection, ("away",))
    victim.send_signal(signal.SIGCONT)
    assert again == expected(("away",))
    wait_for(lambda: len(admin.describe("auto-away")["consumers"]) == 2)
    victim.stdin.write("\n\n")  # the callbacks of "away" return, and the process ends
    victim.stdin.flush()
    watchdog = threading.Timer(60, victim.kill)  # a failure instead of a hanging test
    watchdog.start()
    handled = json.loads(victim.stdout.readline())
    assert victim.wait(60) == 0
    watchdog.cancel()
    for mode in ("pre_ack", "no_ack"):
        assert handled[queue_of(mode, "away")] == ["1", "2", "3"]
