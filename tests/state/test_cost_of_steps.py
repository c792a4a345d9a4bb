"""The cost of a step follows what changes, however deep the queue is (R5), and commands about many
messages take many steps (L13, R6). The tests count pages and rows, never time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.ids import format_ranges
from lakequeue.protocol.outputs import Deadline, Deliveries, Journal, Reply
from lakequeue.state import Batch, DictStore, Limits
from lakequeue.state.limits import PASSED_OVER, divisor
from lakequeue.state.rules import dead
from rules.steps import REPLY, Steps, define, delivered, described, subscribe
from state.counting_store import CountingStore

# Smaller than the real limits in proportion to the number of messages: sixty segments.
SMALL = Limits(
    live_rows=256, segment_rows=64, looks=640, merge_rows=128, block_bytes=2_000, command_rows=300,
    bulk_rows=300, due_rows=300, beside=1, browse_rows=640, browse_pages=20,
)  # fmt: skip
SHALLOW, DEEP = 1_000, 4_000  # in both nearly everything is cold
PAGES_MAX = 30


def filled(depth: int, limits: Limits = SMALL, **keys: Any) -> Steps:
    steps = Steps(CountingStore(DictStore()), checked=False, limits=limits)  # type: ignore[arg-type]
    usual = {"max_per_subscription_backlog": 5_000, "dead_message_queue": "dead"}
    steps.run([define(**usual | keys), define("dead"), define("other", **usual)])
    for at in range(0, depth, 100):
        bodies = [b'{"p":%d}' % (n % 10) for n in range(at, at + 100)]
        steps.run(publishes=[("orders", body) for body in bodies])
    steps.broker.mark()
    return steps


def pages(steps: Steps) -> CountingStore:
    store = steps.broker.store
    assert isinstance(store, CountingStore)
    return store


def changed(out: list[Any], queue: str = "orders") -> int:
    """Rows of the journal."""
    segments = [s for o in out if isinstance(o, Journal) for s in o.segments]
    return sum(len(s.ids) for s in segments if s.queue == queue)


def goes_on(steps: Steps, out: list[Any]) -> bool:
    """Whether another step is requested at once."""
    return 0 < [o.at for o in out if isinstance(o, Deadline)][-1] <= steps.now


def each_step(
    steps: Steps, *commands: c.Command, beside: tuple[tuple[str, bytes], ...] = ()
) -> Iterator[list[Any]]:
    """Each step's outputs, for commands and their remaining work. beside: further inputs of each
    step."""
    batch = Batch(steps.command_records(list(commands)))
    for _ in range(2_000):
        out = steps.step_alone(batch)
        yield out
        if not goes_on(steps, out):
            return
        batch = Batch(publishes=steps.publish_records(list(beside)))
    raise AssertionError("it does not come to an end")


def segments_of(out: list[Any], event: str) -> list[Any]:
    segments = [s for o in out if isinstance(o, Journal) for s in o.segments]
    return [s for s in segments if s.event == event]


OPERATIONS: dict[str, tuple[list[c.Command], list[Any]]] = {
    "publish": ([], [("orders", b"{}")] * 10),
    "subscribe and deliver": ([subscribe("a", 10)], []),
    "acknowledge": ([c.Ack(queue="orders", ids="1-10")], []),
    "acknowledge in the middle": ([c.Ack(queue="orders", ids="200-202")], []),
    "acknowledge all of a queue that has none": ([c.Ack(queue="other", ids="1-1000000")], []),
    "describe": ([c.Describe(queue="orders", reply=REPLY)], []),
    "define again": ([define(priority="/@priority")], []),
}


@pytest.mark.parametrize("keys", [{}, {"target_queue_depth": 100}, {"priority": "/p"}], ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_R5_a_steps_cost_does_not_grow_with_depth(
    name: str, keys: dict[str, Any], small_active_sets: None
) -> None:
    commands, publishes = OPERATIONS[name]
    cost, marked = [], []
    for depth in (SHALLOW, DEEP):
        steps = filled(depth, **keys)
        store = pages(steps)
        store.reset()
        batch = Batch(steps.command_records(commands), steps.publish_records(publishes))
        steps.step_alone(batch)
        cost.append(len(store.reads) + len(store.writes))
        store.reset()
        steps.broker.mark()
        marked.append(len(store.reads) + len(store.writes))
    assert cost[1] <= min(cost[0] + 6, PAGES_MAX), f"{cost} pages"
    assert marked[1] <= min(marked[0] + 6, PAGES_MAX), f"{marked} pages at the mark"


@pytest.mark.parametrize(
    "command",
    [
        c.Purge(queue="orders"),
        c.Purge(queue="orders", where="/p >= 0"),
        c.Ack(queue="orders", ids=f"1-{DEEP}"),
        c.Ack(queue="orders", where="@key IS NULL"),
        c.Delete(queue="orders"),
    ],
    ids=["purge", "purge where", "ack", "ack where", "delete"],
)
def test_L13_R6_no_step_changes_more_rows_than_its_limit(command: c.Command) -> None:
    """The queue beside it is served in each of these steps."""
    steps = filled(DEEP)
    steps.run([subscribe("b", 500, queue="other")])
    rows: list[int] = []
    for out in each_step(steps, command, beside=(("other", b"{}"),)):
        if rows:
            assert [len(o.ids) for o in out if isinstance(o, Deliveries)] == [1]
        rows.append(changed(out))
    assert sum(rows) == DEEP
    assert max(rows) <= 300 + 64, rows  # a segment may be finished


def test_L8_L13_ids_far_apart_read_no_more_segments_than_the_budget_allows() -> None:
    steps = filled(DEEP)
    store = pages(steps)
    far_apart = ",".join(str(n) for n in range(400, DEEP, 64))
    reads: list[int] = []
    store.reset()
    for _ in each_step(steps, c.Ack(queue="orders", ids=far_apart)):
        reads.append(len(store.reads))
        store.reset()
    assert len(reads) > 1
    assert max(reads) <= SMALL.command_rows * PASSED_OVER // SMALL.segment_rows + 3, reads


def test_L13_R6_bulk_work_does_not_delay_acks() -> None:
    """A purge continues in small parts; a larger ack is completed at once."""
    steps = filled(1_000, Limits(bulk_rows=160, segment_rows=8, live_rows=64))
    steps.run([subscribe("b", 500, queue="other")])
    held = delivered(steps.run(publishes=[("other", b"{}")] * 500))
    acks = c.Ack(queue="other", subscription="b", ids=format_ranges(held))
    for command in (c.Purge(queue="orders"), acks):
        out = steps.step_alone(Batch(steps.command_records([command])))
        assert 0 < changed(out) <= 160 // 16 + 8
        assert goes_on(steps, out)
    assert changed(out, "other") == 500


def test_L13_R6_each_queue_gets_its_share_of_bulk_work() -> None:
    """Also where there are more queues than rows in a step."""
    steps = Steps(limits=Limits(bulk_rows=3, command_rows=2), checked=False)
    names = [f"q{n}" for n in range(8)]
    steps.run([define(name) for name in names], [(name, b"{}") for name in names * 3])
    purged: list[str] = []
    for out in each_step(steps, *(c.Purge(queue=name) for name in names)):
        purged += [s.queue for s in segments_of(out, "purged") for _ in s.ids]
    assert sorted(purged) == sorted(names * 3)
    assert len(set(purged[3:10])) == 7, purged  # the first began at once, and is finished


def test_X1_X5_X6_mass_expiry_and_redrive_take_many_steps() -> None:
    steps = filled(DEEP, expiration="1s")

    def moved(queue: str, *commands: c.Command) -> list[int]:
        spooled = [segments_of(out, "spooled") for out in each_step(steps, *commands)]
        return [sum(len(s.ids) for s in some if s.queue == queue) for some in spooled]

    steps.now += 1_000
    expired = moved("dead")
    assert (sum(expired), max(expired) <= 300 + 64) == (DEEP, True), expired
    back = moved("orders", c.Redrive(queue="dead"))
    assert (sum(back), max(back) <= 300 + 64) == (DEEP, True), back


def lines(steps: Steps, batch: Batch) -> tuple[int, list[Any]]:
    """The number of Python lines that a step runs, and its outputs."""
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        out = steps.step_alone(batch)
    finally:
        sys.settrace(before)
    return count, out


def test_R5_an_active_set_does_not_cost_a_look_at_every_live_row(small_active_sets: None) -> None:
    cost = []
    for keys in ({}, {"target_queue_depth": 1_000}):
        steps = Steps(checked=False)
        steps.run([define(max_per_subscription_backlog=50, **keys)], [("orders", b"{}")] * 2_000)
        steps.run([subscribe("a", 50)])
        ack = c.Ack(queue="orders", subscription="a", ids="1-3")
        count, out = lines(steps, Batch(steps.command_records([ack])))
        assert delivered(out) == [51, 52, 53]
        cost.append(count)
    assert cost[1] < cost[0] + 100


@pytest.mark.parametrize("more", [{}, {"filter": "/p = 1"}, {"transport_acks": True}], ids=str)
@pytest.mark.parametrize("model", ["fast", "round-robin", "proportional"])
def test_F1_F2_F3_a_steps_cost_does_not_grow_with_idle_consumers(
    model: str, more: dict[str, Any]
) -> None:
    cost, message = [], ("orders", b'{"p": 1}')
    for consumers in (10, 300):
        steps = Steps(checked=False)
        keys = {"fairness_model": model, "max_per_subscription_backlog": 5}
        flows = [subscribe(f"s{n:03}", 5, **more) for n in range(consumers)]
        steps.run([define(**keys), *flows, subscribe("all", 0)])
        for _ in range(3):
            took, out = lines(steps, Batch(publishes=steps.publish_records([message])))
            (sent,) = (o for o in out if isinstance(o, Deliveries))
            ack = c.Ack(queue="orders", subscription=sent.subscription, ids=str(sent.ids[0]))
            cost_of_ack, _ = lines(steps, Batch(steps.command_records([ack])))
        cost.append(took + cost_of_ack)
    assert cost[1] <= cost[0] + 10, f"{cost} lines"


def ranges(first: int, last: int, width: int = 0) -> str:
    """Every second id, each to so many ids further on."""
    return ",".join(f"{n}-{n + width}" if width else f"{n}" for n in range(first, last, 2))


def sequences(numbers: range) -> list[Any]:
    return [("orders", b"{}", {"producer": "p", "seq": n}) for n in numbers]


# By name, of n: messages published before, ids acknowledged before, and the step that is counted.
OF_MANY: dict[str, Callable[[int], tuple[list[Any], str, list[c.Command], list[Any]]]] = {
    "P1 gaps in a producer's sequences":
        lambda n: (sequences(range(2, 2 * n, 2)), "", [], sequences(range(2 * n - 1, 0, -2))),
    "R6 ranges of a purge":
        lambda n: ([("orders", b"{}")] * n, "",
                   [c.Purge(queue="orders", ids=ranges(1, n * 10))], []),
    "L9 early acks":
        lambda n: ([], ranges(10 * n, 12 * n), [], [("orders", b"{}")] * n),
    "L8 L13 ranges that reach over ids of another queue":
        lambda n: ([("other", b"{}")] * n, "",
                   [c.Ack(queue="orders", subscription="a", ids=ranges(1, 2 * n, 10**15))], []),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_MANY)
def test_P1_R6_L9_L8_a_steps_cost_is_a_sum_and_no_product(name: str) -> None:
    """Of messages and gaps, or of messages and ranges."""
    cost, limits = [], replace(SMALL, command_rows=9_000, bulk_rows=9_000)
    for n in (300, 600):
        before, acked, commands, publishes = OF_MANY[name](n)
        steps = Steps(checked=False, limits=limits)
        wide = {"max_per_subscription_backlog": 5_000}
        steps.run([define(**wide), define("other"), subscribe("a", 0)], before)
        steps.run([c.Ack(queue="orders", subscription="a", ids=acked)] if acked else [])
        records = steps.command_records(commands), steps.publish_records(publishes)
        cost.append(lines(steps, Batch(*records))[0])
    assert cost[1] <= 2.5 * cost[0], f"{cost} lines"


def test_L8_ids_that_are_gone_cost_nothing_one_by_one() -> None:
    steps, cost = Steps(checked=False), []
    steps.run([define()], [("orders", b"{}")] * 3_000)
    for ids in ("1-3000", "1-1500", "1-3000"):
        ack = c.Ack(queue="orders", ids=ids)
        cost.append(lines(steps, Batch(steps.command_records([ack])))[0])
    assert described(steps)["ack_ignored"] == 4_500
    assert cost[2] <= cost[1] + 10, f"{cost} lines"


@pytest.mark.parametrize("keys", [{}, {"priority": "/p"}], ids=str)
def test_R6_describing_a_queue_again_does_not_look_at_every_message(keys: dict[str, Any]) -> None:
    cost, command = [], c.Describe(queue="orders", reply=REPLY)
    for depth in (100, 3_000):
        steps = Steps(checked=False)
        steps.run([define(max_per_subscription_backlog=50, **keys), subscribe("a", 50)])
        steps.run([command], [("orders", b"{}")] * depth)
        steps.run([command, c.Ack(queue="orders", subscription="a", ids="1-3")])
        cost.append(lines(steps, Batch(steps.command_records([command])))[0])
    assert cost[1] <= cost[0] + 10, f"{cost} lines"


# How messages die, by name: keys of the queue, and the command.
IDS = {"queue": "orders", "subscription": "a", "ids": "1-40"}
DEATHS: dict[str, tuple[dict[str, Any], list[c.Command]]] = {
    "expired": ({"expiration": "1s"}, []),
    "rejected": ({}, [c.Reject(**IDS)]),
    "canceled": ({"max_cancels": 1}, [c.Cancel(**IDS)]),
    "returned": ({"max_deliveries": 1}, [c.Unsubscribe(queue="orders", subscription="a")]),
    "lease ended": ({"max_deliveries": 1, "lease_period": "1s"}, []),
    "cannot be sent":
        ({}, [c.Undeliverable(queue="orders", ids="1-40", reason="message_too_large", why="",
                              topic="t")]),
}  # fmt: skip


@pytest.mark.parametrize("order", [{"partition_key": "/n"}, {"filter": "/n = 1"}], ids=str)
@pytest.mark.parametrize("death", DEATHS)
def test_X5_no_step_reads_more_payloads_of_dead_messages_than_its_budget(
    death: str, order: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The expressions of the dead message queue read them. Its filter does not apply."""
    read: list[int] = []
    evaluate = dead.match

    def counting(queue: Any, payload: bytes, *rest: Any, **more: Any) -> Any:
        read.append(len(payload))
        return evaluate(queue, payload, *rest, **more)

    monkeypatch.setattr(dead, "match", counting)
    steps = Steps(checked=False, limits=Limits(bulk_bytes=1_000, beside=1))
    keys, commands = DEATHS[death]
    wide = {"max_per_subscription_backlog": 50, "dead_message_queue": "dead"}
    steps.run([define("dead", **order), define(**wide, **keys), subscribe("a", 50)])
    body = b'{"n": 1}'.ljust(100)
    steps.run(publishes=[("orders", body)] * 40)
    steps.now += 1_000
    for _ in each_step(steps, *commands):
        assert sum(read) <= 1_100
        steps.check()
        if "filter" in order:
            assert not read
        read.clear()
    assert described(steps, "dead")["depth"] == 40


