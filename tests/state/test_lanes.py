"""Keys (O4) on a broker that is loaded while a message of the key is under way."""

from typing import Any

from lakequeue.protocol import commands as c
from lakequeue.state import Limits
from lakequeue.state.queue.ready import Ready
from lakequeue.state.storage.row import Row
from rules.steps import define, delivered, described, subscribe

from .twin_steps import TwinSteps


def test_O4_the_next_of_a_key_is_delivered_after_a_restart() -> None:
    """The waiting message may be loaded before the one under way; when that leaves, the other is
    delivered, although a search came in between."""
    steps = TwinSteps(twins=1)
    steps.run([define(partition_key="/k", max_per_subscription_backlog=9), subscribe("a", 9)])
    steps.run(publishes=[("orders", b'{"k":1}')] * 2)
    steps.run([c.Cancel(queue="orders", subscription="a", ids="1", delay_ms=500)])
    (queue,) = steps.brokers[0].queues.values()
    queue.live = dict(sorted(queue.live.items(), reverse=True))  # as after many changes
    steps.restart()
    steps.run(publishes=[("orders", b'{"k":2}')])  # causes a search
    assert delivered(steps.tick(500)) == [1]
    assert delivered(steps.run([c.Ack(queue="orders", subscription="a", ids="1,3")])) == [2]


def test_O4_a_key_with_very_many_messages_delays_no_other() -> None:
    """The step ends, although all live messages wait behind one message of their key."""
    steps = TwinSteps(limits=Limits(live_rows=16, segment_rows=8))
    steps.run([define(partition_key="/k", max_per_subscription_backlog=99), subscribe("a", 99)])
    steps.run(publishes=[("orders", b'{"k":1}')] * 100 + [("orders", b'{"k":2}')])
    steps.run(publishes=[("orders", b'{"k":3}')])
    seen = described(steps)
    assert (seen["leased"], seen["depth"]) == (3, 102)
    assert delivered(steps.run([c.Ack(queue="orders", subscription="a", ids="1")])) == [2]


def test_O4_waiting_and_deliverable_messages_share_no_cold_page() -> None:
    """Where more is delayed than may be live, a step spills at its end what it found: the next step
    must not find it again, for ever."""
    limits = Limits(live_rows=4, segment_rows=4, looks=4)
    steps = TwinSteps(limits=limits, checked=False)
    steps.run([define(partition_key="/k", max_per_subscription_backlog=9)])

    def publish(keys: str, **options: Any) -> None:
        bodies = [b"{}" if k == "-" else b'{"k":%d}' % int(k) for k in keys]
        steps.run(publishes=[("orders", body, options) for body in bodies])

    publish("062", deliver_at=steps.now + 9_000)
    publish("00---0")
    publish("----24-4-")
    assert delivered(steps.run([subscribe("a", 9)])) == [6, 7, 8, 10, 11, 12, 13, 15, 16]


def test_O4_a_row_being_loaded_is_not_next_yet() -> None:
    """The order may be tidied between two rows that are loaded together."""
    row = Row(1, 1, 0, 0, 0, lane=7)
    ready = Ready({1: row})
    assert not ready.is_next(row)
    ready.add([row])
    assert ready.is_next(row)


def test_O4_an_empty_queue_keeps_no_keys() -> None:
    """However many keys it had: after a purge each kept the cold page of its messages."""
    steps = TwinSteps(limits=Limits(live_rows=8, segment_rows=4))
    steps.run([define(partition_key="/k", max_per_subscription_backlog=9)])
    bodies = [b'{"k":%d}' % (n % 30) for n in range(60)]
    steps.run(publishes=[("orders", body) for body in bodies])
    (queue,) = steps.brokers[0].queues.values()
    assert len(queue.ready.lanes) == 30
    steps.run([c.Purge(queue="orders")])
    while described(steps)["depth"]:
        steps.tick(1)
    assert (queue.ready.lanes, queue.ready.asking) == ({}, [])
    steps.run([subscribe("a", 9)])
    again = [("orders", body) for body in (bodies[0], bodies[1], bodies[0])]
    assert delivered(steps.run(publishes=again)) == [61, 62]
