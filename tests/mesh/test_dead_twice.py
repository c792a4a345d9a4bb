"""One message dies in queues of several brokers (X6, M6): it is in the dead message queue once, and
goes back to each of them."""

from __future__ import annotations

import json

import pytest
from lakequeue.definitions import parse_configuration
from lakequeue.state import check
from rules.mortal import MortalEngine


def home(dead_at: str, first: str) -> MortalEngine:
    """A message for a queue of each broker; in the first it dies sooner."""
    queues = [
        {
            "name": f"at-{broker}", "message_type": "json", "type": "LocalQueue", "broker": broker,
            "expiration": "1s" if broker == first else "3s", "dead_message_queue": "dead",
            "subscriptions": ["all"],
        }
        for broker in "ab"
    ]  # fmt: skip
    dead = {"name": "dead", "message_type": "json", "type": "LocalQueue", "broker": dead_at}
    return MortalEngine(
        parse_configuration({"brokers": ["a", "b", "c"], "queues": [*queues, dead]})
    )


@pytest.mark.parametrize("dead_at", ["a", "b", "c"])
@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.parametrize("sender", ["a", "b", "c"])
def test_X6_a_message_that_died_at_two_brokers_goes_back_to_both(
    dead_at: str, first: str, sender: str
) -> None:
    engine = home(dead_at, first)
    engine.connect(sender, "app").producer().send("all", json.dumps({"n": 1}).encode())
    engine.advance("5s")
    for broker in engine.brokers:
        check(broker._replica.broker)  # type: ignore[attr-defined]
    admin = engine.connect("a", "ops").admin()
    assert admin.describe("dead")["depth"] == 1, "once"
    admin.redrive("dead")
    engine.advance("100ms")
    assert [admin.describe(f"at-{broker}")["depth"] for broker in "ab"] == [1, 1]
    assert admin.describe("dead")["depth"] == 0
