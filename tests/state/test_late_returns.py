"""A client's late reports about unread messages (L5, C3): these may be cold by then, or no longer
the first of their key (O4)."""

from __future__ import annotations

from typing import Any

import pytest
from lakequeue.protocol import commands as c
from lakequeue.protocol.outputs import Deliveries
from rules.steps import define, delivered, described, subscribe

from .twin_steps import LIMITS, TwinSteps

N = 20
WIDE = {"max_per_subscription_backlog": 100}


def counts(out: list[Any]) -> dict[int, int]:
    """The delivery count that came with each message."""
    sent = [one for one in out if isinstance(one, Deliveries)]
    return {i: n for one in sent for i, n in zip(one.ids, one.counts, strict=True)}


def of_late(ids: str) -> c.Returned:
    return c.Returned(queue="orders", subscription="gone", ids=ids)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("keys", [{}, {"priority": "/n"}, {"partition_key": "/n"}], ids=str)
def test_L5_unread_messages_returned_late_lose_an_attempt(
    limits: str, keys: dict[str, Any]
) -> None:
    steps = TwinSteps(limits=LIMITS[limits], chance=0.3)
    steps.run([define(**WIDE, **keys), subscribe("gone")])
    out = steps.run(publishes=[("orders", b'{"n": %d}' % n) for n in range(N)])
    assert len(delivered(out)) == N
    steps.run([c.Unsubscribe(queue="orders", subscription="gone")])
    steps.run([of_late("1-10,999")])
    steps.run([of_late("5")])  # nothing is left to take back
    assert described(steps)["ack_ignored"] == 1
    again = counts(steps.run([subscribe("new")]))
    assert again == {n: 1 if n <= 10 else 2 for n in range(1, N + 1)}


@pytest.mark.parametrize("limits", LIMITS)
def test_O4_a_message_returned_unread_does_not_precede_others_of_its_key(
    limits: str,
) -> None:
    """Of two messages of a key the one with the higher priority goes first, unless the other one is
    under way."""
    steps = TwinSteps(limits=LIMITS[limits], chance=0.3)
    order = {"priority": "/p", "partition_key": "/k"}
    steps.run([define(**WIDE, **order), subscribe("gone")], [("orders", b'{"k":1,"p":1}')])
    steps.run([c.Unsubscribe(queue="orders", subscription="gone")])
    steps.run(publishes=[("orders", b'{"k":1,"p":2}')])
    steps.run([of_late("1")])
    assert delivered(steps.run([subscribe("new", 1)])) == [2]
    assert delivered(steps.run([c.Ack(queue="orders", subscription="new", ids="2")])) == [1]
