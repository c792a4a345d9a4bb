"""What is live and what is cold makes no difference to what a queue does (R5, S12)."""

from typing import Any

import pytest
from lakequeue.protocol import commands as c
from rules.steps import REPLY, define, replies

from .live_steps import LIMITS, LiveSteps

ORDERED = [b'{"p":%d,"key":"%d"}' % (n * 7 % 4, n % 3) for n in range(24)]


def browsed(steps: LiveSteps, queue: str) -> list[int]:
    (answer,) = replies(steps.run([c.Browse(queue=queue, limit=1_000, reply=REPLY)]))
    return [int(message["id"]) for message in answer.result]


@pytest.mark.parametrize("more", [{}, {"priority": "/p"}], ids=["by place", "by priority"])
def test_X1_X5_what_expires_together_dies_in_the_order_of_arrival(more: dict[str, Any]) -> None:
    """Cold messages died before live ones, and by priority."""
    steps = LiveSteps(limits=LIMITS["storage"])
    steps.run([define(dead_message_queue="dead", expiration="1s", **more), define("dead")])
    steps.run(publishes=[("orders", payload) for payload in ORDERED])
    later = {"deliver_at": steps.now + 9_000, "ttl_ms": 1_000}
    steps.run(publishes=[("orders", payload, later) for payload in ORDERED])
    steps.tick(1_000)
    assert browsed(steps, "dead") == list(range(1, 49))
