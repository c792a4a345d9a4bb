"""The cost of cold messages' deadlines follows the messages that are due, also where they come one
by one."""

import pytest
from lakequeue.state import Batch, DictStore, Limits, step
from lakequeue.state.limits import PASSED_OVER
from lakequeue.state.storage.calendar import Calendar
from rules.steps import define, described
from state.counting_store import CountingStore

from .twin_steps import TwinSteps

SMALL = Limits(live_rows=256, segment_rows=64)
MESSAGES = 3_000
SEGMENTS = MESSAGES // SMALL.segment_rows


@pytest.mark.parametrize("what", ["ttl_ms", "deliver_at"])
def test_L12_X1_each_segment_is_read_once_for_deadlines_one_by_one(what: str) -> None:
    steps = TwinSteps(limits=SMALL, checked=False, twins=1)
    store = CountingStore(DictStore())
    broker = steps.load(store)
    steps.brokers = [broker]
    steps.run([define()])
    first = 60_000 + (steps.now if what == "deliver_at" else 0)
    steps.run(publishes=[("orders", b"{}", {what: first + n}) for n in range(MESSAGES)])
    store.reset()
    steps.now += 60_000
    for _ in range(MESSAGES):
        step(broker, Batch(), steps.now)
        steps.now += 1
    seen = described(steps)
    assert (seen["ready"], seen["delayed"]) == (0 if what == "ttl_ms" else MESSAGES, 0)
    for pages in (store.reads, store.writes):
        assert sum(key[0] in "cd" for key in pages) <= 4 * SEGMENTS


def test_X1_no_step_reads_very_many_segments_for_a_few_due_rows() -> None:
    """One message of each segment expires at the same time, as with lives at random."""
    limits = Limits(live_rows=256, segment_rows=64, due_rows=64, alone=1)
    steps = TwinSteps(limits=limits, checked=False, twins=1)
    store = CountingStore(DictStore())
    steps.brokers = [broker] = [steps.load(store)]
    steps.run([define()])
    lives = [60_000 + n % limits.segment_rows for n in range(MESSAGES)]
    steps.run(publishes=[("orders", b"{}", {"ttl_ms": ms}) for ms in lives])
    steps.now += 60_000
    before = broker.queue(1).header.depth  # type: ignore[union-attr]
    for _ in range(SEGMENTS):
        store.reset()
        step(broker, Batch(), steps.now)
        read = sum(key[0] in "cd" for key in store.reads)
        assert read <= 1 + limits.due_rows // (limits.segment_rows // PASSED_OVER)
    assert before - described(steps)["depth"] == lives.count(60_000)


def test_X1_a_calendar_does_not_grow_with_the_steps_until_a_far_deadline() -> None:
    """A busy queue is due at once again and again, and its next message expires in a day."""
    at = [0]
    calendar = Calendar[int](lambda _: at[0])
    for _ in range(1_000):
        for at[0] in (0, 86_400_000):
            calendar.watch(1, at[0])
            calendar.take(0)
    assert len(calendar._heap) < 200
    assert calendar.next() == 86_400_000
