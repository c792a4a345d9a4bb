"""Steps over a log, where it hurts: limits so small that each is crossed, mistakes planted in the
engine, queues defined again, snapshots older than the last.

As in `test_driver.py` the log decides: taken once more from nothing, in one go, it must say and
store what was said and stored on the way, whatever the split, the crashes and the replays were.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lakequeue.protocol import journal
from lakequeue.protocol.wire import headers_list
from lakequeue.replica.driver import StepPutAside
from lakequeue.state import Limits
from lakequeue.state.commands import leases
from lakequeue.state.phases import admission, delivery
from loop.memory import LIMITS as SMALL_PAGES
from loop.memory import PLACES, POINTS, Crashed, World
from model.limits import BUDGETS
from replica.test_driver import QUEUE, Operation, Walk, judge

LIMITS = {
    "tiny": replace(SMALL_PAGES, **BUDGETS), "budgets": Limits(**BUDGETS), "pages": SMALL_PAGES,
    "usual": Limits(),
}  # fmt: skip
DEFINITIONS: list[dict[str, Any]] = [
    QUEUE,
    {**QUEUE, "max_per_subscription_backlog": 1, "lease_period": "500ms"},
    {**QUEUE, "priority": "/n", "dead_message_queue": "dead"},
    {**QUEUE, "filter": "/n > 4", "redelivery_delay": "1s"},
    {**QUEUE, "max_spool_usage": "20", "reject_msg_to_sender_on_discard": "never"},
    {"name": "dead", "message_type": "json"},
    {"name": "also", "message_type": "json", "underlying_topic": "orders", "partition_key": "/n"},
]
PLANTED_MS, BOMB = 13, b'{"n": 13}'  # a delay and a payload: what the planted mistakes look for

operations = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 2), st.integers(0, 9)),
        st.tuples(st.just("plain"), st.integers(0, 9)),
        st.tuples(st.just("bomb"), st.integers(1, 2)),
        st.tuples(st.just("bad_cancel"), st.integers(0, 2), st.integers(0, 9)),
        st.tuples(st.just("subscribe"), st.integers(0, 2)),
        st.tuples(st.just("ack"), st.integers(0, 2), st.integers(0, 9)),
        st.tuples(st.just("cancel"), st.integers(0, 2), st.integers(0, 9)),
        st.tuples(st.just("define"), st.sampled_from(range(len(DEFINITIONS)))),
        st.tuples(st.just("delete"), st.sampled_from(["orders", "also", "dead"])),
        st.tuples(st.just("purge")),
        st.tuples(st.just("redrive")),
        st.tuples(st.just("wait"), st.sampled_from([-700, 1, 999, 10_000])),
        st.tuples(st.just("go"), st.integers(1, 4), st.sampled_from([1, 1_000])),
        st.tuples(st.just("go"), st.integers(1, 4), st.sampled_from([1, 1_000])),
        st.tuples(st.just("crash"), st.sampled_from(POINTS)),
        st.tuples(st.just("save")),
        st.tuples(st.just("older"), st.integers(1, 3)),
        st.tuples(st.just("lag"), st.integers(0, 3)),
        st.tuples(st.just("slow"), st.integers(0, 5)),
    ),
    max_size=80,
)


class HardWalk(Walk):
    """More that happens: see the operations."""

    def __init__(self, limits: Limits) -> None:
        self.snapshots: list[Any] = []
        super().__init__(limits)

    def step(self, most: int) -> None:
        try:
            super().step(most)
        except StepPutAside:
            self.restart()

    def restart(self) -> None:
        """Die, and come back, however often that fails: each mistake is met once."""
        for _ in range(100):
            with contextlib.suppress(Crashed, StepPutAside):
                self.driver = self.world.open()
                return
        raise AssertionError("a mistake is met again and again")

    def do_bomb(self, partition: int) -> None:
        self.sent += 1
        self.world.write(PLACES[partition], BOMB, to="orders", producer="p", seq=self.sent, reply=1)

    def do_bad_cancel(self, n: int, i: int) -> None:
        self.world.command(
            command="cancel", queue="orders", subscription=f"s{n}", ids=str(1 + i),
            delay_ms=PLANTED_MS,
        )  # fmt: skip

    def do_define(self, n: int) -> None:
        self.world.command(command="define", definition=DEFINITIONS[n])

    def do_delete(self, queue: str) -> None:
        self.world.command(command="delete", queue=queue)

    def do_purge(self) -> None:
        self.world.command(command="purge", queue="orders")

    def do_redrive(self) -> None:
        self.world.command(command="redrive", queue="dead")

    def do_save(self) -> None:
        super().do_save()
        self.snapshots.append(copy.deepcopy(self.world.saved))

    def do_older(self, n: int) -> None:
        """A crash, and Spark finds a state that is n snapshots older than the newest."""
        if len(self.snapshots) >= n:
            del self.snapshots[len(self.snapshots) - n + 1 :]
            self.world.saved = copy.deepcopy(self.snapshots[-1])
        self.restart()


@contextlib.contextmanager
def mistakes() -> Iterator[None]:
    """Mistakes of ours. After it has changed something, a message with the planted payload raises,
    and a cancel with the planted delay; and so does serving the queue `orders` while seven messages
    of it are there, which stops that queue."""
    delay, match, serve = leases._delay, admission.match, delivery.choose_messages

    def failing_delay(queue: Any, row: Any, asked: int | None) -> Any:
        if asked == PLANTED_MS:
            queue.header.depth += 7
            raise ZeroDivisionError("planted")
        return delay(queue, row, asked)

    def failing_match(queue: Any, payload: bytes, *more: Any) -> Any:
        if payload == BOMB:
            queue.header.depth += 7
            raise OverflowError("planted")
        return match(queue, payload, *more)

    def failing_serve(broker: Any, queue: Any, *more: Any) -> Any:
        if queue.header.depth == 7 and queue.definition.name == "orders":
            queue.header.depth += 3
            raise RuntimeError("planted")
        return serve(broker, queue, *more)

    with (
        mock.patch.object(leases, "_delay", failing_delay),
        mock.patch.object(admission, "match", failing_match),
        mock.patch.object(delivery, "choose_messages", failing_serve),
    ):
        yield


def each_record_is_taken_once(world: World) -> None:
    """What the steps took of a partition is all of it, one after the other, nothing twice."""
    due = dict.fromkeys(PLACES, 0)
    last = {record.step: record for _, record in world.logged()}  # a mistake is logged again
    for record in last.values():
        for r in record.ranges:
            assert r.first == due[r.topic, r.partition], f"step {record.step}: {r}"
            assert r.count == r.last - r.first + 1
            due[r.topic, r.partition] = r.last + 1


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(LIMITS)), operations)
def test_any_split_with_any_limits_and_mistakes(limits: str, walk: list[Operation]) -> None:
    with mistakes():
        one = HardWalk(LIMITS[limits])
        one.go(walk)
        judge(one)
        each_record_is_taken_once(one.world)


def said(world: World, kind: str) -> list[Any]:
    return [r for _, records in world.said for r in records if r.topic.endswith(kind)]


@pytest.mark.parametrize("limits", sorted(LIMITS))
def test_the_walk_does_what_it_is_for(limits: str) -> None:
    """Each operation means something: mistakes happen and are refused, a queue is stopped and
    goes on when it is defined again, small limits make more steps, older snapshots more replays."""
    with mistakes():
        walk = HardWalk(LIMITS[limits])
        walk.go([("subscribe", 0), ("go", 4, 1), ("save",)])
        for n in range(6):
            walk.go([("publish", 1, n), ("go", 1, 1), ("save",)])
        walk.go([("bomb", 1), ("go", 4, 1), ("bad_cancel", 0, 0), ("go", 4, 1)])
        walk.go([("crash", "half sent"), ("publish", 2, 6), ("go", 4, 1), ("go", 4, 1)])
        walk.go([("older", 3), ("ack", 0, 1), ("define", 5), ("define", 2), ("define", 6)])
        walk.go([("go", 4, 1), ("plain", 3), ("go", 4, 1_000), ("delete", "also")])
        walk.go([("go", 4, 1_000) for _ in range(20)])
        judge(walk)
    why = [dict(headers_list(r.headers))["lq-error"] for r in said(walk.world, ".rejected")]
    planted = {b"it failed: OverflowError: planted", b"it failed: ZeroDivisionError: planted"}
    assert planted <= set(why), why
    events = {
        event
        for record in said(walk.world, ".journal")
        for event in journal.decode(record.value)["event"].to_pylist()
    }
    due = {"queue_faulted", "acknowledged", "expired", "dead_lettered", "deleted"}
    assert due <= events, due - events
    assert walk.world.replayed > 3
    assert len(said(walk.world, ".deliveries")) > 3