def test_steps_create_no_reference_cycles() -> None:
    """So a worker may run the garbage collector rarely (`collect_garbage_rarely`)."""
    steps = Steps(checked=False)
    steps.run([define(), subscribe("s")])
    gc.collect()
    gc.disable()
    try:
        for _ in range(30):
            sent = steps.run(publishes=[("orders", b"{}"), ("nobody", b"{}"), ("orders", b"?")])
            steps.run([c.Ack(queue="orders", ids=str(i)) for i in (*delivered(sent), "x")])
        assert gc.collect() < 30
    finally:
        gc.enable()


# ---------------------------------------------------------------- browse


def browse(steps: Steps, **fields: Any) -> tuple[list[dict[str, Any]], str | None, int]:
    """One answer, the start of the next one, and the number of pages read."""
    store = pages(steps)
    store.reset()
    command = c.Browse(queue="orders", reply=REPLY, **fields)
    (answer,) = (
        o for o in steps.step_alone(Batch(steps.command_records([command]))) if isinstance(o, Reply)
    )
    assert answer.error is None, answer.error
    return answer.result, answer.more, len(store.reads)


@pytest.mark.parametrize("keys", [{}, {"priority": "/p"}], ids=str)
def test_R6_the_cost_of_a_browse_follows_its_answer(keys: dict[str, Any]) -> None:
    """The parts of a long answer make the whole, and no message is in two of them."""
    steps = filled(DEEP, **keys)
    steps.run([subscribe("a", 100)])
    rows, _, reads = browse(steps, limit=20)
    assert len(rows) == 20
    assert reads <= PAGES_MAX, f"{reads} pages read"
    found: list[str] = []
    start: str | None = None
    parts = 0
    while len(found) < DEEP:
        rows, start, reads = browse(steps, limit=DEEP - len(found), start=start)
        # a block has a page of the table too
        assert reads <= 2 * SMALL.browse_pages + PAGES_MAX, f"{reads} pages read"
        found += [row["id"] for row in rows]
        parts += 1
        assert start is not None or len(found) == DEEP
    assert len(set(found)) == DEEP
    assert parts > 3


