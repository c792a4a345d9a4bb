"""Whether messages are live or cold makes no difference to a queue's behaviour (R5, S12)."""

import random
from typing import Any

import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.outputs import Deliveries
from lakequeue.state import Limits
from rules.steps import REPLY, define, delivered, described, replies, subscribe

from .twin_steps import LIMITS, TwinSteps

ORDERED = [b'{"p":%d,"key":"%d"}' % (n * 7 % 4, n % 3) for n in range(24)]
pytestmark = pytest.mark.usefixtures("small_active_sets")


def steps_of(**definition: Any) -> TwinSteps:
    """Limits at which nearly everything is cold."""
    steps = TwinSteps(limits=LIMITS["storage"])
    usual = {"max_per_subscription_backlog": 100, "dead_message_queue": "dead"}
    steps.run([define(**usual | definition), define("dead")])
    return steps


def active(depth: int) -> c.Define:
    """Give the queue an active set."""
    return define(max_per_subscription_backlog=100, target_queue_depth=depth)


def browsed(steps: TwinSteps, queue: str) -> list[int]:
    (answer,) = replies(steps.run([c.Browse(queue=queue, limit=1_000, reply=REPLY)]))
    return [int(message["id"]) for message in answer.result]


@pytest.mark.parametrize("limits", ["storage", "usual"])
@pytest.mark.parametrize("keys", [{}, {"priority": "/p"}, {"partition_key": "/key"}], ids=str)
def test_R6_the_oldest_message_is_found_among_live_and_cold_ones(
    limits: str, keys: dict[str, Any]
) -> None:
    steps, rng = TwinSteps(limits=LIMITS[limits], chance=0.1), random.Random(3)
    wide = {"max_per_subscription_backlog": 100, "lease_period": "2s"}
    steps.run([define(**wide, **keys), subscribe("a", 3)])
    for turn in range(120):
        options = rng.choice(({}, {"deliver_at": steps.now + 2_500}))
        coming = rng.randrange(6) if turn < 70 else 0
        steps.run(publishes=[("orders", rng.choice(ORDERED), options)] * coming)
        (answer,) = replies(steps.run([c.Browse(queue="orders", limit=1_000, reply=REPLY)]))
        entered = [message["entered"] for message in answer.result]
        age = (steps.now - min(entered)) / 1_000 if entered else None
        assert described(steps)["oldest_age_s"] == age, f"turn {turn}"
        here = [message["id"] for message in answer.result]
        gone = rng.sample(here, min(rng.randrange(5), len(here)))
        steps.run([c.Ack(queue="orders", ids=one) for one in gone])
        steps.tick(rng.choice((1, 300, 900)))
    assert not here, "it ends with an empty queue"


LEAVING: dict[str, list[c.Command]] = {
    "acknowledge": [c.Ack(queue="orders", ids="28,30")],
    "purge": [c.Purge(queue="orders", ids="28,30")],
    "purge where": [c.Purge(queue="orders", where="/n = 28 OR /n = 30")],
    "move": [c.Move(queue="orders", to="dead", ids="28,30")],
    "expire": [],
    "edit, then purge": [
        c.Edit(queue="orders", ids="25-31", headers={"a": "b"}),
        c.Purge(queue="orders", ids="28,30"),
    ],
}


@pytest.mark.parametrize("is_marked", [False, True], ids=["", "after a mark"])
@pytest.mark.parametrize("name", LEAVING)
def test_R5_messages_leave_the_end_of_a_deep_queue(name: str, is_marked: bool) -> None:
    """There they wait in memory until a page of them is full."""
    steps = steps_of()
    for n in range(1, 32):
        ttl = {"ttl_ms": 9_000} if name == "expire" and n in (28, 30) else {}
        steps.run(publishes=[("orders", b'{"n":%d}' % n, ttl)])
    queue = steps.brokers[0].find("default", "orders")
    assert queue is not None
    assert not {28, 30} & set(queue.live), "they are cold"
    if is_marked:
        steps.check_marks()
    assert browsed(steps, "orders") == list(range(1, 32))
    steps.run(LEAVING[name])
    steps.tick(9_000)
    steps.run(publishes=[("orders", b'{"n":%d}' % n) for n in range(32, 40)])
    steps.check_marks()
    out = steps.run([subscribe("a", 100)])
    left = [n for n in range(1, 40) if n not in (28, 30)]
    assert delivered(out) == left
    payloads = [p for o in out if isinstance(o, Deliveries) for p in o.payloads]
    assert payloads == [b'{"n":%d}' % n for n in left]


@pytest.mark.parametrize("more", [{}, {"priority": "/p"}], ids=["by place", "by priority"])
def test_X1_X5_messages_expiring_together_die_in_order_of_arrival(more: dict[str, Any]) -> None:
    """Cold messages died before live ones, and by priority."""
    steps = steps_of(expiration="1s", **more)
    steps.run(publishes=[("orders", payload) for payload in ORDERED])
    later = {"deliver_at": steps.now + 9_000, "ttl_ms": 1_000}
    steps.run(publishes=[("orders", payload, later) for payload in ORDERED])
    steps.tick(1_000)
    assert browsed(steps, "dead") == list(range(1, 49))


