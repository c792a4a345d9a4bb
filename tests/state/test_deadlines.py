"""More due messages than a step or the live part takes: the work continues until all is done."""

import pytest
from lakequeue.state import Limits
from rules.steps import define, delivered, described, subscribe

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
