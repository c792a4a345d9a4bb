"""The cost of a step where the cold part is full of keys (O4) follows what changes."""

import random
from collections.abc import Callable

import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.outputs import Deliveries
from lakequeue.state import Batch, DictStore, Limits, step
from lakequeue.state.queue.queue import Queue
from rules.steps import Steps, define, delivered, subscribe
from state.counting_store import CountingStore

from .twin_steps import TwinSteps

# Smaller than the real limits in proportion to the number of messages: fifty segments.
SMALL = Limits(live_rows=512, segment_rows=64, looks=1_280, merge_rows=128)
DEPTH = 3_200
KEYS: dict[str, Callable[[int, random.Random], int]] = {
    "one key": lambda n, r: 1,
    "one key, each fiftieth another": lambda n, r: 1 if n % 50 else n,
    "a third as many keys as messages": lambda n, r: n % (DEPTH // 3),
    "as many, at random": lambda n, r: r.randrange(DEPTH // 3),
    "a busy key among them": lambda n, r: r.choice((1, r.randrange(DEPTH))),
    "key after key": lambda n, r: n // 200,
}


def filled(key: Callable[[int, random.Random], int], **definition: object) -> TwinSteps:
    r = random.Random(0)
    steps = TwinSteps(limits=SMALL, checked=False, twins=1)
    steps.brokers = [steps.load(CountingStore(DictStore()))]
    steps.run([define(partition_key="/k", max_per_subscription_backlog=40, **definition)])
    bodies = [b'{"k":%d,"p":%d}' % (key(n, r), r.randrange(9)) for n in range(DEPTH)]
    for at in range(0, DEPTH, 800):
        steps.run(publishes=[("orders", body) for body in bodies[at : at + 800]])
    return steps


@pytest.mark.parametrize(("priority", "text"), [(None, None), ("/p", "/k <> 7")])
@pytest.mark.parametrize("name", KEYS)
def test_O4_the_cost_of_a_step_follows_what_changes(
    name: str, priority: str | None, text: str | None
) -> None:
    steps = filled(KEYS[name], priority=priority)
    held = delivered(steps.run([subscribe("a", 40, filter=text)]))
    (store,) = (broker.store for broker in steps.brokers)
    assert isinstance(store, CountingStore)
    store.reset()
    acknowledged = 0
    while acknowledged < 600 and held:
        number = held.pop(0)
        held += delivered(steps.run([c.Ack(queue="orders", subscription="a", ids=str(number))]))
        acknowledged += 1
    assert acknowledged == 600
    pages = [key for key in (*store.reads, *store.writes) if key.startswith("c/")]
    assert len(pages) < 300  # each segment a few times, not in each step


def test_O4_other_keys_are_delivered_while_one_is_busy() -> None:
    """The few deliverable messages are found behind all that wait, in as many steps as the budget
    requires."""
    steps = filled(lambda n, r: 1 if n < DEPTH - 5 else n)
    batch = Batch(steps.command_records([subscribe("a", 40)]))
    found: list[int] = []
    for _ in range(DEPTH // SMALL.looks + 2):
        out = step(steps.brokers[0], batch, steps.now)
        found += [number for o in out if isinstance(o, Deliveries) for number in o.ids]
        batch = Batch()
    assert found == [1, *range(DEPTH - 4, DEPTH + 1)]
    assert not delivered(steps.run(publishes=[("orders", b'{"k":1}')]))
    assert delivered(steps.run([c.Ack(queue="orders", subscription="a", ids="1")])) == [2]


def test_O4_R5_rows_that_have_to_stay_live_are_looked_at_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A delayed message keeps its key's turn, so its row stays live. A million of them must not be
    looked at in every step that adds one."""
    spills: list[int] = []
    spill = Queue.spill
    monkeypatch.setattr(Queue, "spill", lambda q, keep: (spills.append(keep), spill(q, keep)))
    steps = Steps(limits=SMALL, checked=False)
    steps.run([define(partition_key="/k")])
    message = ("orders", b'{"k":1}', {"deliver_at": steps.now + 9_000})
    steps.run(publishes=[message] * 1_000)
    spills.clear()
    for _ in range(100):
        steps.run(publishes=[message])
    assert len(spills) < 2
    steps.run([c.Purge(queue="orders")])
    steps.run(publishes=[("orders", b"{}")] * 1_000)
    assert len(steps.broker.queue(1).live) <= SMALL.live_rows  # type: ignore[union-attr]


def test_O4_F5_a_filter_forgets_the_keys_of_messages_that_others_received() -> None:
    steps = Steps(limits=Limits(live_rows=16, segment_rows=8))
    steps.run([define(partition_key="/k", max_per_subscription_backlog=99)])
    steps.run([subscribe("none", filter="/k < 0")])
    sizes = []
    for turn in range(5):
        bodies = [b'{"k":%d}' % (100 * turn + n) for n in range(100)]
        steps.run(publishes=[("orders", body) for body in bodies])
        held = delivered(steps.run([subscribe(f"s{turn}", 99)]))
        steps.run([c.Ack(queue="orders", ids=f"{held[0]}-{held[-1]}")])
        steps.run([c.Purge(queue="orders"), c.Unsubscribe(queue="orders", subscription=f"s{turn}")])
        sizes.append(len(steps.marked()["q/1"]))
    assert max(sizes[2:]) < 2 * sizes[0]