def test_O4_F5_a_filter_takes_messages_without_an_earlier_one_of_their_key() -> None:
    """The key of a message that it had left in the cold part held back earlier messages of that key
    too."""
    steps = steps_of(partition_key="/key", priority="/p")
    steps.run([subscribe("a", filter="/p = 9")])
    assert delivered(steps.run(publishes=[("orders", payload) for payload in ORDERED])) == []
    assert delivered(steps.run(publishes=[("orders", b'{"p":9,"key":"0"}')])) == [25]


def test_O4_F5_a_message_behind_a_cold_one_of_its_key_goes_once_that_has_left() -> None:
    steps = steps_of(partition_key="/key")
    steps.run([subscribe("a", filter="/p = 1")])
    rest = [b'{"p":0,"key":"x"}'] * 12
    steps.run(publishes=[("orders", payload) for payload in (*rest, b'{"p":1,"key":"x"}', *rest)])
    assert delivered(steps.run([c.Purge(queue="orders", ids="1-11")])) == []
    assert delivered(steps.run([c.Purge(queue="orders", ids="12")])) == [13]


def test_O4_a_returned_message_precedes_cold_ones_of_its_key() -> None:
    """Also before those that precede it in the queue's order (L7)."""
    steps = steps_of(partition_key="/key", priority="/p")
    steps.run([subscribe("a", filter="/p = 1")])
    steps.run(publishes=[("orders", b'{"p":1,"key":"x"}')])
    steps.run(publishes=[("orders", b'{"p":2,"key":"x"}')] * 12)
    cancel = c.Cancel(queue="orders", subscription="a", ids="1")
    assert delivered(steps.run([cancel])) == [1]


@pytest.mark.parametrize("filter", [None, "/n >= 0"])
def test_L2_O4_at_most_once_messages_leave_in_order_whatever_their_key(filter: str | None) -> None:
    """While all messages with a key were cold, the next of a key came after others."""
    steps = steps_of(partition_key="/key")
    payloads = [b'{"n":%d}' % n for n in range(6)]
    payloads += [b'{"n":%d,"key":"%d"}' % (n, n // 2 % 2) for n in range(18)]
    steps.run(publishes=[("orders", payload) for payload in payloads])
    out = steps.run([subscribe("a", acks="none", filter=filter)])
    assert delivered(out) == list(range(1, 25))


def test_R5_the_active_set_where_cold_segments_overlap() -> None:
    steps = steps_of()
    steps.run(publishes=[("orders", b'{"n":%d}' % (n % 5)) for n in range(40)])
    steps.run([subscribe("a", 8, filter="/n = 3")])  # its messages return, and are cold then
    steps.run([c.Unsubscribe(queue="orders", subscription="a")])
    out = [
        steps.run([active(12), subscribe("b")]),
        steps.run([active(13)]),
        steps.run([active(30)]),
    ]
    assert list(map(delivered, out)) == [list(range(1, 13)), [13], list(range(14, 31))]


def test_R5_cold_delayed_messages_count_as_active() -> None:
    """They came first; a later request for an active set got one message more for each."""
    steps = steps_of()
    later = {"deliver_at": steps.now + 5_000}
    steps.run(publishes=[("orders", b"{}", later)] * 20 + [("orders", b"{}")] * 20)
    steps.run([active(22), subscribe("a", 100)])
    assert described(steps)["leased"] == 2
    assert len(delivered(steps.tick(5_000))) == 20


def test_R5_an_active_set_follows_the_priorities_at_entry() -> None:
    """Messages keep the priority with which they entered (Q9)."""
    steps = steps_of(priority="/p")
    steps.run(publishes=[("orders", payload) for payload in ORDERED])
    out = steps.run([active(7), subscribe("a", 100)])
    first = sorted(range(24), key=lambda n: (-(n * 7 % 4), n))[:7]
    assert delivered(out) == [n + 1 for n in first]


def test_R5_a_finished_merge_is_in_the_next_mark() -> None:
    """Also where nothing else happened in the step."""
    steps = TwinSteps(limits=Limits(live_rows=4, segment_rows=2, merge_rows=1), chance=1, twins=2)
    steps.run([define(priority="/n")])
    for n in range(60):
        steps.run(publishes=[("orders", b'{"n":%d}' % (m % 11)) for m in range(n, n + 21, 7)])
    steps.check_marks()


@pytest.mark.parametrize("publish", [{}, {"delay_ms": 9_000}], ids=["cold", "delayed"])
def test_S10_Q9_a_cold_message_is_replaced_too(publish: dict[str, Any]) -> None:
    """A deep queue gets quota 0 when one message is left. It had two from then on."""
    steps = steps_of()
    steps.run(publishes=[("orders", b"{}", publish) for _ in range(24)])
    steps.run([c.Purge(queue="orders", ids="1-23")])
    steps.run([define(max_per_subscription_backlog=100, max_spool_usage=0)])
    steps.run(publishes=[("orders", b"{}")])
    assert browsed(steps, "orders") == [25]
