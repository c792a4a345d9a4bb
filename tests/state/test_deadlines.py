"""More due messages than a step or the live part takes: the work continues until all is done."""

import pytest
from lakequeue.protocol import commands as c
from lakequeue.state import Limits
from rules.steps import Steps, define, delivered, described, subscribe

from .twin_steps import LIMITS, TwinSteps

FEW_LIVE = Limits(live_rows=64, segment_rows=16, due_rows=8)


@pytest.mark.parametrize(
    ("limits", "messages"), [(LIMITS["ones"], 12), (LIMITS["tiny"], 40), (FEW_LIVE, 500)]
)
def test_L11_all_delayed_messages_due_together_are_delivered(limits: Limits, messages: int) -> None:
    """Cold ones were read, and spilled again before it was their turn, for ever."""
    steps = TwinSteps(limits=limits, checked=messages < 100)
    taker = subscribe("a", 1_000, acks="none")
    steps.run([define(max_per_subscription_backlog=1_000), taker])
    later = {"deliver_at": steps.now + 1_000}
    steps.run(publishes=[("orders", b"{}", later) for _ in range(messages)])
    assert described(steps)["delayed"] == messages
    assert len(delivered(steps.tick(1_000))) == messages


def test_L10_X1_a_message_whose_lease_was_renewed_counts_once_for_the_budget() -> None:
    """Each renewal adds the message's deadlines to the heap once more. A twin that was loaded since
    has them once, and does the same."""
    steps = TwinSteps(limits=Limits(due_rows=8, alone=1))
    steps.run([define(lease_period="30s"), subscribe("a")])
    steps.run(publishes=[("orders", b"{}", {"ttl_ms": 20_000}) for _ in range(8)])
    for _ in range(3):
        steps.run([c.Renew(queue="orders", subscription="a", ids="1-8")])
    steps.check_marks()
    steps.tick(20_000)
    assert described(steps)["depth"] == 0


def test_O1_L12_messages_due_together_are_delivered_in_order() -> None:
    """A step's budget makes some ready before the others, and some of them are cold."""
    for due_rows in range(1, 20):
        steps = Steps(limits=Limits(live_rows=6, segment_rows=4, due_rows=due_rows))
        steps.run([define(max_per_subscription_backlog=99), subscribe("a", 99)])
        due = {"deliver_at": steps.now + 1_000}
        steps.run(publishes=[("orders", b"{}", due)] * 30)
        assert delivered(steps.tick(1_000)) == [*range(1, 31)], f"{due_rows} rows"


def test_O1_L12_merged_messages_due_together_are_delivered_in_order() -> None:
    """A merge gives the first ones a segment with a higher number."""
    steps = Steps(limits=LIMITS["tiny"])
    steps.run([define(max_per_subscription_backlog=99)])
    for ms in (2_000, 1_000):
        due = {"deliver_at": steps.now + ms}
        for _ in range(12):
            steps.run(publishes=[("orders", b"{}", due)])
    steps.run([subscribe("a", 99)])
    assert delivered(steps.tick(1_000)) == [*range(13, 25)]
    assert delivered(steps.tick(1_000)) == [*range(1, 13)]