@pytest.mark.parametrize(
    "fields", [{"state": "delayed"}, {"where": "/p = 77"}, {"state": "delayed", "where": "/p = 0"}]
)
def test_R6_rows_skipped_by_a_browse_have_a_budget(fields: dict[str, Any]) -> None:
    steps = filled(DEEP)
    rows, more, reads = browse(steps, limit=20, **fields)
    assert rows == []
    assert more is not None or fields.get("state"), "no message has this state: no search"
    assert reads <= SMALL.browse_pages + PAGES_MAX


def test_L13_a_small_step_does_little_bulk_work() -> None:
    """A large step does more, so that messages can leave as fast as they arrive."""
    limits = Limits()
    rows = [limits.due_rows // divisor(limits, n) for n in (0, 1, 7, 20, 60, 125, 5_000)]
    assert rows == [250, 125, 125, 333, 1_000, 2_000, 2_000]
    assert all(rows[n] >= 8 * records for n, records in enumerate((0, 1, 7, 20, 60, 125)))
    steps = Steps(limits=limits)
    steps.step(Batch(steps.command_records([define()])))
    assert steps.broker.bulk_budget.rows == 125


@pytest.mark.parametrize(
    "command",
    [
        c.Purge(queue="orders", where="/p >= 0"),
        c.Ack(queue="orders", where="/p >= 0"),
        subscribe("a", 10, filter="/p = 77"),
    ],
    ids=["purge where", "ack where", "filter"],
)
def test_R6_L13_each_block_read_counts_against_the_budget(command: c.Command) -> None:
    """In order of priority each examined message may be in another block."""
    limits = replace(SMALL, block_bytes=40, blocks_cached=2)
    steps = filled(DEEP, limits, priority="/p")
    store = pages(steps)
    store.reset()
    reads = []
    for _ in each_step(steps, command):
        reads.append(len(store.reads))
        store.reset()
    if isinstance(command, c.Subscribe):  # which examines a segment as a whole
        at_most = limits.looks // limits.block_rows + limits.segment_rows + PAGES_MAX
    else:
        at_most = limits.bulk_rows // limits.block_rows + PAGES_MAX
    assert sum(reads) > 4 * at_most, "there is more than one step may read"
    assert max(reads) <= at_most, max(reads)
