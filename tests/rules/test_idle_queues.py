"""Queues that nobody uses cost nothing: a step reads and writes the same pages with ten queues and
with hundreds of which ten are used (docs/internals/batch-cost.md)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.outputs import Capture
from lakequeue.state import Batch, DictStore, Limits, step
from lakequeue.state.storage import CountingStore
from rules.steps import INBOX, REPLY, Steps, define, described, replies

USED, IDLE = 10, 900  # as many more events as fill whole pages
QUEUES = [f"used-{n}" for n in range(USED)]
PATTERN = {"underlying_topic": "sensor-.*", "default_publish_target": "sensor-1"}


def idle(n: int) -> c.Define:
    return define(f"idle-{n}", lease_period="30s", dead_message_queue="idle-0" if n else None)


def definitions(count: int) -> list[c.Command]:
    return [*(define(name) for name in QUEUES), *(idle(n) for n in range(count))]


def made(count: int) -> Steps:
    steps = Steps(checked=False)
    for at in range(0, USED + count, 500):
        steps.run(definitions(count)[at : at + 500])
    return steps


@pytest.fixture(scope="module")
def stores() -> dict[int, tuple[bytes, int]]:
    found = {count: made(count) for count in (0, IDLE)}
    return {count: (steps.store.dump(), steps.offsets) for count, steps in found.items()}


def begin(stores: dict[int, tuple[bytes, int]], count: int) -> Steps:
    dumped, offsets = stores[count]
    steps = Steps(DictStore.load(dumped), checked=False)
    steps.offsets = offsets
    return steps


def pages(keys: list[str]) -> Counter[str]:
    """How many of each kind: events stand in other pages of their ring where more has happened."""
    return Counter(key.partition("/")[0] for key in keys)


SUBSCRIBES = [
    c.Subscribe(queue=name, subscription=f"s-{name}", session="me", inbox=INBOX, max_backlog=5)
    for name in QUEUES
]
LIFE: list[tuple[list[c.Command], list[Any], int]] = [  # commands, publishes, ms that pass before
    ([], [(name, b"{}") for name in QUEUES], 0),
    ([*SUBSCRIBES, c.Heartbeat(session="me")], [], 0),
    ([c.Ack(queue=name, ids="1-5") for name in QUEUES], [], 0),
    ([], [], 20_000),  # the session's time is over: what it held returns
    ([c.Usage(reply=REPLY), c.Describe(queue="used-3", reply=REPLY)], [], 1),
    ([define(name) for name in QUEUES], [], 1),  # as at a start
    ([c.Tick()], [], 600_000),
]


def test_S1_a_step_touches_the_same_pages_however_many_queues_are_idle(
    stores: dict[int, tuple[bytes, int]],
) -> None:
    few, many = begin(stores, 0), begin(stores, IDLE)
    for number, (commands, publishes, ms) in enumerate(LIFE):
        seen = []
        for steps in (few, many):
            steps.now += ms
            store = CountingStore(steps.store)
            batch = Batch(steps.command_records(commands), steps.publish_records(publishes))
            step(store, batch, steps.now)
            seen.append((pages(store.reads), pages(store.writes)))
        assert seen[0] == seen[1], number


def test_Q9_a_start_gives_all_definitions_again_and_loads_no_queue(
    stores: dict[int, tuple[bytes, int]],
) -> None:
    steps = begin(stores, IDLE)
    before = dict(steps.store.pages)
    store = CountingStore(steps.store)
    step(store, Batch(steps.command_records(definitions(IDLE))), steps.now)
    assert not [key for key in store.reads if not key.startswith(("broker", "v/"))]
    assert store.writes == ["broker"]
    changed = {k for k, v in steps.store.pages.items() if before.get(k) != v}
    assert changed == {"broker"}


def test_Q9_another_definition_counts_and_so_does_the_first_after_it() -> None:
    steps = Steps()
    once, other = define(max_backlog=5), define(max_backlog=7)
    for given, most in ((once, 5), (other, 7), (once, 5), (once, 5)):
        steps.run([given])
        assert described(steps)["definition"]["max_backlog"] == most
    refused = c.Define(definition={"name": "orders", "message_type": "xml"}, reply=REPLY)
    for _ in range(2):
        (answer,) = replies(steps.run([refused]))
        assert answer.error is not None


def test_Q9_a_deleted_queue_is_defined_anew() -> None:
    steps = Steps()
    steps.run([define()])
    steps.run([c.Delete(queue="orders"), define()])
    assert described(steps)["depth"] == 0


def test_Q2_what_queues_capture_is_told_in_parts_and_no_queue_is_loaded() -> None:
    steps = Steps(limits=Limits(captures_listed=7))
    said = steps.run([define(f"q{n}") for n in range(40)] + [define("all", **PATTERN)])
    captured = {o.topic for o in said if isinstance(o, Capture)}
    texts: list[str] = []
    start: int | None = 0
    parts = 0
    while start is not None:
        store = CountingStore(steps.store)
        batch = Batch(steps.command_records([c.Captures(start=start, reply=REPLY)]))
        (answer,) = replies(step(store, batch, steps.now, limits=steps.limits))
        assert not [key for key in store.reads if key.startswith("q/")]
        texts += answer.result
        start = answer.more  # type: ignore[assignment]
        parts += 1
    assert parts > 3
    assert sorted(texts) == sorted(captured)
    steps.run([c.Delete(queue="q7")])
    (answer,) = replies(steps.run([c.Captures(reply=REPLY)]))
    assert "q7" not in answer.result
